package devcontainer

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/hostfiles"
	"github.com/egressd/egressd/integrations/jsonc"
	"github.com/egressd/egressd/internal/shell"
)

// A checker looks for settings of a dev container by which it gets around egressd.
type checker struct {
	Options
	at       string
	writable []writableMount
	guards   map[string]bool // paths in the workspace that are mounted in their places; true: read-only
}

// A writableMount is a folder of this machine that somebody in the container can write.
type writableMount struct {
	setting, path string
	workspace     bool // in which the folder of the settings is mounted read-only
	inPlace       bool // it is mounted where it lies in the workspace
}

func (d *Options) check(at string, said map[string]any) error {
	c := &checker{Options: *d, at: at, guards: map[string]bool{}}
	for _, looks := range []func(map[string]any) error{c.lists, c.composed, c.spills, c.known, c.placed, c.collect, c.arguments, c.mounts, c.kept, c.build, c.ownFeature, c.features, c.images, c.variables} {
		if err := looks(said); err != nil {
			return err
		}
	}
	var err error
	d.guards, err = c.missing(said)
	return err
}

func (c *checker) breaks(setting, problem, instead string) error {
	return &BoundaryError{c.at, setting, problem, instead}
}

// lists refuses values of another kind than egressd reads. The tool that starts the container makes words of numbers, and
// a text of a list.
func (c *checker) lists(said map[string]any) error {
	if err := c.defaults("", said); err != nil {
		return err
	}
	build, _ := said["build"].(map[string]any)
	for of, all := range map[string]map[string]any{"": said, "build.": build} {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if all[name] == nil {
				return c.breaks(of+name, "it is null, which tools take for a setting that is there", "leave it out")
			}
		}
	}
	if said["build"] != nil && build == nil {
		return c.breaks("build", "it is no object", `"build": {"dockerfile": "Dockerfile"}`)
	}
	for setting, value := range map[string]any{"image": said["image"], "dockerFile": said["dockerFile"], "context": said["context"],
		"build.dockerfile": build["dockerfile"], "build.context": build["context"], "workspaceFolder": said["workspaceFolder"]} {
		if _, isText := value.(string); value != nil && !isText {
			return c.breaks(setting, "it is no text", `"`+setting+`": "TEXT"`)
		}
	}
	for setting, value := range map[string]any{"runArgs": said["runArgs"], "build.options": build["options"]} {
		all, isList := value.([]any)
		if value != nil && !isList {
			return &integrations.ShapeError{Path: c.at, Problem: setting + " is no list", ByHand: c.byHand()}
		}
		if len(words(value)) != len(all) {
			return c.breaks(setting, "it has more than texts in it", `"`+setting+`": ["--FLAG=VALUE"]`)
		}
	}
	return nil
}

// longDefault finds a variable whose default has a colon. Some tools take what stands before the colon, others all of it.
var longDefault = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{[A-Za-z]*[eE]nv:[^}:]*:[^}:]*:[^}]*\}?`) })

// defaults refuses such variables anywhere in a value.
func (c *checker) defaults(of string, value any) error {
	switch v := value.(type) {
	case string:
		if found := longDefault().FindString(v); found != "" {
			return c.breaks(of, found+": tools differ on where its default ends", "a default without a colon")
		}
	case []any:
		for _, one := range v {
			if err := c.defaults(of, one); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := errors.Join(c.defaults(of, name), c.defaults(strings.TrimSpace(of+" "+name), v[name])); err != nil {
				return err
			}
		}
	}
	return nil
}

// composed is for containers whose networks are Compose's to say.
func (c *checker) composed(said map[string]any) error {
	file := said["dockerComposeFile"]
	if file == nil {
		return nil
	}
	if all, isList := file.([]any); isList && len(all) == 1 {
		file = all[0]
	}
	place, _ := file.(string)
	if place == "" || strings.Contains(place, "$") {
		place = "FILE" // the files in one
	} else if !filepath.IsAbs(place) {
		place = shell.Word(filepath.Join(filepath.Dir(c.at), place))
	}
	return c.breaks("dockerComposeFile", "the networks of its services are in that file, where runArgs do not count, and the dev container tools start them past egressd",
		"egressd init compose -f "+place+", and the devcontainer.sh that it writes in the place of devcontainer up, or attach the editor to the container that its up.sh starts; or leave dockerComposeFile out")
}

const workspaceMount = "workspaceMount"

// mountSources are all paths of this machine in a value of --mount: a volume can be one in its options.
func mountSources(text string) (all []string) {
	for field := range strings.SplitSeq(text, ",") {
		field = strings.TrimSpace(strings.Trim(field, `"`))
		name, _, _ := strings.Cut(strings.ToLower(field), "=")
		if name != "target" && name != "dst" && name != "destination" {
			all = append(all, field[strings.LastIndexByte(field, '=')+1:])
		}
	}
	return all
}

