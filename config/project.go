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
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

// A ProjectState compares a working tree with its trusted copy.
type ProjectState string

const (
	projectNone      ProjectState = "none"      // no project file and no trusted copy
	ProjectUntrusted ProjectState = "untrusted" // nobody has trusted it
	ProjectTrusted   ProjectState = "trusted"   // equal to the trusted copy
	ProjectChanged   ProjectState = "changed"   // differs from the trusted copy
)

// A Project is the working tree of a sandbox. Its policy comes from the trusted copy and never from the
// tree. A sandbox that changes the tree only loses what the project opened.
type Project struct {
	Sandbox string
	Dir     string
	State   ProjectState
	why     error      // error that prevented the comparison
	Pin     *Pin       // trusted copy, or nil
	File    *file.File // parsed from the trusted copy
}

// ProjectsEvery is the interval at which the daemon checks working trees. File events would let the
// sandbox flood the daemon.
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
			return nil, hint.Misused(err, "egressd policy trust --revoke "+shell.Word(c.projectDir(s.Project))+", then egressd policy trust "+shell.Word(c.projectDir(s.Project)))
		}
		all = append(all, p)
	}
	c.Projects = all
	return all, nil
}

// projectDir returns the absolute path of a working tree. It keeps links, since the sandbox may control
// their targets.
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

// Now compares the tree with the trusted copy.
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

func (p *Project) parts() []RegoPart {
	if p.File == nil || len(p.File.Rego) == 0 {
		return nil
	}
	folder := filepath.Join(p.Dir, TreeFolder)
	part := RegoPart{
		At: "rego", File: filepath.Join(folder, TreeFile), Sandbox: p.Sandbox, Source: p.File.Rego[0],
		Options: rego.Options{Package: "egress.project", Layer: policy.Project, Source: "rego", Bare: true},
	}
	for _, f := range p.Pin.Files {
		if f.Name != TreeFile {
			part.Sources = append(part.Sources, rego.Source{Name: filepath.Join(folder, filepath.FromSlash(f.Name)), Text: f.Text})
		}
	}
	return []RegoPart{part}
}

// ProjectWarnings lists the projects that open nothing, with the command to type. The configuration must
// be compiled.
func (c *Config) ProjectWarnings() (said []string) {
	for _, p := range c.Projects {
		if text := p.Warning(c); text != "" {
			said = append(said, fmt.Sprintf("%s of sandbox %s %s", p.Path(), p.Sandbox, text))
		}
	}
	return said
}

// WarningsFor returns the warnings about the projects of one sandbox.
func (c *Config) WarningsFor(sandbox string) (said []string) {
	only := *c
	only.Projects = slices.DeleteFunc(slices.Clone(c.Projects), func(p *Project) bool { return p.Sandbox != sandbox })
	return only.ProjectWarnings()
}

// Path returns the path of the project file.
func (p *Project) Path() string { return filepath.Join(p.Dir, TreeFolder, TreeFile) }

// Warning returns a warning about the project, or "".
func (p *Project) Warning(c *Config) string {
	again := "egressd policy trust " + shell.Word(p.Dir)
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

// Ceiled reports whether there is a ceiling. The configuration must be compiled.
func (c *Config) Ceiled() bool {
	ceiled := func(f *file.File) bool { return f.Ceiled }
	return slices.ContainsFunc(c.files(), ceiled) || slices.ContainsFunc(c.Rules, func(e *rego.Evaluator) bool { return e.Ceiling() != nil })
}

// ProjectsMoved reports whether the state of a working tree has changed.
func (c *Config) ProjectsMoved() bool {
	return slices.ContainsFunc(c.Projects, func(p *Project) bool {
		state, _ := p.Now()
		return state != p.State
	})
}

func (c *Config) enterTrust(enter func(folder string)) {
	named := func(s file.SandboxRules) bool { return s.Project != "" }
	if store, err := OpenTrustStore(); err == nil && slices.ContainsFunc(c.File.Sandboxes, named) {
		enterNearest(enter, string(store))
	}
}

// projectStates passes all project state that the policy depends on to part.
func (c *Config) projectStates(part func([]byte)) {
	for _, p := range c.Projects {
		digest := ""
		if p.Pin != nil {
			digest = p.Pin.Digest
		}
		part(fmt.Appendf(nil, "%s %s %s %s", p.Sandbox, p.Dir, p.State, digest))
	}
}

// TreesAt returns the working tree that arg refers to, as the configuration names it, and its sandboxes.
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
