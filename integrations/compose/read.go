package compose

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/boundary"
	"go.yaml.in/yaml/v3"
)

// FileNames are the files that Compose takes where none is named, in its order.
var FileNames = []string{"compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml"}

// A File has the parts of a compose file that decide whether a network holds its services.
type File struct {
	Path     string
	Text     []byte // what was judged
	Name     string // of the project, where the file says it
	Version  string
	Services []Service // by name
	problems []string  // of the file as a whole
	text     *composeText
	env      envFile
	has      func(kind, name string) bool
	volume   func(name string) (boundary.Volume, bool)
	routes   []netip.Prefix // that this host has to other machines
	written  *File          // what Compose has read; nil: this

	composed  bool     // what services it has, and of what labels, only Compose can say
	beside    *inputs  // the file .env
	inputs    []string // files that Compose has read beside it
	workspace string   // in which services may write
	ofOne     bool     // Compose 1 starts it
	loose     bool     // see boundary.Machine
}

// A Service is one service of a compose file.
type Service struct {
	Name     string
	Networks []string     // that it names itself; none: the network default
	shares   string       // network_mode
	joins    []sharedWith // namespaces of other services
	problems []string     // by which no network would hold it
	ports    bool
	replicas string // how many containers it has, where that is not one

	host, config map[string]any    // as the engine would describe it
	mounted      []any             // the same
	keys         map[string]string // that fields of the engine come from
	builds       bool              // its image is built
	tags         []string          // more names of that image
	container    string            // its name, where the file says it

	mounts []string // folders of the host that it can write, absolute
	from   []string // services whose mounts it has, too
	held   bool
	loose  bool
	guards []boundary.Step // mounts of the override file, by which it cannot replace what others mount
	reads  []string        // and all that it has of the host
	inputs []composeInput

	contexts []string // folders and secrets that its image is built of
	copied   []string // what docker compose watch copies into its container
}

// composeText is a compose file, with what has several forms left as it is.
type composeText struct {
	Name     string                          `yaml:"name"`
	Version  yaml.Node                       `yaml:"version"`
	Services map[string]map[string]yaml.Node `yaml:"services"`
	Networks map[string]yaml.Node            `yaml:"networks"`
	Volumes  map[string]yaml.Node            `yaml:"volumes"`
	Configs  map[string]yaml.Node            `yaml:"configs"`
	Secrets  map[string]yaml.Node            `yaml:"secrets"`
	Others   map[string]yaml.Node            `yaml:",inline"`
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
	include := file.Others["include"]
	if len(file.Services) == 0 && isNothing(&include) {
		return nil, fmt.Errorf("%s has no services", path)
	}
	beside := &inputs{workspace: filepath.Dir(path), states: map[string]string{}}
	at, _ := beside.add(".env", filepath.Dir(path), plainPath) // before it is read
	env, err := readEnv(at)
	if err != nil {
		return nil, err
	}
	described := described(path, file, env)
	described.Text, described.beside = text, beside
	return described, nil
}

// described has every service of a file described.
func described(path string, file *composeText, env envFile) *File {
	c := &File{Path: path, Name: file.Name, Version: file.Version.Value, text: file, env: env}
	for _, key := range keysIn(file.Others) {
		if one := file.Others[key]; !strings.HasPrefix(key, "x-") && !isNothing(&one) {
			c.problems = append(c.problems, key+" is a part of the file that egressd does not read: write the services into one file")
			c.composed = c.composed || key == "include"
		}
	}
	for name, keys := range file.Services {
		j := c.judge(name)
		c.Services = append(c.Services, j.describe(keys))
		_, extends := keys["extends"]
		_, labelled := keys["label_file"]
		c.composed = c.composed || extends || labelled
	}
	slices.SortFunc(c.Services, func(a, b Service) int { return strings.Compare(a.Name, b.Name) })
	for range c.Services { // a service may have the mounts of one that has those of another one
		for i := range c.Services {
			c.Services[i].borrow(c)
		}
	}
	return c
}

// borrow adds the mounts of services that volumes_from names.
func (s *Service) borrow(c *File) {
	for _, one := range s.from {
		of := c.Service(serviceOf(one))
		for _, m := range of.mounted {
			if mount, _ := m.(map[string]any); !s.has(filepath.Clean(text(mount["Destination"]))) {
				s.mounted = append(s.mounted, m)
			}
		}
		s.mounts, s.reads = union(s.mounts, of.mounts), union(s.reads, of.reads)
	}
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// Composed reports whether the file extends services of others, includes files, or has labels in files. Then only what [File.Resolved] returns can be judged.
func (c *File) Composed() bool { return c.composed }

func (c *File) judge(name string) *composeJudge {
	return &composeJudge{of: c, file: c.text, service: Service{Name: name}, dir: filepath.Dir(c.Path), home: os.Getenv("HOME"), env: c.env, environ: os.LookupEnv}
}

// parseCompose refuses tags, and a second document: Compose merges it into the first.
func parseCompose(text []byte) (*composeText, error) {
	var file composeText
	var root, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&root); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if at := tagged(&root); at != nil {
		return nil, fmt.Errorf("line %d has the tag %s: readers differ on what it makes of a value; leave it out", at.Line, at.Tag)
	}
	if sizeOf(&root, map[*yaml.Node]int{}) > maxNodes {
		return nil, errors.New("its anchors make too much of it; write less")
	}
	if root.Kind != 0 {
		if err := root.Decode(&file); err != nil {
			return nil, err
		}
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second document begins in it, which Compose merges into the first; keep one")
	}
	return &file, nil
}

// maxNodes bounds how many values a file has, with those of its anchors where these are named. Ten anchors of ten each are
// ten thousand million.
const maxNodes = 100_000

// sizeOf counts the values of a node, up to one more than maxNodes. An anchor that holds itself has that many.
func sizeOf(n *yaml.Node, known map[*yaml.Node]int) int {
	if size, is := known[n]; is {
		return size
	}
	known[n] = maxNodes + 1
	size := 1
	if n.Kind == yaml.AliasNode {
		size = sizeOf(n.Alias, known)
	}
	for _, one := range n.Content {
		size = min(size+sizeOf(one, known), maxNodes+1)
	}
	known[n] = size
	return size
}

// tagged returns a value that has a tag, or nil. By !!null a list looks like nothing, and by !!binary a text like another.
func tagged(n *yaml.Node) *yaml.Node {
	if n.Style&yaml.TaggedStyle != 0 {
		return n
	}
	for _, one := range n.Content {
		if at := tagged(one); at != nil {
			return at
		}
	}
	return nil
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

// Service returns the service of that name, or an empty one.
func (c *File) Service(name string) *Service {
	for i := range c.Services {
		if c.Services[i].Name == name {
			return &c.Services[i]
		}
	}
	return &Service{}
}

// Images are the names of the images that services run.
func (c *File) Images() (all []string) {
	for i := range c.Services {
		if name := text(c.Services[i].config["Image"]); name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// Shares reports whether a service has the network of another one, or none at all: it gets none.
func (s *Service) Shares() bool { return s.shares != "" }

func plainNetwork(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == ""
}
