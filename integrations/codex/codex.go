// Package codex changes the settings of Codex so that its commands use egressd as their proxy.
package codex

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/integrations"
	"github.com/pelletier/go-toml/v2"
)

const (
	policyTable = "shell_environment_policy"
	setTable    = policyTable + ".set"
)

// Merge plans for Codex's config.toml at path that the commands it runs are started with
// variables. It gives them no network: that is closed in Codex unless its user
// opens it. Lines that are there stay as they are. Its errors are [*integrations.ConflictError], [*integrations.ShapeError], and those of reading.
func Merge(path string, variables []integrations.Variable) (*integrations.Plan, error) {
	old, err := integrations.ReadText(path)
	if err != nil {
		return nil, err
	}
	byHand := tomlLines(variables)
	before, err := parseTOML(old)
	if err != nil {
		return nil, &integrations.ShapeError{Path: path, Problem: "it is not TOML: " + err.Error(), ByHand: byHand}
	}
	policy, _ := before[policyTable].(map[string]any)
	set, _ := policy["set"].(map[string]any)
	missing, err := missingFrom(path, set, variables)
	if err != nil {
		return nil, err
	}
	text := withVariables(old, set != nil, missing)
	if err := onlyVariables(before, text, variables); err != nil {
		return nil, &integrations.ShapeError{Path: path, Problem: err.Error(), ByHand: byHand}
	}
	return &integrations.Plan{File: integrations.File{Path: path, Old: old, New: text}, Notes: codexNotes(before)}, nil
}

func parseTOML(text []byte) (map[string]any, error) {
	tree := map[string]any{}
	return tree, toml.Unmarshal(text, &tree)
}

func missingFrom(path string, set map[string]any, variables []integrations.Variable) (missing []integrations.Variable, err error) {
	for _, v := range variables {
		switch has, ok := set[v.Name]; {
		case !ok:
			missing = append(missing, v)
		case has != v.Value:
			return nil, &integrations.ConflictError{Path: path, Setting: setTable + "." + v.Name, Has: strconv.Quote(fmt.Sprint(has)), Want: strconv.Quote(v.Value)}
		}
	}
	return missing, nil
}

func assignments(variables []integrations.Variable) string {
	var b strings.Builder
	for _, v := range variables {
		fmt.Fprintf(&b, "%s = %s\n", v.Name, strconv.Quote(v.Value))
	}
	return b.String()
}

func tomlLines(variables []integrations.Variable) string {
	return "[" + setTable + "]\n" + assignments(variables)
}

// withVariables adds lines below the header of the table, or adds the table at the end. If the file writes its tables
// in another form, onlyVariables refuses the result.
func withVariables(old []byte, hasTable bool, variables []integrations.Variable) []byte {
	if len(variables) == 0 {
		return old
	}
	if hasTable {
		at := 0
		for line := range bytes.Lines(old) {
			at += len(line)
			if isHeader(line) {
				return slices.Concat(old[:at], []byte(assignments(variables)), old[at:])
			}
		}
	}
	gap := ""
	if len(old) > 0 {
		gap = "\n"
		if !bytes.HasSuffix(old, []byte("\n")) {
			gap = "\n\n"
		}
	}
	return slices.Concat(old, []byte(gap+tomlLines(variables)))
}

func isHeader(line []byte) bool {
	header, _, _ := strings.Cut(string(line), "#")
	return strings.HasSuffix(string(line), "\n") && strings.TrimSpace(header) == "["+setTable+"]"
}

// onlyVariables wants text to say what before does, and variables.
func onlyVariables(before map[string]any, text []byte, variables []integrations.Variable) error {
	after, err := parseTOML(text)
	if err != nil {
		return fmt.Errorf("lines cannot be added to it: its %s is not a table with a header of its own", setTable)
	}
	want := maps.Clone(before)
	policy := maps.Clone(integrations.Table(want, policyTable))
	set := maps.Clone(integrations.Table(policy, "set"))
	for _, v := range variables {
		set[v.Name] = v.Value
	}
	policy["set"], want[policyTable] = set, policy
	if !reflect.DeepEqual(want, after) {
		return fmt.Errorf("lines cannot be added to it without another meaning")
	}
	return nil
}

func codexNotes(config map[string]any) []string {
	notes := []string{
		"this is a request: a command may drop the variables; the boundary is egressd run --fs -- codex",
		"Codex gives its commands no network, and this opens none: egressd run --fs -- codex -c sandbox_workspace_write.network_access=true lets them reach egressd, and nothing else; without egressd run that setting opens the network",
		"Codex's own proxy may stay on under egressd run; beside egressd serve it goes to egressd only with its allow_upstream_proxy, and sets these variables itself",
	}
	policy, _ := config[policyTable].(map[string]any)
	if only, _ := policy["include_only"].([]any); len(only) > 0 {
		notes = append(notes, policyTable+`.include_only leaves these variables out unless it names them`)
	}
	return notes
}
