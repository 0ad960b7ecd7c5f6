package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// A ProjectState says how a working tree stands to what was trusted of it.
type ProjectState string

const (
	projectNone      ProjectState = "none"      // it has no project file, and never had one
	ProjectUntrusted ProjectState = "untrusted" // nobody has trusted it
	ProjectTrusted   ProjectState = "trusted"   // it is what was trusted
	ProjectChanged   ProjectState = "changed"   // it is something else than what was trusted
)

// A Project is the working tree of one sandbox. What counts of it is never read
// from the tree itself but from the copy of what was trusted, so that the sandbox
// changes nothing by changing the tree, except that it opens nothing any more.
type Project struct {
	Sandbox string
	Dir     string
	State   ProjectState
	why     error        // why it is changed, where it could not be read
	Pin     *Pin         // what was trusted; nil where nothing was
	File    *policy.File // of the pin
}

// ProjectsEvery is how often the daemon looks at the working trees: whoever is in them
// could make any number of events.
const ProjectsEvery = 2 * time.Second

// ReadProjects reads the working trees of all sandboxes, once.
func (c *Config) ReadProjects() ([]*Project, error) {
	if c.Projects != nil {
		return c.Projects, nil
	}
	all := []*Project{}
	for _, s := range c.File.Sandboxes {
		if s.Project == "" {
			continue
		}
		p, err := readProject(s.Name, c.projectDir(s.Project))
		if err != nil {
			return nil, hint.Misused(err, "egressd trust --revoke "+shell.Word(c.projectDir(s.Project))+", then egressd trust "+shell.Word(c.projectDir(s.Project)))
		}
		all = append(all, p)
	}
	c.Projects = all
	return all, nil
}

// projectDir is a working tree by its absolute path. Links in it stay: what they lead
// to may be up to the sandbox.
func (c *Config) projectDir(dir string) string {
	return filepath.Clean(c.absolute(dir))
}

func readProject(sandbox, dir string) (*Project, error) {
	p := &Project{Sandbox: sandbox, Dir: dir}
	store, err := OpenTrustStore()
	if err != nil {
		p.State, p.why = ProjectUntrusted, err
		return p, nil
	}
	if p.Pin, err = store.Find(dir); err != nil {
		return nil, err
	}
	p.State, p.why = p.Now()
	if p.Pin == nil {
		return p, nil
	}
	if p.File, err = p.Pin.Files.Parse(dir); err != nil {
		return nil, fmt.Errorf("the trusted project of sandbox %s: %w", sandbox, err)
	}
	return p, nil
}

// Now compares the tree with what was trusted.
func (p *Project) Now() (ProjectState, error) {
	if p.Pin == nil {
		if _, err := os.Lstat(filepath.Join(p.Dir, TreeFolder, TreeFile)); errors.Is(err, fs.ErrNotExist) {
			return projectNone, nil
		}
		return ProjectUntrusted, nil
	}
	found, err := ReadTree(p.Dir, p.Pin.Files)
	if err != nil || !found.Equal(p.Pin.Files) {
		return ProjectChanged, err
	}
	return ProjectTrusted, nil
}

// parts is the Rego of the project.
func (p *Project) parts() []RegoPart {
	if p.File == nil || len(p.File.Rego) == 0 {
		return nil
	}
	folder := filepath.Join(p.Dir, TreeFolder)
	part := RegoPart{
		At: "rego", File: filepath.Join(folder, TreeFile), Sandbox: p.Sandbox, Source: p.File.Rego[0],
		Options: rego.Options{Package: "egress.project", Layer: policy.Project, Bare: true},
	}
	for _, f := range p.Pin.Files {
		if f.Name != TreeFile {
			part.Sources = append(part.Sources, rego.Source{Name: filepath.Join(folder, filepath.FromSlash(f.Name)), Text: f.Text})
		}
	}
	return []RegoPart{part}
}

// ProjectWarnings say which projects open nothing, and what to type. The
// configuration has been compiled.
func (c *Config) ProjectWarnings() (said []string) {
	for _, p := range c.Projects {
		if text := p.Warning(c); text != "" {
			said = append(said, fmt.Sprintf("%s of sandbox %s %s", p.Path(), p.Sandbox, text))
		}
	}
	return said
}

// WarningsFor are those about the projects of one sandbox.
func (c *Config) WarningsFor(sandbox string) (said []string) {
	only := *c
	only.Projects = slices.DeleteFunc(slices.Clone(c.Projects), func(p *Project) bool { return p.Sandbox != sandbox })
	return only.ProjectWarnings()
}

// Path is that of the project's file.
func (p *Project) Path() string { return filepath.Join(p.Dir, TreeFolder, TreeFile) }

// Warning says what is to be known about the project, or "".
func (p *Project) Warning(c *Config) string {
	again := "egressd trust " + shell.Word(p.Dir)
	switch {
	case p.State == ProjectUntrusted && p.why != nil:
		return fmt.Sprintf("counts as absent, since nothing can be trusted (%v); set HOME", p.why)
	case p.State == ProjectUntrusted:
		return "is not trusted, so it counts as absent; " + again
	case p.State == ProjectChanged && p.why != nil:
		return fmt.Sprintf("cannot be read as it was trusted (%v), so it opens nothing, and what it denied stays denied; %s", p.why, again)
	case p.State == ProjectChanged:
		return "is not what was trusted, so it opens nothing, and what it denied stays denied; " + again
	case p.State == ProjectTrusted && p.File.Opens() && !c.Ceiled():
		return "opens nothing, since there is no ceiling; write one into " + c.Path
	}
	return ""
}

// Ceiled reports whether there is a ceiling. The configuration has been compiled.
func (c *Config) Ceiled() bool {
	for _, f := range c.files() {
		if f.Ceiled {
			return true
		}
	}
	for _, e := range c.Rules {
		if e.Ceiling() != nil {
			return true
		}
	}
	return false
}

// ProjectsMoved reports whether a working tree has come to be, or to be no longer,
// what was trusted.
func (c *Config) ProjectsMoved() bool {
	for _, p := range c.Projects {
		if state, _ := p.Now(); state != p.State {
			return true
		}
	}
	return false
}

// enterTrust enters the folder in which something may be trusted.
func (c *Config) enterTrust(enter func(folder string)) {
	named := func(s policy.SandboxRules) bool { return s.Project != "" }
	if store, err := OpenTrustStore(); err == nil && slices.ContainsFunc(c.File.Sandboxes, named) {
		enterNearest(enter, string(store))
	}
}

// projectStates passes on what of the projects the policy depends on.
func (c *Config) projectStates(part func([]byte)) {
	for _, p := range c.Projects {
		digest := ""
		if p.Pin != nil {
			digest = p.Pin.Digest
		}
		part(fmt.Appendf(nil, "%s %s %s %s", p.Sandbox, p.Dir, p.State, digest))
	}
}

// TreesAt returns the working tree that a person means by its name in the
// configuration, and the sandboxes whose it is.
func (c *Config) TreesAt(arg string) (dir string, sandboxes []string) {
	dir = arg
	if absolute, err := filepath.Abs(arg); err == nil {
		dir = absolute
	}
	meant, err := os.Stat(dir)
	for _, s := range c.File.Sandboxes {
		if s.Project == "" {
			continue
		}
		named := c.projectDir(s.Project)
		there, errNamed := os.Stat(named)
		if named == dir || err == nil && errNamed == nil && os.SameFile(meant, there) {
			dir, sandboxes = named, append(sandboxes, s.Name)
		}
	}
	return dir, sandboxes
}
