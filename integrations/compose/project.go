package compose

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/integrations/hostfiles"
	"github.com/egressd/egressd/internal/shell"
)

// A ProjectName is the name under which Compose keeps containers, networks and volumes. Two folders with one name share
// these.
type ProjectName struct {
	Name   string
	Chosen bool // the user chose the name, or it is the folder's; else a file of the project did
}

// projectVariable names the project, in the environment and in .env.
const projectVariable = "COMPOSE_PROJECT_NAME"

// FindProject returns the project as Compose finds it. given is the user's own choice, or empty. The user's environment
// counts when up.sh starts.
func (c *File) FindProject(given string) (p ProjectName, err error) {
	folder := plainProject(filepath.Base(filepath.Dir(c.Path)))
	for _, from := range []ProjectName{{given, true}, {c.env.value(projectVariable), false}, {c.Name, false}, {folder, true}} {
		if from.Name == "" {
			continue
		}
		if plainProject(from.Name) != from.Name {
			return p, fmt.Errorf("the project is called %q: Compose takes lower-case letters, digits, dashes and underscores", from.Name)
		}
		from.Chosen = from.Chosen || from.Name == folder
		return from, nil
	}
	return p, fmt.Errorf("the folder %s gives the project no name", filepath.Dir(c.Path))
}

// Started is the project as up.sh starts it: by the user's environment, if that names one.
func (p ProjectName) Started() ProjectName {
	if name := os.Getenv(projectVariable); name != "" {
		return ProjectName{name, true}
	}
	return p
}

// Call gives the file the name under which Compose starts it. A volume or network with that name before its own belongs to the
// project. has is asked for any other name.
func (c *File) Call(p ProjectName, has func(kind, name string) bool, volume func(name string) (boundary.Volume, bool)) {
	c.Name, c.has, c.volume = p.Name, has, volume
}

// StartedByOne has the file be one that Compose 1 starts, as it is written.
func (c *File) StartedByOne(is bool) { c.ofOne = is }

// Within gives the file the folder in which services may write.
func (c *File) Within(workspace string) { c.workspace = workspace }

// Avoid gives the file the prefixes that this host reaches on other machines. No network of the file may have these.
func (c *File) Avoid(routes []netip.Prefix) { c.routes = routes }

// owns reports whether a volume or network of the file is the project's own, by its key and the name that the file gives it.
func (c *File) owns(kind, key, name string) bool {
	return name == c.Name+"_"+key || engineName().MatchString(name) && !isOwn(name) && c.has != nil && c.has(kind, name)
}

// engineName is what the engine takes for a name. Compose finds a volume /etc under the name etc, and has the engine mount the
// folder /etc then. A network is found by a whole ID, too.
var engineName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)
})

// plainProject is text as Compose makes a name of a project of it.
func plainProject(text string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return -1
	}, strings.ToLower(text))
	return strings.TrimLeft(name, "-_")
}

// hasImage reports whether a build may take the name of an image. Compose 2 labels what it builds. Other images that were built on
// this machine have no digest of a registry.
func (p ProjectName) hasImage(name string) bool {
	out, err := exec.Command("docker", "image", "inspect", "--format", "{{json .}}", "--", name).Output()
	var is struct {
		RepoDigests []string
		Config      struct{ Labels map[string]string }
	}
	if err != nil || json.Unmarshal(out, &is) != nil {
		return true // there is none
	}
	if project := is.Config.Labels["com.docker.compose.project"]; project != "" {
		return project == p.Name
	}
	return len(is.RepoDigests) == 0
}

// Taken returns why the project belongs to another folder, as the engine says, or "". The engine keeps no folder for a
// network or a volume. So without a container of this folder these count as another's, if a file has chosen the name.
// asked reports whether an engine has answered.
func (p ProjectName) Taken(dir string) (why string, asked bool) {
	list := func(args ...string) []string {
		out, err := exec.Command("docker", append(args, "--filter", "label=com.docker.compose.project="+p.Name)...).Output()
		asked = err == nil
		return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
	}
	folders := list("ps", "-a", "--format", `{{.Label "com.docker.compose.project.working_dir"}}`)
	for _, folder := range folders {
		if hostfiles.ResolveLinks(folder) != hostfiles.ResolveLinks(dir) {
			return "the engine has containers of " + folder + " under that name", true
		}
	}
	if p.Chosen || len(folders) > 0 {
		return "", asked
	}
	if all := append(list("volume", "ls", "-q"), list("network", "ls", "--format", "{{.Name}}")...); len(all) > 0 {
		return "a file of the project chose the name, and the engine has " + all[0] + ", perhaps another project's", true
	}
	return "", asked
}

// Has reports whether a volume, network or image (kind) may have a name that the file gives it. The engine has none of that name, or
// it is the project's own. PROJECT_NAME is kept for what Compose names, of this project or of one that starts later.
func (p ProjectName) Has(kind, name string) bool {
	if kind == "image" {
		return p.hasImage(name)
	}
	if strings.Contains(name, "_") {
		return false
	}
	out, err := exec.Command("docker", kind, "ls", "--filter", "name="+name, "--format", "{{.Name}}\t{{.Label \"com.docker.compose.project\"}}").Output()
	for line := range strings.Lines(string(out)) {
		if is, project, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); is == name && project != p.Name {
			return false
		}
	}
	return err == nil
}

