package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// A projectState says how a working tree stands to what was trusted of it.
type projectState string

const (
	projectNone      projectState = "none"      // it has no project file, and never had one
	projectUntrusted projectState = "untrusted" // nobody has trusted it
	projectTrusted   projectState = "trusted"   // it is what was trusted
	projectChanged   projectState = "changed"   // it is something else than what was trusted
)

// A project is the working tree of one sandbox. What counts of it is never read
// from the tree itself but from the copy of what was trusted, so that the sandbox
// changes nothing by changing the tree, except that it opens nothing any more.
type project struct {
	sandbox string
	dir     string
	state   projectState
	why     error        // why it is changed, where it could not be read
	pin     *pin         // what was trusted; nil where nothing was
	file    *policy.File // of the pin
}

// projectsEvery is how often the daemon looks at the working trees: whoever is in them
// could make any number of events.
const projectsEvery = 2 * time.Second

// readProjects reads the working trees of all sandboxes, once.
func (c *config) readProjects() ([]*project, error) {
	if c.projects != nil {
		return c.projects, nil
	}
	all := []*project{}
	for _, s := range c.file.Sandboxes {
		if s.Project == "" {
			continue
		}
		p, err := readProject(s.Name, c.projectDir(s.Project))
		if err != nil {
			return nil, cli.Misused(err, "egressd trust --revoke "+cli.ShellWord(c.projectDir(s.Project))+", then egressd trust "+cli.ShellWord(c.projectDir(s.Project)))
		}
		all = append(all, p)
	}
	c.projects = all
	return all, nil
}

// projectDir is a working tree by its absolute path. Links in it stay: what they lead
// to may be up to the sandbox.
func (c *config) projectDir(dir string) string {
	return filepath.Clean(c.absolute(dir))
}

func readProject(sandbox, dir string) (*project, error) {
	p := &project{sandbox: sandbox, dir: dir}
	store, err := openTrustStore()
	if err != nil {
		p.state, p.why = projectUntrusted, err
		return p, nil
	}
	if p.pin, err = store.find(dir); err != nil {
		return nil, err
	}
	p.state, p.why = p.now()
	if p.pin == nil {
		return p, nil
	}
	if p.file, err = p.pin.Files.parse(dir); err != nil {
		return nil, fmt.Errorf("the trusted project of sandbox %s: %w", sandbox, err)
	}
	return p, nil
}

// now compares the tree with what was trusted.
func (p *project) now() (projectState, error) {
	if p.pin == nil {
		if _, err := os.Lstat(filepath.Join(p.dir, treeFolder, treeFile)); errors.Is(err, fs.ErrNotExist) {
			return projectNone, nil
		}
		return projectUntrusted, nil
	}
	found, err := readTree(p.dir, p.pin.Files)
	if err != nil || !found.equal(p.pin.Files) {
		return projectChanged, err
	}
	return projectTrusted, nil
}

// parts is the Rego of the project.
func (p *project) parts() []regoPart {
	if p.file == nil || len(p.file.Rego) == 0 {
		return nil
	}
	folder := filepath.Join(p.dir, treeFolder)
	part := regoPart{
		at: "rego", file: filepath.Join(folder, treeFile), sandbox: p.sandbox, source: p.file.Rego[0],
		options: rego.Options{Package: "egress.project", Layer: policy.Project, Bare: true},
	}
	for _, f := range p.pin.Files {
		if f.Name != treeFile {
			part.sources = append(part.sources, rego.Source{Name: filepath.Join(folder, filepath.FromSlash(f.Name)), Text: f.Text})
		}
	}
	return []regoPart{part}
}

// projectWarnings say which projects open nothing, and what to type. The
// configuration has been compiled.
func (c *config) projectWarnings() (said []string) {
	for _, p := range c.projects {
		if text := p.warning(c); text != "" {
			said = append(said, fmt.Sprintf("%s of sandbox %s %s", p.path(), p.sandbox, text))
		}
	}
	return said
}

// warningsFor are those about the projects of one sandbox.
func (c *config) warningsFor(sandbox string) (said []string) {
	only := *c
	only.projects = slices.DeleteFunc(slices.Clone(c.projects), func(p *project) bool { return p.sandbox != sandbox })
	return only.projectWarnings()
}

func (p *project) path() string { return filepath.Join(p.dir, treeFolder, treeFile) }

// warning says what is to be known about the project, or "".
func (p *project) warning(c *config) string {
	again := "egressd trust " + cli.ShellWord(p.dir)
	switch {
	case p.state == projectUntrusted && p.why != nil:
		return fmt.Sprintf("counts as absent, since nothing can be trusted (%v); set HOME", p.why)
	case p.state == projectUntrusted:
		return "is not trusted, so it counts as absent; " + again
	case p.state == projectChanged && p.why != nil:
		return fmt.Sprintf("cannot be read as it was trusted (%v), so it opens nothing, and what it denied stays denied; %s", p.why, again)
	case p.state == projectChanged:
		return "is not what was trusted, so it opens nothing, and what it denied stays denied; " + again
	case p.state == projectTrusted && p.file.Opens() && !c.ceiled():
		return "opens nothing, since there is no ceiling; write one into " + c.path
	}
	return ""
}

// ceiled reports whether there is a ceiling. The configuration has been compiled.
func (c *config) ceiled() bool {
	for _, f := range c.files() {
		if f.Ceiled {
			return true
		}
	}
	for _, e := range c.rules {
		if e.Ceiling() != nil {
			return true
		}
	}
	return false
}

// projectsMoved reports whether a working tree has come to be, or to be no longer,
// what was trusted.
func (c *config) projectsMoved() bool {
	for _, p := range c.projects {
		if state, _ := p.now(); state != p.state {
			return true
		}
	}
	return false
}

// enterTrust enters the folder in which something may be trusted.
func (c *config) enterTrust(enter func(folder string)) {
	named := func(s policy.SandboxRules) bool { return s.Project != "" }
	if store, err := openTrustStore(); err == nil && slices.ContainsFunc(c.file.Sandboxes, named) {
		enterNearest(enter, string(store))
	}
}

// projectStates passes on what of the projects the policy depends on.
func (c *config) projectStates(part func([]byte)) {
	for _, p := range c.projects {
		digest := ""
		if p.pin != nil {
			digest = p.pin.Digest
		}
		part(fmt.Appendf(nil, "%s %s %s %s", p.sandbox, p.dir, p.state, digest))
	}
}

// treesAt returns the working tree that a person means by its name in the
// configuration, and the sandboxes whose it is.
func (c *config) treesAt(arg string) (dir string, sandboxes []string) {
	dir = arg
	if absolute, err := filepath.Abs(arg); err == nil {
		dir = absolute
	}
	meant, err := os.Stat(dir)
	for _, s := range c.file.Sandboxes {
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
