package devcontainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/jsonc"
)

// A Composed is a dev container that is a service of Compose. Text are its settings as the dev container CLI is to get them: with
// the files that egressd has judged in the place of the project's.
type Composed struct {
	Folder, At string // the workspace, and the settings in it
	Text       string
}

// composedProperties are taken over. The engine tells egressd what they have made of the container, before the container starts.
const composedProperties = `$schema name service runServices workspaceFolder remoteUser containerUser overrideCommand shutdownAction userEnvProbe updateRemoteUserUID
	waitFor forwardPorts portsAttributes otherPortsAttributes customizations containerEnv remoteEnv
	onCreateCommand updateContentCommand postCreateCommand postStartCommand postAttachCommand
	init privileged capAdd securityOpt mounts`

// hostVariable finds a variable of the user's environment.
var hostVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)\$\{(?:local)?env:[^}]*\}?`) })

// OfCompose returns the dev container of a workspace whose settings have the compose file, and no other one. It returns nil without
// such settings, and a [*BoundaryError] for a property that nobody judges later. The copy names judged, and its service is one of held.
func OfCompose(folder, file string, judged, held []string) (*Composed, error) {
	at := filepath.Join(folder, ".devcontainer", "devcontainer.json")
	text, err := integrations.ReadText(at)
	if err != nil || text == nil {
		return nil, err
	}
	var said map[string]any
	if err := json.Unmarshal(jsonc.Standard(text), &said); err != nil {
		return nil, &integrations.ShapeError{Path: at, Problem: err.Error()}
	}
	files := words(said["dockerComposeFile"])
	if one, isText := said["dockerComposeFile"].(string); isText {
		files = []string{one}
	}
	if len(files) != 1 {
		return nil, nil
	}
	if !filepath.IsAbs(files[0]) {
		files[0] = filepath.Join(filepath.Dir(at), files[0])
	}
	if filepath.Clean(files[0]) != file {
		return nil, nil
	}
	delete(said, "dockerComposeFile")
	c := &checker{at: at}
	if err := c.ofCompose(said, held); err != nil {
		return nil, err
	}
	said["dockerComposeFile"] = judged
	out, err := json.MarshalIndent(said, "", "  ")
	if err != nil {
		return nil, err
	}
	return &Composed{folder, at, string(out) + "\n"}, nil
}

// ofCompose refuses properties of a dev container of Compose.
func (c *checker) ofCompose(said map[string]any, held []string) error {
	if err := errors.Join(c.defaults("", said), c.ofHost("", said), c.oneLine("", said)); err != nil {
		return err
	}
	for _, name := range words(said["runServices"]) {
		if strings.HasPrefix(name, "-") {
			return c.breaks("runServices", fmt.Sprintf("%.60q would be a flag of docker compose up", name), "names of services")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		switch value := said[name]; {
		case name == "initializeCommand":
			return c.breaks(name, "it runs on this machine, outside of the container, and whoever can change the project can change it", "leave it out, and type the command yourself")
		case name == "features":
			return c.breaks(name, "what the dev container tools build of the service's image nobody has judged", "install it in the image of the service")
		case !slices.Contains(strings.Fields(composedProperties), name):
			return c.breaks(name, "egressd does not know it beside dockerComposeFile, nor whether it leads out", "leave it out")
		case name == "remoteUser" || name == "containerUser":
			if text, isText := value.(string); !isText || !plainName().MatchString(text) {
				return c.breaks(name, fmt.Sprintf("%.60q is no name of a user", fmt.Sprint(value)), "a name of letters, digits, dots and dashes")
			}
		case name == "containerEnv":
			if err := c.environment(name, value); err != nil {
				return err
			}
		}
	}
	if service, _ := said["service"].(string); !slices.Contains(held, service) {
		return c.breaks("service", fmt.Sprintf("egressd does not confine %.60q", fmt.Sprint(said["service"])), "egressd init compose --service, with that name")
	}
	return nil
}

// ofHost refuses variables of the user's environment anywhere in a value: the project would choose which ones the container gets.
func (c *checker) ofHost(of string, value any) error {
	switch v := value.(type) {
	case string:
		if found := hostVariable().FindString(v); found != "" {
			return c.breaks(of, found+" is a variable of yours, which the container would get", "the value itself, or a credential that egressd adds to requests")
		}
	case []any:
		for _, one := range v {
			if err := c.ofHost(of, one); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := errors.Join(c.ofHost(of, name), c.ofHost(strings.TrimSpace(of+" "+name), v[name])); err != nil {
				return err
			}
		}
	}
	return nil
}

// JudgeLabels returns why the settings in the labels of an image are refused for a dev container of Compose: a [*BoundaryError]. The
// engine says later what the labels make of the container.
func JudgeLabels(image string, labels map[string]string) error {
	text := labels[metadataLabel]
	if text == "" {
		return nil
	}
	c := &checker{at: image}
	var said any
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return c.breaks(metadataLabel, "it cannot be read: "+err.Error(), "another image")
	}
	all, isList := said.([]any)
	if !isList {
		all = []any{said}
	}
	for _, one := range all {
		if err := c.oneLine(metadataLabel, one); err != nil {
			return err
		}
	}
	return nil
}

// oneLine refuses texts of several lines. The dev container tools write values into a compose file of their own, where a further line is
// another setting, or another service, that nobody has judged. Commands and what editors are told stay out of that file.
func (c *checker) oneLine(of string, value any) error {
	switch v := value.(type) {
	case string:
		if strings.ContainsFunc(v, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }) {
			return c.breaks(of, fmt.Sprintf("%.60q: tools write it into a compose file, where a further line would be another setting", v), "a text of one line")
		}
	case []any:
		for _, one := range v {
			if err := c.oneLine(of, one); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if name == "customizations" || strings.HasSuffix(name, "Command") {
				continue
			}
			if err := errors.Join(c.oneLine(of, name), c.oneLine(strings.TrimSpace(of+" "+name), v[name])); err != nil {
				return err
			}
		}
	}
	return nil
}
