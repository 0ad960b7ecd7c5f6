package compose

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations"
	"go.yaml.in/yaml/v3"
)

// FileNames are the files that Compose takes where none is named, in its order.
var FileNames = []string{"compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"}

// A File has the parts of a compose file that decide whether a network holds its services.
type File struct {
	Path     string
	Name     string // of the project, where the file says it
	Version  string
	Services []Service // by name
	Includes bool      // of other files, which are not looked at
	networks map[string]composeNetwork
}

// A Service is one service of a compose file.
type Service struct {
	Name     string
	Networks []string     // that it names itself; none: the network default
	shares   string       // network_mode
	joins    []sharedWith // namespaces of other services
	problems []string     // by which no network would hold it
	ports    bool
	mounts   []string // folders of the host that it can write, absolute
	reads    []string // and all that it has of the host
	external []string // volumes that are made elsewhere
	inputs   []composeInput
}

type composeNetwork struct {
	External yaml.Node `yaml:"external"`
	Driver   string    `yaml:"driver"`
}

// composeText is a compose file, with what has several forms left as it is.
type composeText struct {
	Name     string                          `yaml:"name"`
	Version  yaml.Node                       `yaml:"version"`
	Include  yaml.Node                       `yaml:"include"`
	Services map[string]map[string]yaml.Node `yaml:"services"`
	Networks map[string]composeNetwork       `yaml:"networks"`
	Volumes  map[string]composeVolume        `yaml:"volumes"`
	Configs  map[string]composeGiven         `yaml:"configs"`
	Secrets  map[string]composeGiven         `yaml:"secrets"`
}

type composeVolume struct {
	External yaml.Node         `yaml:"external"`
	Name     string            `yaml:"name"`
	Driver   string            `yaml:"driver"`
	Options  map[string]string `yaml:"driver_opts"`
}

// elsewhere reports whether Compose may use an existing volume, whose driver and options the file does not show.
func (v *composeVolume) elsewhere() bool {
	return v.Name != "" || !isNothing(&v.External) && resolved(&v.External).Value != "false"
}

// A composeGiven is a config or a secret: a file that is mounted, or no concern of the host's.
type composeGiven struct {
	File string `yaml:"file"`
}

// Read reads the compose file at path, or where path is a folder the one that
// Compose would take there.
func Read(path string) (*File, error) {
	text, path, err := findCompose(path)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	file, err := parseCompose(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(file.Services) == 0 {
		return nil, fmt.Errorf("%s has no services of its own", path)
	}
	c := &File{Path: path, Name: file.Name, Version: file.Version.Value, Includes: !isNothing(&file.Include), networks: file.Networks}
	for name, keys := range file.Services {
		j := composeJudge{file: file, service: Service{Name: name}, dir: filepath.Dir(path), home: os.Getenv("HOME")}
		c.Services = append(c.Services, j.judge(keys))
	}
	slices.SortFunc(c.Services, func(a, b Service) int { return strings.Compare(a.Name, b.Name) })
	return c, nil
}

// parseCompose refuses a second document: Compose merges it into the first.
func parseCompose(text []byte) (*composeText, error) {
	var file composeText
	var second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second document begins in it, which Compose merges into the first; keep one")
	}
	return &file, nil
}

func findCompose(path string) ([]byte, string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		text, err := integrations.ReadText(path)
		if err == nil && text == nil {
			err = fmt.Errorf("there is no %s", path)
		}
		return text, path, err
	}
	for _, name := range FileNames {
		one := filepath.Join(path, name)
		if text, err := integrations.ReadText(one); err != nil || text != nil {
			return text, one, err
		}
	}
	return nil, "", fmt.Errorf("%s: there is no %s", path, strings.Join(FileNames, ", "))
}

// keysOf returns the keys of a mapping, including merged keys, or the items of a list.
func keysOf(n *yaml.Node) (all []string) {
	var mapping map[string]yaml.Node
	if n = resolved(n); n.Kind != yaml.MappingNode || n.Decode(&mapping) != nil {
		return valuesOf(n)
	}
	return slices.Sorted(maps.Keys(mapping))
}

func valuesOf(n *yaml.Node) (all []string) {
	for _, one := range resolved(n).Content {
		all = append(all, resolved(one).Value)
	}
	return all
}

// isNothing reports whether a value is missing, null, or an empty list or mapping.
func isNothing(n *yaml.Node) bool {
	n = resolved(n)
	return n.Kind == 0 || n.Tag == "!!null" || n.Kind != yaml.ScalarNode && len(n.Content) == 0
}

func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// Problems are why no network would hold a service, one sentence each.
func (c *File) Problems(s *Service, held []string) (all []string) {
	for _, p := range s.problems {
		all = append(all, s.Name+" "+p)
	}
	if of, ok := strings.CutPrefix(s.shares, "service:"); s.shares != "" && s.shares != "none" && (!ok || !slices.Contains(held, of)) {
		all = append(all, fmt.Sprintf("%s has network_mode: %s", s.Name, s.shares))
	}
	for _, j := range s.joins {
		if !slices.Contains(held, j.service) {
			all = append(all, fmt.Sprintf("%s has %s: service:%s, which is not held", s.Name, j.key, j.service))
		}
	}
	for _, name := range s.Networks {
		if !plainNetwork(name) {
			all = append(all, fmt.Sprintf("%s is in the network %q, and none can be called that", s.Name, name))
		}
		n := c.networks[name]
		if n.External.Kind != 0 && n.External.Value != "false" {
			all = append(all, fmt.Sprintf("%s is in the network %s, which is made elsewhere and cannot be closed from here", s.Name, name))
		}
		if n.Driver != "" && n.Driver != "bridge" {
			all = append(all, fmt.Sprintf("%s is in the network %s, whose driver is %s", s.Name, name, n.Driver))
		}
	}
	return all
}

// Shares reports whether a service has the network of another one, or none at all: it gets none.
func (s *Service) Shares() bool { return s.shares != "" }

func plainNetwork(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == ""
}