// variables looks for values that would count before ours.
func (c *checker) variables(said map[string]any) error {
	for _, key := range []string{"containerEnv", "remoteEnv"} {
		there, _ := said[key].(map[string]any)
		for _, v := range c.Variables {
			if has, found := there[v.Name]; found && has != v.Value {
				return &integrations.ConflictError{Path: c.at, Setting: key + "." + v.Name, Has: fmt.Sprintf("%q", has), Want: jsonc.Quote(v.Value)}
			}
		}
	}
	return nil
}

// link refuses a source that somebody in the container can put a link in the place of.
func (c *checker) link(setting, source string) error {
	if source == c.SocketFolder {
		return nil
	}
	if place := c.replaceable(setting, source); place != "" && !c.hold(source, false) {
		return c.breaks(setting, source+" lies in "+place+": somebody in the container can put a link in its place, and the next start mounts what that leads to, such as the engine's socket",
			"leave it out, or mount a volume, or a folder outside of what can be written")
	}
	return nil
}

// hold has a path of the workspace mounted in its place, with each folder on the way. The kernel renames and replaces no such file
// or folder. A fixed path is read-only there. If another mount has the path, too, or it lies behind a link, hold returns false.
func (c *checker) hold(path string, fixed bool) bool {
	for _, w := range c.writable {
		if !w.workspace && !w.inPlace && hostfiles.ThroughFolder(path, w.path) {
			return false
		}
	}
	steps := boundary.Steps(c.Folder, "", path)
	for i, s := range steps {
		if strings.ContainsAny(s.Destination, ",\"\r\n$") {
			return false
		}
		c.guards[s.Destination] = c.guards[s.Destination] || fixed && i == len(steps)-1
	}
	return len(steps) > 0
}

// missing returns the mounts that hold paths in their places, but for those of the settings. Any mount there holds a path. A
// fixed path must be read-only.
func (c *checker) missing(said map[string]any) (all []string, err error) {
	there := c.targets(said)
	for _, path := range slices.Sorted(maps.Keys(c.guards)) {
		mount := "source=${localWorkspaceFolder}/" + path + ",target=${containerWorkspaceFolder}/" + path + ",type=bind"
		if c.guards[path] {
			mount += ",readonly"
		}
		at := c.inside(said).Replace("${containerWorkspaceFolder}/" + path)
		switch {
		case !slices.Contains(there, at):
			all = append(all, mount)
		case c.guards[path] && !slices.Contains(words(said["mounts"]), mount):
			return nil, c.breaks("mounts", at+" has another mount, and somebody in the container could change "+path+", which the next start or build reads", strconv.Quote(mount))
		}
	}
	return all, nil
}

// targets are where the settings mount something.
func (c *checker) targets(said map[string]any) (all []string) {
	mounts, _ := said["mounts"].([]any)
	texts := words(said["mounts"])
	for _, m := range mounts {
		if object, ok := m.(map[string]any); ok {
			texts = append(texts, fmt.Sprintf("target=%v", object["target"]))
		}
	}
	args, err := c.readArguments(words(said["runArgs"]))
	for _, a := range args {
		switch parts := strings.Split(a.value, ":"); a.name {
		case "--mount":
			texts = append(texts, a.value)
		case "--volume", "-v":
			texts = append(texts, "target="+parts[min(1, len(parts)-1)])
		case "--tmpfs":
			texts = append(texts, "target="+parts[0])
		}
	}
	for _, text := range texts {
		for _, at := range mountTargets(c.inside(said).Replace(c.expanded(text))) {
			all = append(all, path.Clean(at))
		}
	}
	if err != nil { // it was read before
		return nil
	}
	return all
}

// inside puts in where the workspace is in the container.
func (c *checker) inside(said map[string]any) *strings.Replacer {
	folder, _ := said["workspaceFolder"].(string)
	if folder == "" {
		folder = c.usualPlace(gitRoot(c.Folder))
	}
	folder = path.Clean(c.expanded(folder))
	return strings.NewReplacer("${containerWorkspaceFolder}", folder, "${containerWorkspaceFolderBasename}", path.Base(folder))
}

// collect finds what can be written, of all settings, before any is judged by it.
func (c *checker) collect(said map[string]any) error {
	c.writable = []writableMount{{setting: workspaceMount, path: c.Folder, workspace: true}}
	if mount, ok := said[workspaceMount].(string); ok {
		c.writes(workspaceMount, mount)
	}
	mounts, _ := said["mounts"].([]any)
	for _, m := range mounts {
		before := len(c.writable)
		switch m := m.(type) {
		case string:
			c.writes("mounts", m)
		case map[string]any:
			source, _ := m["source"].(string)
			c.add("mounts", c.expanded(source))
		}
		for i := before; i < len(c.writable); i++ {
			c.writable[i].inPlace = c.isInPlace(said, m, c.writable[i].path)
		}
	}
	args, err := c.readArguments(words(said["runArgs"]))
	for _, a := range args {
		switch a.name {
		case "--volume", "-v":
			parts := strings.Split(c.expanded(a.value), ":")
			if len(parts) < 3 || !slices.Contains(strings.Split(parts[2], ","), "ro") {
				c.add("runArgs", parts[0])
			}
		case "--mount":
			c.writes("runArgs", a.value)
		}
	}
	return err
}

