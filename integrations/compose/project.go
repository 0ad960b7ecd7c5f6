package compose

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/hostfiles"
	"github.com/egressd/egressd/internal/shell"
)

// A ProjectName is the name under which Compose keeps containers, networks and volumes. Two folders with one name share
// these.
type ProjectName struct {
	Name   string
	Chosen bool // by the user or by the name of the folder, and not by a file of the project
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

// Call gives the file the name under which Compose starts it: a volume or network of that name is the project's own.
func (c *File) Call(p ProjectName) { c.Name, c.text.Name = p.Name, p.Name }

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

// readEnv reads .env of a folder.
func readEnv(dir string) (all envFile, err error) {
	text, err := integrations.ReadText(filepath.Join(dir, ".env"))
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

// optionPrefixes begin names that programs of the host read: Compose, docker, its builder, the loader of programs.
var optionPrefixes = []string{"COMPOSE_", "DOCKER_", "BUILDKIT_", "BUILDX_", "OTEL_", "LD_", "DYLD_"}

// passedOn are the lines with variables that a compose file names, and no program of the host.
func (e envFile) passedOn(file string) string {
	var b strings.Builder
	b.WriteString("# Lines of .env that the compose file names. Made by egressd.\n")
	for _, line := range e {
		f := envLine().FindStringSubmatch(line)
		if f == nil || !names(file, f[1]) || slices.ContainsFunc(optionPrefixes, func(p string) bool { return strings.HasPrefix(f[1], p) }) {
			continue
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// secretWords are parts of names of variables that hold keys and passwords.
var secretWords = []string{"TOKEN", "SECRET", "PASS", "KEY", "CREDENTIAL", "AUTH"}

// Secrets returns the names of variables that hold secrets, by their names, and that the file has Compose take from an
// environment.
func (c *File) Secrets(environ []string) (all []string) {
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if names(string(c.Text), name) && slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(strings.ToUpper(name), w) }) {
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
