package integrate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ComposeNames are the files that Compose takes where none is named, in its order.
var ComposeNames = []string{"compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"}

// A ComposeFile is what of a compose file matters for who is held by a network.
type ComposeFile struct {
	Path     string
	Version  string
	Services []ComposeService // by name
	Includes bool             // of other files, which are not looked at
	networks map[string]composeNetwork
}

// A ComposeService is one service of it.
type ComposeService struct {
	Name     string
	Networks []string // that it names itself; none: the network default
	shares   string   // network_mode
	problems []string // by which no network would hold it
	ports    bool
	mounts   []string // folders of the host that it can write, absolute
}

type composeNetwork struct {
	External yaml.Node `yaml:"external"`
	Driver   string    `yaml:"driver"`
}

// composeText is a compose file, with what has several forms left as it is.
type composeText struct {
	Version  yaml.Node                 `yaml:"version"`
	Include  yaml.Node                 `yaml:"include"`
	Services map[string]serviceText    `yaml:"services"`
	Networks map[string]composeNetwork `yaml:"networks"`
}

type serviceText struct {
	Extends     yaml.Node `yaml:"extends"`
	NetworkMode string    `yaml:"network_mode"`
	Networks    yaml.Node `yaml:"networks"`
	Privileged  string    `yaml:"privileged"`
	Pid         string    `yaml:"pid"`
	UsernsMode  string    `yaml:"userns_mode"`
	CapAdd      yaml.Node `yaml:"cap_add"`
	Ports       yaml.Node `yaml:"ports"`
	Volumes     yaml.Node `yaml:"volumes"`
}

// ReadCompose reads the compose file at path, or where path is a folder the one that
// Compose would take there.
func ReadCompose(path string) (*ComposeFile, error) {
	text, path, err := findCompose(path)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	var file composeText
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(file.Services) == 0 {
		return nil, fmt.Errorf("%s has no services of its own", path)
	}
	c := &ComposeFile{Path: path, Version: file.Version.Value, Includes: len(file.Include.Content) > 0, networks: file.Networks}
	for name, s := range file.Services {
		c.Services = append(c.Services, s.read(name, filepath.Dir(path)))
	}
	slices.SortFunc(c.Services, func(a, b ComposeService) int { return strings.Compare(a.Name, b.Name) })
	return c, nil
}

func findCompose(path string) ([]byte, string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		text, err := read(path)
		if err == nil && text == nil {
			err = fmt.Errorf("there is no %s", path)
		}
		return text, path, err
	}
	for _, name := range ComposeNames {
		one := filepath.Join(path, name)
		if text, err := read(one); err != nil || text != nil {
			return text, one, err
		}
	}
	return nil, "", fmt.Errorf("%s: there is no %s", path, strings.Join(ComposeNames, ", "))
}

func (s *serviceText) read(name, dir string) ComposeService {
	service := ComposeService{Name: name, Networks: keysOf(&s.Networks), shares: s.NetworkMode, ports: len(s.Ports.Content) > 0}
	problem := func(text string, a ...any) { service.problems = append(service.problems, fmt.Sprintf(text, a...)) }
	if s.Extends.Kind != 0 {
		problem("extends another service, which is not looked at")
	}
	if s.Privileged != "" && s.Privileged != "false" {
		problem("is privileged: it becomes root of the host")
	}
	if s.Pid != "" && !strings.HasPrefix(s.Pid, "service:") {
		problem("has pid: %s", s.Pid)
	}
	if s.UsernsMode == "host" {
		problem("has userns_mode: host")
	}
	for _, capability := range valuesOf(&s.CapAdd) {
		if one := strings.TrimPrefix(strings.ToUpper(capability), "CAP_"); slices.Contains(escaping, one) {
			problem("has cap_add: %s", one)
		}
	}
	for _, v := range s.Volumes.Content {
		source, writable := sourceOf(v, dir)
		switch {
		case source == "":
		case strings.HasSuffix(source, ".sock") || source == "/" || source == "/run" || source == "/var/run":
			problem("mounts %s, by which others act for it outside", source)
		case writable:
			service.mounts = append(service.mounts, source)
		}
	}
	return service
}

// escaping are capabilities with which a container is not held by its network:
// it leaves it, or takes addresses and sends packets in it that are not its own.
var escaping = []string{"ALL", "SYS_ADMIN", "SYS_PTRACE", "SYS_MODULE", "SYS_RAWIO", "DAC_READ_SEARCH", "BPF", "PERFMON", "NET_ADMIN", "NET_RAW"}

// keysOf are the keys of a mapping, or the items of a list.
func keysOf(n *yaml.Node) (all []string) {
	n = resolved(n)
	if n.Kind != yaml.MappingNode {
		return valuesOf(n)
	}
	for i := 0; i < len(n.Content); i += 2 {
		all = append(all, n.Content[i].Value)
	}
	return all
}

func valuesOf(n *yaml.Node) (all []string) {
	for _, one := range resolved(n).Content {
		all = append(all, resolved(one).Value)
	}
	return all
}

func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// sourceOf is the path of the host that a mount is of, or "" where it is none.
func sourceOf(n *yaml.Node, dir string) (source string, writable bool) {
	n = resolved(n)
	if n.Kind == yaml.MappingNode {
		var m struct {
			Type     string `yaml:"type"`
			Source   string `yaml:"source"`
			ReadOnly string `yaml:"read_only"`
		}
		if n.Decode(&m) != nil || m.Type != "bind" {
			return "", false
		}
		return absolute(m.Source, dir), m.ReadOnly != "true"
	}
	parts := strings.Split(n.Value, ":")
	if len(parts) < 2 || !strings.ContainsAny(parts[0][:min(1, len(parts[0]))], "./~$") {
		return "", false // a volume
	}
	return absolute(parts[0], dir), len(parts) < 3 || !slices.Contains(strings.Split(parts[2], ","), "ro")
}

func absolute(path, dir string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// Problems are why no network would hold a service, one sentence each.
func (c *ComposeFile) Problems(s *ComposeService, held []string) (all []string) {
	for _, p := range s.problems {
		all = append(all, s.Name+" "+p)
	}
	if of, ok := strings.CutPrefix(s.shares, "service:"); s.shares != "" && s.shares != "none" && (!ok || !slices.Contains(held, of)) {
		all = append(all, fmt.Sprintf("%s has network_mode: %s", s.Name, s.shares))
	}
	for _, name := range s.Networks {
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
func (s *ComposeService) Shares() bool { return s.shares != "" }