// isInPlace reports whether a mount of a path is where the path lies in the workspace.
func (c *checker) isInPlace(said map[string]any, mount any, source string) bool {
	rest, in := strings.CutPrefix(source, c.Folder+"/")
	text, _ := mount.(string)
	at := mountTargets(c.inside(said).Replace(c.expanded(text)))
	return in && len(at) == 1 && path.Clean(at[0]) == c.inside(said).Replace("${containerWorkspaceFolder}/"+rest)
}

// writes adds what a value of --mount has of this machine, unless it is read-only.
func (c *checker) writes(setting, text string) {
	text = c.expanded(text)
	readOnly := false
	for field := range strings.SplitSeq(text, ",") {
		name, value, has := strings.Cut(strings.ToLower(strings.TrimSpace(field)), "=")
		if name == "readonly" || name == "ro" { // the last one counts
			readOnly = !has || value == "true" || value == "1"
		}
	}
	if readOnly && !strings.Contains(text, `"`) { // between quotes it may be a piece of another option
		return
	}
	for _, source := range mountSources(text) {
		c.add(setting, source)
	}
}

func (c *checker) add(setting, source string) {
	if strings.HasPrefix(source, ".") {
		source = filepath.Join(c.Folder, source)
	}
	if !filepath.IsAbs(source) || setting == workspaceMount && hostfiles.ResolveLinks(source) == hostfiles.ResolveLinks(c.Folder) {
		return
	}
	c.writable = append(c.writable, writableMount{setting: setting, path: filepath.Clean(source)})
}

// kept judges what is mounted for egressd, and the settings: in none of what can be written.
func (c *checker) kept(map[string]any) error {
	for _, w := range c.writable {
		in := func(path string) bool {
			return hostfiles.InFolder(path, w.path) || hostfiles.ThroughFolder(path, w.path)
		}
		feature := filepath.Join(filepath.Dir(c.at), featureFolder)
		switch {
		case c.Program != "" && in(c.Program):
			return c.breaks(w.setting, w.path+" has "+c.Program+" in it, which somebody in the container could change", "install egressd in a folder that the container does not write")
		case !w.workspace && (in(c.at) || in(feature)):
			return c.breaks(w.setting, w.path+" has "+c.at+" in it, or what belongs to it, which somebody in the container could change", "leave it out, or mount it read-only")
		case hostfiles.ThroughFolder(c.SocketFolder, w.path) || hostfiles.InFolder(w.path, feature):
			return c.breaks(w.setting, w.path+" is where egressd's own files are, which somebody in the container could change", "leave it out, or mount it read-only")
		}
	}
	return nil
}

// replaceable is where a source lies that somebody in the container can put a link in the place
// of, or "".
func (c *checker) replaceable(setting, source string) string {
	for _, w := range c.writable {
		settings := filepath.Join(w.path, ".devcontainer")
		switch {
		case w.workspace && setting == workspaceMount:
		case w.workspace && hostfiles.Under(source, settings) && hostfiles.ResolveLinks(settings) == filepath.Join(hostfiles.ResolveLinks(w.path), ".devcontainer"):
		case hostfiles.ThroughFolder(source, w.path) && w.workspace:
			return "the workspace"
		case hostfiles.ThroughFolder(source, w.path):
			return w.path + ", which " + w.setting + " has writable"
		}
	}
	return ""
}

// expanded puts in what the tool does that starts the container. A variable that is not known before stays as it is.
func (c *checker) expanded(text string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		inside, after, closed := strings.Cut(rest, "}")
		b.WriteString(before)
		if !found || !closed {
			return b.String()
		}
		kind, name, _ := strings.Cut(inside, ":")
		name, fallback, _ := strings.Cut(name, ":")
		switch kind {
		case "localEnv", "env":
			value, ok := c.variable(name)
			if !ok {
				value = fallback
			}
			b.WriteString(value)
		case "localWorkspaceFolder":
			b.WriteString(c.Folder)
		case "localWorkspaceFolderBasename":
			b.WriteString(filepath.Base(c.Folder))
		default:
			b.WriteString("${" + inside + "}")
		}
		text = after
	}
}

func (d *Options) variable(name string) (value string, found bool) {
	for _, v := range d.Environ {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			value, found = rest, true
		}
	}
	return value, found
}

func words(list any) (all []string) {
	elements, _ := list.([]any)
	for _, e := range elements {
		if s, ok := e.(string); ok {
			all = append(all, s)
		}
	}
	return all
}
