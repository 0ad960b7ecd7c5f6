package policy

import (
	"embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Each preset is a rule file of its own, with allow rules and tests alone.
//
//go:embed presets/*.yaml
var presetFiles embed.FS

// Presets returns the names that "presets:" knows, sorted.
func Presets() []string {
	entries, err := presetFiles.ReadDir("presets")
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = strings.TrimSuffix(entry.Name(), ".yaml")
	}
	slices.Sort(names)
	return names
}

// PresetText returns the rule file of a preset, for a person to read.
func PresetText(name string) ([]byte, error) {
	if !slices.Contains(Presets(), name) {
		return nil, fmt.Errorf("there is no preset %q; %s", printable(name), didYouMean(name, Presets()))
	}
	return presetFiles.ReadFile("presets/" + name + ".yaml")
}

// parsePreset reads the rules of a preset, and not its tests.
func parsePreset(name string) (*File, error) {
	text, err := PresetText(name)
	if err != nil {
		return nil, err
	}
	if f := plainPreset(name, string(text)); f != nil {
		return f, nil
	}
	return ParseFile("preset "+name, text)
}

// plainPreset reads a preset as what ships with egressd is written, or returns nil. A
// parser of YAML takes longer for half a dozen of them than all else that puts a policy
// in force.
func plainPreset(name, text string) *File {
	f := defaults()
	f.name, f.text = "preset "+name, []byte(text)
	before, list, found := strings.Cut(text, "\nversion: 1\nallow:\n")
	list, _, closed := strings.Cut(list, "\ntests:\n")
	if !found || !closed {
		return nil
	}
	at := place{line: strings.Count(before, "\n") + 3, column: len("  - ") + 1}
	for line := range strings.SplitSeq(list, "\n") {
		at.line++
		if strings.HasPrefix(strings.TrimLeft(line, " "), "#") {
			continue
		}
		rule, ok := plainRule(line)
		if !ok {
			return nil
		}
		rule.ID, rule.at = "allow["+strconv.Itoa(len(f.Allow))+"]", at
		f.Allow = append(f.Allow, rule)
	}
	return &f
}

// plainRule reads a rule of a preset: a pattern, which may be quoted, and where a mapping
// is around it one for GET.
func plainRule(line string) (rule Rule, ok bool) {
	text, ok := strings.CutPrefix(line, "  - ")
	if !ok {
		return rule, false
	}
	if inside, mapping := strings.CutPrefix(text, "{host: "); mapping {
		if text, ok = strings.CutSuffix(inside, ", methods: [GET]}"); !ok {
			return rule, false
		}
		rule.Methods = []string{"GET"}
	}
	text, comment, _ := strings.Cut(text, " ")
	if comment = strings.TrimLeft(comment, " "); comment != "" && comment[0] != '#' {
		return rule, false
	}
	if len(text) > 1 && text[0] == '"' && text[len(text)-1] == '"' {
		text = text[1 : len(text)-1]
	} else if strings.HasPrefix(text, "*") { // an alias of YAML
		return rule, false
	}
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789.-:*") != "" {
		return rule, false
	}
	var err error
	rule.Pattern, err = ParsePattern(text)
	return rule, err == nil
}
