package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// OrganisationPath is the file of whoever answers for the machine. It counts
// wherever it exists, and nothing turns it off.
const OrganisationPath = "/etc/egressd/organisation.yaml"

// loadOrganisation reads the organisation's file at path, or returns nil where
// nothing is there. What is there and cannot be read is an error, a link that leads
// nowhere too.
func loadOrganisation(path string) (*Config, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	next := "ask who keeps " + path + "; without it nothing is decided"
	text, err := Read(path)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("read the organisation's policy: %w", err), next)
	}
	c, err := parseConfig(path, text, policy.ParseOrganisation)
	if err != nil {
		return nil, err
	}
	c.anchor()
	return c, nil
}

// anchor makes the paths of what the file names under rego absolute: others read it
// as if it stood elsewhere.
func (c *Config) anchor() {
	file := *c.File
	file.Rego = slices.Clone(file.Rego)
	for i := range file.Rego {
		s := &file.Rego[i]
		for _, path := range []*string{&s.Path, &s.Key, &s.CA, &s.TokenFile} {
			*path = c.absolute(*path)
		}
		if !s.Fetched() {
			s.Bundle = c.absolute(s.Bundle)
		}
	}
	c.File = &file
}

// absolute is a path that is relative to the folder of the configuration; none stays
// none.
func (c *Config) absolute(path string) string {
	if path == "" {
		return ""
	}
	if absolute, err := filepath.Abs(c.Relative(path)); err == nil {
		return absolute
	}
	return c.Relative(path)
}

// Sources are all entries of Rego that may be bundles, and where each stands.
func (c *Config) Sources() (all []policy.RegoSource, at []string) {
	for _, list := range c.regoLists() {
		for i, s := range list.entries {
			all, at = append(all, s), append(at, fmt.Sprintf("%s[%d]", list.At, i))
		}
	}
	return all, at
}

// layer fills in the files of the other layers.
func (c *Config) layer(l *policy.Layers) {
	l.Narrowing = map[string][]policy.Narrowing{}
	l.Projects = map[string]policy.WorkingTree{}
	if c.Organisation != nil {
		l.Organisation = c.Organisation.File
	}
	for _, p := range c.Projects {
		if p.File != nil {
			l.Projects[p.Sandbox] = policy.WorkingTree{File: p.File, Opens: p.State == ProjectTrusted}
		}
	}
}

// files are all of which the policy is made, the one that c is named after first.
func (c *Config) files() []*policy.File {
	all := []*policy.File{c.File}
	if c.Organisation != nil {
		all = append(all, c.Organisation.File)
	}
	for _, p := range c.Projects {
		if p.File != nil {
			all = append(all, p.File)
		}
	}
	return all
}

// Doubts are the warnings of all files.
func (c *Config) Doubts() (all []policy.Problem) {
	files := c.files()
	for i, f := range files {
		if i == 0 {
			all = append(all, f.Doubts(files[1:]...)...)
		} else {
			all = append(all, f.Doubts()...)
		}
	}
	return all
}

// Warnings are what is to be said at every start. The configuration has been
// compiled.
func (c *Config) Warnings() (said []string) {
	for _, p := range c.Doubts() {
		said = append(said, p.String())
	}
	return said
}

// fileOf names the file that an error is about: path, where it does not say.
func fileOf(err error, path string) string {
	var problems policy.FileError
	if errors.As(err, &problems) {
		return problems[0].File
	}
	return path
}

// StateOf tells one state of all files of the policy from another. It is what changes
// when there is something to reload. enter is called for each folder in which that may
// happen; it may be nil.
func StateOf(path, organisation string, enter func(folder string)) [sha256.Size]byte {
	enterNearest(enter, filepath.Dir(organisation))
	h := sha256.New()
	part := func(text []byte) { fmt.Fprintf(h, "%d\n%s", len(text), text) }
	for _, p := range []string{path, organisation} {
		text, err := os.ReadFile(p)
		part(text)
		part(fmt.Append(nil, err))
	}
	if c, err := LoadUnder(path, organisation); err == nil {
		c.enterTrust(enter)
		c.unfetched = true // that comes and goes by itself
		parts, err := c.RegoParts(enter)
		part(fmt.Append(nil, err))
		for _, p := range parts {
			part([]byte(p.At))
			for _, s := range p.Sources {
				part([]byte(s.Name))
				part(s.Text)
			}
		}
		c.projectStates(part)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// enterNearest enters the nearest folder to path that exists, and again where one came
// to be meanwhile.
func enterNearest(enter func(folder string), path string) {
	if enter == nil {
		return
	}
	for entered := ""; ; {
		nearest := nearestFolder(path)
		if nearest == entered {
			return
		}
		enter(nearest)
		entered = nearest
	}
}

// nearestFolder is path, or the nearest folder above it that exists: what is to come
// begins there.
func nearestFolder(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// Lines are the rules of all files.
func (c *Config) Lines() (all []policy.Line, err error) {
	for _, f := range c.files() {
		lines, err := f.Lines()
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
}

// PartBy returns the part that an opinion is of, or nil.
func (c *Config) PartBy(by policy.Evaluator) *RegoPart {
	for i, rules := range c.Rules {
		if by == policy.Evaluator(rules) || by != nil && by == policy.Evaluator(rules.Ceiling()) {
			return &c.Parts[i]
		}
	}
	return nil
}

// PartName tells the lists of an organisation's file from those of the user's.
func PartName(o *policy.Opinion) string {
	if o.Layer == policy.Organisation && (o.Part == policy.PartFile || o.Part == policy.PartPresets) {
		return string(o.Layer) + " " + string(o.Part)
	}
	return string(o.Part)
}

// Inspects reports whether a rule of the file, or of its Rego, may need to look
// inside TLS. The configuration has been compiled.
func (c *Config) Inspects() bool {
	for _, f := range c.files() {
		if looksAtRequests(f) {
			return true
		}
	}
	return slices.ContainsFunc(c.Rules, (*rego.Evaluator).LooksAtRequests)
}

// MayInspect is Inspects for a configuration that is not compiled yet: what it says under
// rego and of projects, which is not read, may look at requests.
func (c *Config) MayInspect() bool {
	sources, _ := c.Sources()
	unread := func(s policy.SandboxRules) bool { return s.Project != "" }
	return c.Inspects() || len(sources) > 0 || slices.ContainsFunc(c.File.Sandboxes, unread)
}

func looksAtRequests(f *policy.File) bool {
	looks := func(r policy.Rule) bool { return r.Inspects() }
	lists := [][]policy.Rule{f.Allow, f.Deny, f.Ask, f.UnsafeAllow, f.Ceiling}
	for _, s := range f.Sandboxes {
		lists = append(lists, s.Allow, s.Deny)
	}
	return slices.ContainsFunc(lists, func(list []policy.Rule) bool { return slices.ContainsFunc(list, looks) })
}
