package config

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

// OrganisationPath is the file of the organisation that is responsible for the machine. It applies
// whenever it exists; no setting disables it.
const OrganisationPath = "/etc/egressd/organisation.yaml"

// loadOrganisation reads the organisation's file, or returns nil if none exists. An unreadable file or a
// broken link is an error.
func loadOrganisation(path string) (*Config, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	next := "ask who keeps " + path + "; without it nothing is decided"
	text, err := Read(path)
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("read the organisation's policy: %w", err), next)
	}
	c, err := parseConfig(path, text, file.ParseOrganisation)
	if err != nil {
		return nil, err
	}
	c.makeAbsolute()
	return c, nil
}

// makeAbsolute makes the paths of the file absolute that other configurations use: those of Rego and of sinks.
func (c *Config) makeAbsolute() {
	file := *c.File
	file.Rego = slices.Clone(file.Rego)
	file.Audit.Sinks = slices.Clone(file.Audit.Sinks)
	for i := range file.Audit.Sinks {
		s := &file.Audit.Sinks[i]
		for _, path := range []*string{&s.Path, &s.HeadersFile, &s.CAFile} {
			*path = c.absolute(*path)
		}
	}
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

// addSinks adds the sinks of the organisation, which get the records of every log on the machine.
func (c *Config) addSinks() error {
	if c.Organisation == nil || len(c.Organisation.File.Audit.Sinks) == 0 {
		return nil
	}
	above := c.Organisation.File.Audit.Sinks
	for i := range c.File.Audit.Sinks {
		name := c.File.Audit.Sinks[i].Name
		if slices.ContainsFunc(above, func(s file.Sink) bool { return s.Name == name }) {
			return hint.Misused(fmt.Errorf("%s: the sink %q stands in %s already", c.Path, name, c.Organisation.Path), "give the sink in "+c.Path+" another name")
		}
	}
	own := *c.File
	own.Audit.Sinks = append(slices.Clone(above), own.Audit.Sinks...)
	c.File = &own
	return nil
}

// absolute resolves a path against the folder of the configuration. An empty path stays empty.
func (c *Config) absolute(path string) string {
	if path == "" {
		return ""
	}
	if absolute, err := filepath.Abs(c.Relative(path)); err == nil {
		return absolute
	}
	return c.Relative(path)
}

// Sources returns all Rego entries that may be bundles, with their positions.
func (c *Config) Sources() (all []file.RegoSource, at []string) {
	for _, list := range c.regoLists() {
		for i, s := range list.entries {
			if s.Elsewhere {
				continue
			}
			all, at = append(all, s), append(at, fmt.Sprintf("%s[%d]", list.At, i))
		}
	}
	return all, at
}

// layer adds the files of the other layers to l.
func (c *Config) layer(l *file.Layers) {
	l.Narrowing = map[string][]policy.Narrowing{}
	l.Projects = map[string]file.WorkingTree{}
	if c.Organisation != nil {
		l.Organisation = c.Organisation.File
	}
	for _, p := range c.Projects {
		if p.File != nil {
			l.Projects[p.Sandbox] = file.WorkingTree{File: p.File, Opens: p.State == ProjectTrusted}
		}
	}
}

// files returns all files of the policy, the main file first.
func (c *Config) files() []*file.File {
	all := []*file.File{c.File}
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

// Doubts returns the warnings of all files, and after compilation one about Rego that only denies.
func (c *Config) Doubts() (all []policy.Problem) {
	files := c.files()
	all = files[0].Doubts(files[1:]...)
	for _, f := range files[1:] {
		all = append(all, f.Doubts()...)
	}
	return append(append(all, c.ListDoubts()...), c.onlyDenies()...)
}

// onlyDenies warns where Rego is all that could open something, and does not.
func (c *Config) onlyDenies() []policy.Problem {
	if len(c.Rules) == 0 || c.unfetched || slices.ContainsFunc(c.Rules, (*rego.Evaluator).Opens) || slices.ContainsFunc(c.files(), (*file.File).ListsOpen) {
		return nil
	}
	return []policy.Problem{{File: c.Path, Line: 1, Column: 1, Message: "the Rego only denies, and no list allows anything: everything is denied; add hosts under allow, or a rule \"allow contains …\" in Rego"}}
}

// Remarks returns the further warnings of all files, for "policy check".
func (c *Config) Remarks() (all []policy.Problem) {
	for _, f := range c.files() {
		all = append(all, f.Remarks()...)
	}
	return all
}

// Warnings returns the warnings for each start. The configuration must be compiled.
func (c *Config) Warnings() (said []string) {
	for _, p := range c.Doubts() {
		said = append(said, p.String())
	}
	return said
}

// Overruled returns the warnings about what the user's file and trusted projects allow and a ceiling or the organisation
// keeps shut in p, the compiled policy.
func (c *Config) Overruled(p *policy.Policy) (all []policy.Problem) {
	above := ""
	if c.Organisation != nil {
		above = c.Organisation.Path
	}
	if above == "" && !c.Ceiled() {
		return nil
	}
	all = c.File.Overruled(context.Background(), p, above, "")
	for _, one := range c.Projects {
		if one.State == ProjectTrusted {
			all = append(all, one.File.As(one.Sandbox).Overruled(context.Background(), p, cmp.Or(above, c.Path), one.Sandbox)...)
		}
	}
	return all
}

// RunTests runs the tests of all files of the policy, those of each against its own layer.
func (c *Config) RunTests(ctx context.Context) ([]file.RanTest, error) {
	self, err := hostAddresses()
	if err != nil {
		return nil, err
	}
	env, err := c.Environment(self, c.Listeners)
	if err != nil {
		return nil, err
	}
	return c.File.RunTests(ctx, env)
}

// fileOf returns the file that an error names, or else path.
func fileOf(err error, path string) string {
	if problems, ok := errors.AsType[policy.FileError](err); ok {
		return problems[0].File
	}
	return path
}

// StateOf returns a digest of all files of the policy. A change means that a reload is due. If enter is
// not nil, it is called with each folder where a change can happen.
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
		c.listStates(h, enter)
		c.unfetched = true // fetched bundles change independently
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

// enterNearest calls enter with the nearest existing folder to path. It repeats this if a nearer folder
// appeared meanwhile.
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

// nearestFolder returns path or its nearest existing parent. A missing path appears below that folder.
func nearestFolder(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

// Lines returns the rules of all files.
func (c *Config) Lines() (all []file.Line, err error) {
	for _, f := range c.files() {
		lines, err := f.Lines()
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
}

// PartBy returns the part that an evaluator belongs to, or nil.
func (c *Config) PartBy(by policy.Evaluator) *RegoPart {
	for i, rules := range c.Rules {
		if by == policy.Evaluator(rules) || by != nil && by == policy.Evaluator(rules.Ceiling()) {
			return &c.Parts[i]
		}
	}
	return nil
}

// PartName distinguishes the organisation's lists from those of the user.
func PartName(o *policy.Opinion) string {
	if o.Layer == policy.Organisation && (o.Part == policy.PartFile || o.Part == policy.PartPresets) {
		return string(o.Layer) + " " + string(o.Part)
	}
	return string(o.Part)
}

// Inspects reports whether egressd may see what was inside TLS, because a rule requires it. The configuration must be
// compiled.
func (c *Config) Inspects() bool {
	return slices.ContainsFunc(c.files(), looksAtRequests) ||
		slices.ContainsFunc(c.Rules, (*rego.Evaluator).LooksAtRequests)
}

// NeverInspected reports whether a list tls.never holds a destination, in the policy file or in that of the organisation.
func (c *Config) NeverInspected(host string, port uint16) bool {
	return slices.ContainsFunc(c.files(), func(f *file.File) bool {
		return slices.ContainsFunc(f.TLS.Never, func(p policy.Pattern) bool { return p.MatchesName(host, port) })
	})
}

// MayInspect is like [Config.Inspects] before compilation. It assumes that Rego and projects may require
// inspection.
func (c *Config) MayInspect() bool {
	sources, _ := c.Sources()
	unread := func(s file.SandboxRules) bool { return s.Project != "" }
	return c.Inspects() || len(sources) > 0 || slices.ContainsFunc(c.File.Sandboxes, unread)
}

func looksAtRequests(f *file.File) bool {
	looks := func(r policy.Rule) bool { return r.Inspects() }
	lists := [][]policy.Rule{f.Allow, f.Deny, f.Ask, f.UnsafeAllow, f.Ceiling}
	for _, s := range f.Sandboxes {
		lists = append(lists, s.Allow, s.Deny)
	}
	return slices.ContainsFunc(lists, func(list []policy.Rule) bool { return slices.ContainsFunc(list, looks) })
}