// Volume returns the volume that the engine has under a name. Compose takes it as it is, whatever a file says by now.
func (p ProjectName) Volume(name string) (v boundary.Volume, found bool) {
	out, err := exec.Command("docker", "volume", "inspect", "--format", "{{json .}}", "--", name).Output()
	if err != nil {
		return v, false
	}
	var is struct {
		Driver          string
		Options, Labels map[string]string
	}
	if json.Unmarshal(out, &is) != nil {
		return boundary.Volume{Unknown: true}, true
	}
	return boundary.Volume{Driver: is.Driver, Options: is.Options, Unknown: is.Labels["com.docker.compose.project"] != p.Name}, true
}

// AskEngine notes what the engine says of itself: the folder in which it keeps containers, images and volumes, and whether
// it is loose. It notes nothing if the engine does not say.
func AskEngine(m *boundary.Machine) {
	out, err := exec.Command("docker", "info", "--format", "{{.DockerRootDir}}{{range .SecurityOptions}}\n{{.}}{{end}}").Output()
	said := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || !filepath.IsAbs(said[0]) {
		return
	}
	components, err := exec.Command("docker", "version", "--format", "{{range .Server.Components}}{{.Name}} {{end}}").Output()
	m.Engines, m.Loose = []string{said[0]}, err != nil || boundary.IsLoose(said[1:], strings.Contains(string(components), "Podman"))
}

// Starts reports whether a script up.sh starts this project in a folder: it was accepted before.
func (p ProjectName) Starts(script []byte, dir string) bool {
	return bytes.Contains(script, []byte(p.options(dir)))
}

// options are those of Compose for a project.
func (p ProjectName) options(dir string) string {
	return fmt.Sprintf(`--project-directory %s -p "${%s:-%s}"`, shell.Quote(dir), projectVariable, p.Name)
}

// An envFile is a file .env as far as it is passed on: lines NAME=VALUE. Compose would take options of its own from others,
// and the older Compose the address of an engine.
type envFile []string

var envLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=(.*)$`)
})

// envPath is the file .env that Compose would read.
func (c *File) envPath() string { return filepath.Join(filepath.Dir(c.Path), ".env") }

// readEnv reads a file .env.
func readEnv(path string) (all envFile, err error) {
	text, err := integrations.ReadText(path)
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.TrimRight(line, "\r\n"))
	}
	return all, err
}

// value is the value of a variable, without quotes.
func (e envFile) value(name string) (is string) {
	for _, line := range e {
		if f := envLine().FindStringSubmatch(line); f != nil && f[1] == name {
			value, _, _ := strings.Cut(f[2], " #")
			is = strings.Trim(strings.TrimSpace(value), `'"`)
		}
	}
	return is
}

// profilesVariable chooses services of the file, all of which are judged.
const profilesVariable = "COMPOSE_PROFILES"

// optionPrefixes begin names that programs of the host read: Compose, docker, its builder, the loader of programs.
var optionPrefixes = []string{"COMPOSE_", "DOCKER_", "BUILDKIT_", "BUILDX_", "OTEL_", "LD_", "DYLD_"}

func isOption(name string) bool {
	return slices.ContainsFunc(optionPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// readAlike reports whether all readers of files .env read a value as the rest of its line. Some take a carriage return for the end of
// a line, and what follows a closing quote for another variable.
func readAlike(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r != '\t' && unicode.IsControl(r) }) && wholeValue().MatchString(strings.TrimSpace(value))
}

var wholeValue = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:[^"'].*|"(?:[^"\\]|\\[^"\\])*"(?:\s+#.*)?|'(?:[^'\\]|\\[^'\\])*'(?:\s+#.*)?)?$`)
})

// differing are the names of variables that a compose file names, and whose values readers differ on.
func (e envFile) differing(file string, all bool) (names []string) {
	for _, line := range e {
		if f := envLine().FindStringSubmatch(line); f != nil && isPassedOn(f[1], file, all) && !readAlike(f[2]) {
			names = append(names, f[1])
		}
	}
	return names
}

func isPassedOn(name, file string, all bool) bool {
	return (all || names(file, name)) && !isOption(name) || name == profilesVariable
}

// ofProfiles are the lines that choose profiles.
func (e envFile) ofProfiles() (all envFile) {
	for _, line := range e {
		if f := envLine().FindStringSubmatch(line); f != nil && f[1] == profilesVariable {
			all = append(all, line)
		}
	}
	return all
}

// passed is the value of a variable that is passed on, as it is written.
func (e envFile) passed(name string) (value string, is bool) {
	for _, line := range e {
		if f := envLine().FindStringSubmatch(line); f != nil && f[1] == name && !isOption(name) {
			value, is = strings.TrimSpace(f[2]), true
		}
	}
	return value, is
}

// passedOn are the lines with variables that a compose file names, or with all any variables, but for those of programs of the host. The
// choice of profiles is among them.
func (e envFile) passedOn(file string, all bool) string {
	var b strings.Builder
	b.WriteString("# Lines of .env that the compose file names. Made by egressd.\n")
	for _, line := range e {
		if f := envLine().FindStringSubmatch(line); f != nil && isPassedOn(f[1], file, all) && readAlike(f[2]) {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// Secrets returns the names of variables that hold secrets, by their names, and that the file has Compose take from an
// environment. settled is the file as Compose reads it, or nil: another file may name them.
func (c *File) Secrets(environ []string, settled *File) (all []string) {
	text := string(c.Text)
	if settled != nil {
		text += "\n" + string(settled.Text)
	}
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if names(text, name) && boundary.IsSecretVariable(name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// names reports whether a text has a name as a word of its own.
func names(text, name string) bool {
	for rest := text; ; {
		i := strings.Index(rest, name)
		if i < 0 {
			return false
		}
		before, after := rest[:i], rest[i+len(name):]
		if (before == "" || !isWord(before[len(before)-1])) && (after == "" || !isWord(after[0])) {
			return true
		}
		rest = after
	}
}

func isWord(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
