package compose

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/hostfiles"
	"go.yaml.in/yaml/v3"
)

// Inputs are the files that Compose reads beside a compose file: by env_file, label_file, extends and include. Services may get what
// is in them. The paths are judged. A path must lead to the same file when Compose reads the file.
type inputs struct {
	judge     *composeJudge     // of the file
	workspace string            // in which a service may write
	files     []string          // absolute
	states    map[string]string // of each file, folder and link on the way
	problems  []string
	unread    []string // why Compose is not to read a file: it may have no end
}

// ErrInput is for a file that Compose would have to read, and that is no plain file.
var ErrInput = errors.New("a file that Compose reads is no plain file")

// readInputs finds the inputs of a file.
func (c *File) readInputs() *inputs {
	in := &inputs{judge: c.judge(""), workspace: c.workspace, states: map[string]string{}}
	in.read(c.text, filepath.Dir(c.Path), in.judge.expanded)
	return in
}

// An expander puts in what variables stand for. known reports whether that is certain.
type expander func(text string) (path string, known bool)

// plainPath is an expander for files whose variables only Compose knows.
func plainPath(text string) (path string, known bool) { return text, !strings.Contains(text, "$") }

// read finds the inputs that a file names. dir is where its paths begin.
func (in *inputs) read(text *composeText, dir string, expand expander) {
	for _, name := range slices.Sorted(maps.Keys(text.Services)) {
		keys := text.Services[name]
		value := func(key string) *yaml.Node {
			n := keys[key]
			return resolved(&n)
		}
		for _, key := range []string{"env_file", "label_file"} {
			for _, file := range pathsOf(value(key)) {
				in.add(file, dir, expand)
			}
		}
		if from := value("extends"); from.Kind == yaml.MappingNode {
			keys := in.judge.only("extends", from, "file service")
			file := keys["file"]
			if place := resolved(&file).Value; place != "" {
				in.follow(place, dir, expand, "")
			}
		}
	}
	include := text.Others["include"]
	for _, one := range resolved(&include).Content {
		in.include(resolved(one), dir, expand)
	}
}

// include follows one element of the list include. A project that is included has variables in a file of its own.
func (in *inputs) include(one *yaml.Node, dir string, expand expander) {
	keys := map[string]yaml.Node{"path": *one}
	if one.Kind == yaml.MappingNode {
		keys = in.judge.only("include", one, "path env_file project_directory")
	}
	value := func(key string) *yaml.Node {
		n := keys[key]
		return resolved(&n)
	}
	paths := pathsOf(value("path"))
	if len(paths) == 0 {
		return
	}
	first, known := expand(paths[0])
	project := filepath.Dir(from(first, dir))
	if place := value("project_directory").Value; place != "" {
		var sure bool
		place, sure = expand(place)
		project, known = from(place, dir), known && sure
	}
	if !known {
		in.unknown(paths[0])
		return
	}
	variables := pathsOf(value("env_file"))
	for _, file := range variables {
		in.add(file, dir, expand)
	}
	if len(variables) == 0 {
		in.add(filepath.Join(project, ".env"), dir, plainPath)
	}
	for _, path := range paths {
		in.follow(path, dir, expand, project)
	}
}

// follow reads a compose file. Its paths begin in project, or in its own folder.
func (in *inputs) follow(place, dir string, expand expander, project string) {
	path, isNew := in.add(place, dir, expand)
	if !isNew {
		return
	}
	text, err := integrations.ReadText(path)
	if err != nil || text == nil { // add has said so, or Compose says that it is missing
		return
	}
	file, err := parseCompose(text)
	if err != nil {
		in.problems = append(in.problems, fmt.Sprintf("%s: %v", path, err))
		return
	}
	if project == "" {
		project = filepath.Dir(path)
	}
	in.read(file, project, plainPath)
}

// add notes a file. isNew is false for one that is known already, or whose path is not.
func (in *inputs) add(place, dir string, expand expander) (path string, isNew bool) {
	place, known := expand(place)
	if !known || hostfiles.Climbs(place, in.workspace) || strings.Contains(place, "://") || strings.HasPrefix(place, "oci:") || strings.HasPrefix(place, "git@") {
		in.unknown(place)
		return "", false
	}
	path = from(place, dir)
	if slices.Contains(in.files, path) {
		return path, false
	}
	in.files = append(in.files, path)
	if _, err := integrations.ReadText(path); err != nil {
		in.unread = append(in.unread, err.Error())
	}
	maps.Copy(in.states, in.statesOf(path))
	return path, true
}

func (in *inputs) unknown(place string) {
	in.problems = append(in.problems, fmt.Sprintf("%.200s: it is read from elsewhere, or where its variables or .. lead is up to Compose; write the path of a file of this machine", place))
}

// from is a path that begins in a folder.
func from(place, dir string) string {
	if filepath.IsAbs(place) {
		return filepath.Clean(place)
	}
	return filepath.Join(dir, place)
}

// pathsOf are a text, or a list of texts and of {path: TEXT}.
func pathsOf(n *yaml.Node) (all []string) {
	if n.Kind == yaml.ScalarNode && !isNothing(n) {
		return []string{n.Value}
	}
	for _, one := range n.Content {
		one = resolved(one)
		var keys map[string]yaml.Node
		if one.Kind == yaml.MappingNode && one.Decode(&keys) == nil {
			path := keys["path"]
			one = resolved(&path)
		}
		all = append(all, one.Value)
	}
	return all
}

// same reports whether no input has changed. Folders and links on the way to an input count.
func (in *inputs) same() bool {
	for _, file := range in.files {
		for path, state := range in.statesOf(file) {
			if in.states[path] != state {
				return false
			}
		}
	}
	return true
}

// statesOf are the states of what lies on the way to a file. Outside of the workspace nothing is expected to put a folder in the
// place of another one for a moment.
func (in *inputs) statesOf(path string) map[string]string {
	all := map[string]string{}
	for links := 40; path != "" && links > 0; links-- {
		path = in.walk(path, all)
	}
	return all
}

// walk notes states up to the first link, and returns the path that continues there.
func (in *inputs) walk(path string, all map[string]string) (onward string) {
	at, rest := "/", strings.Split(strings.Trim(filepath.Clean(path), "/"), "/")
	for i, name := range rest {
		at = filepath.Join(at, name)
		info, err := os.Lstat(at)
		if err != nil {
			all[at] = "missing"
			return ""
		}
		all[at] = stateOf(info, at != in.workspace && hostfiles.Under(at, in.workspace) || !info.IsDir())
		target, err := os.Readlink(at)
		if err != nil {
			continue
		}
		return filepath.Join(from(target, filepath.Dir(at)), filepath.Join(rest[i+1:]...))
	}
	return ""
}
