package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/sandbox"
)

// A RegoPart holds the sources of one evaluator. The plain files and folders of a list form one part;
// every other entry is a part of its own.
type RegoPart struct {
	At      string           // position in the file, such as "rego[1]", of the first entry
	File    string           // the file with the entry
	Sources []rego.Source    // including tests
	Options rego.Options     // for loading
	Sandbox string           // the sandbox it applies to; empty for all
	Source  file.RegoSource  // the first entry
	guard   policy.Evaluator // denies all requests while the bundle is stale; nil if it cannot be

	revision string // of the bundle; may be empty
}

type regoList struct {
	RegoPart // values common to all entries
	entries  []file.RegoSource
}

// regoLists returns all lists except those of projects. Without an organisation's file, the Rego of the
// main file has the organisation's layer.
func (c *Config) regoLists() (all []regoList) {
	own := rego.Options{Layer: policy.Organisation, Injections: c.injections(), Sandboxes: c.sandboxNames()}
	if o := c.Organisation; o != nil {
		own.Layer = policy.User
		all = append(all, regoList{RegoPart{At: "organisation rego", File: o.Path, Options: rego.Options{Layer: policy.Organisation, Injections: c.injections()}}, o.File.Rego})
	}
	all = append(all, regoList{RegoPart{At: "rego", File: c.Path, Options: own}, c.File.Rego})
	for i, s := range c.File.Sandboxes {
		at := fmt.Sprintf("sandboxes[%d].rego", i)
		only := rego.Options{Package: "egress." + s.Name, Layer: policy.PerSandbox, Injections: c.injections()}
		all = append(all, regoList{RegoPart{At: at, File: c.Path, Options: only, Sandbox: s.Name}, s.Rego})
	}
	return all
}

func (c *Config) sandboxNames() (names []string) {
	for _, s := range c.File.Sandboxes {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		names = []string{sandbox.Default}
	}
	return names
}

// RegoParts reads the Rego of all files and projects. If enter is not nil, it is called with each folder
// before it is listed. After an error it returns the parts read so far.
func (c *Config) RegoParts(enter func(folder string)) (parts []RegoPart, err error) {
	r := regoReader{except: []string{filepath.Clean(c.Path)}, enter: enter}
	if c.Organisation != nil {
		r.except = append(r.except, filepath.Clean(c.Organisation.Path))
	}
	for _, list := range c.regoLists() {
		more, err := c.partsOf(&r, &list)
		parts = append(parts, more...)
		if err != nil {
			return parts, hint.Misused(err, "correct "+list.At+" in "+list.File)
		}
	}
	projects, err := c.ReadProjects()
	for _, p := range projects {
		parts = append(parts, p.parts()...)
	}
	return parts, err
}

func (c *Config) parts() (parts []RegoPart, err error) {
	if c.kept == nil {
		return c.RegoParts(nil)
	}
	parts = slices.Clone(c.kept)
	for i := range parts {
		p := &parts[i]
		if !p.Source.Fetched() {
			continue
		}
		if err := c.readFetched(p); err != nil {
			return nil, hint.Misused(err, "correct "+p.At+" in "+p.File)
		}
	}
	return parts, nil
}

// partsOf reads the entries of a list. After an error it returns the parts read so far.
func (c *Config) partsOf(r *regoReader, list *regoList) (parts []RegoPart, err error) {
	together := map[bool]int{} // index+1 of the part of plain entries, by shadow
	for i, s := range list.entries {
		if s.Elsewhere {
			continue
		}
		part := list.RegoPart
		part.Options.Source = list.File + " " + cmp.Or(s.Bundle, s.Path)
		part.At, part.Source = fmt.Sprintf("%s[%d]", list.At, i), s
		err = c.readPart(r, &part)
		if first := together[s.Shadow]; PlainSource(s) && first > 0 {
			parts[first-1].Sources = append(parts[first-1].Sources, part.Sources...)
		} else if parts = append(parts, part); PlainSource(s) {
			together[s.Shadow] = len(parts)
		}
		if err != nil {
			return parts, err
		}
	}
	return parts, nil
}

func (c *Config) readPart(r *regoReader, p *RegoPart) (err error) {
	if p.Source.Bundle != "" {
		return c.readBundle(p, r.enter)
	}
	p.Sources, err = r.read(p.File, p.Source.Path)
	return err
}

// PlainSource reports whether an entry is compiled together with the other plain entries of its list and
// mode.
func PlainSource(s file.RegoSource) bool {
	return s.Bundle == ""
}

// read reads the files at a path of a policy file. The limits cover everything that r reads.
func (r *regoReader) read(file, path string) ([]rego.Source, error) {
	if r.enter != nil {
		r.enter(filepath.Dir(beside(file, path))) // another file or folder may replace path there
	}
	r.sources = nil
	err := r.all([]string{path}, func(path string) string { return beside(file, path) })
	return r.sources, err
}

func (p *RegoPart) load(patient bool) (*rego.Evaluator, error) {
	o := p.Options
	o.Patient = patient
	e, err := rego.Load(p.Deciding(), o)
	if err != nil {
		return nil, hint.Misused(p.regoError(err), "correct that, then egressd policy check")
	}
	return e, nil
}

// UnnamedTests returns warnings about tests of Rego beside a file that the policy names. It names files, so these tests
// do not run.
func (c *Config) UnnamedTests() (all []policy.Problem) {
	for _, list := range c.regoLists() {
		named := map[string]bool{}
		for _, s := range list.entries {
			named[filepath.Clean(beside(list.File, s.Path))] = true
		}
		for i, s := range list.entries {
			module := filepath.Clean(beside(list.File, s.Path))
			name, isModule := strings.CutSuffix(module, ".rego")
			if s.Path == "" || s.Elsewhere || !isModule || strings.HasSuffix(name, "_test") {
				continue
			}
			tests := name + "_test.rego"
			if info, err := os.Stat(tests); err == nil && info.Mode().IsRegular() && !named[tests] && !named[filepath.Dir(tests)] {
				all = append(all, policy.Problem{File: list.File, Line: 1, Column: 1, Message: fmt.Sprintf(
					"%s[%d]: the tests in %s do not run, since rego does not name them; add %s beside %s", list.At, i, tests, filepath.Join(filepath.Dir(s.Path), filepath.Base(tests)), s.Path)})
			}
		}
	}
	return all
}

// regoError adds context to an error without a position.
func (p *RegoPart) regoError(err error) error {
	if p.Sandbox != "" && !errors.As(err, new(policy.FileError)) {
		return fmt.Errorf("%s of %s: %w", p.At, p.File, err)
	}
	return RegoError(err)
}

// Deciding returns the sources without tests.
func (p *RegoPart) Deciding() []rego.Source {
	return slices.DeleteFunc(slices.Clone(p.Sources), func(s rego.Source) bool { return !s.Decides() })
}

// within returns a path relative to the folder of the part's file, so that the policy's digest does not
// depend on its location. Paths in fetched bundles are unchanged.
func (p *RegoPart) within(path string) string {
	if strings.Contains(path, "://") {
		return path
	}
	if rel, err := filepath.Rel(filepath.Dir(p.File), path); err == nil {
		return rel
	}
	return path
}

// An assembly collects the evaluators and texts of a policy.
type assembly struct {
	evaluators *[]policy.Evaluator
	texts      *[][]byte
	code       *[][]byte
	layers     *file.Layers
}

// Environment returns the environment in which the file is compiled. It loads all Rego and sets c.Rules
// and c.Parts.
func (c *Config) Environment(self func() []netip.Addr, listeners func() []netip.AddrPort) (file.Environment, error) {
	env := file.Environment{Self: self, Listeners: listeners, AdminListeners: c.AdminListeners, UpstreamAt: c.UpstreamAt, Inspection: true, Learn: c.Learn}
	if at := c.AdminAt(); env.AdminListeners == nil && len(at) > 0 {
		env.AdminListeners = func() []netip.AddrPort { return at }
	}
	if c.kept == nil {
		listed, err := c.readLists()
		if err != nil {
			return env, err
		}
		c.HostLists = listed
	}
	env.HostLists = c.HostLists
	parts, err := c.parts()
	if err != nil {
		return env, err
	}
	c.read = parts
	inForce := assembly{&env.Evaluators, &env.Texts, &env.Code, &env.Layers}
	inShadow := assembly{&env.Shadow, &env.ShadowTexts, &env.ShadowCode, &env.ShadowLayers}
	c.layer(inForce.layers)
	c.Rules, c.Parts, c.Lapses = nil, nil, nil
	shadowed := map[policy.Layer]bool{} // layers whose sources in force the shadow replaces
	for _, p := range parts {
		shadowed[p.Options.Layer] = shadowed[p.Options.Layer] || p.Source.Shadow
	}
	anyShadow := shadowed[policy.Organisation] || shadowed[policy.User]
	if anyShadow {
		c.layer(inShadow.layers)
	}
	for i := range parts {
		p := &parts[i]
		rules, err := p.load(c.Patient)
		if err != nil {
			return env, err
		}
		if !p.Source.Shadow {
			c.holds(p, rules)
			inForce.add(p, rules)
			if p.revision != "" {
				env.Revisions = append(env.Revisions, p.revision)
			}
		}
		if anyShadow && (p.Source.Shadow || !shadowed[p.Options.Layer]) {
			inShadow.add(p, rules)
		}
	}
	return env, nil
}

// holds remembers a part in force.
func (c *Config) holds(p *RegoPart, rules *rego.Evaluator) {
	c.Rules, c.Parts = append(c.Rules, rules), append(c.Parts, *p)
	if l, ok := p.guard.(*Lapse); ok {
		c.Lapses = append(c.Lapses, l)
	}
}

func (a *assembly) add(p *RegoPart, rules *rego.Evaluator) {
	for _, s := range p.Deciding() {
		*a.texts = append(*a.texts, []byte(p.within(s.Name)), s.Text)
		*a.code = append(*a.code, fmt.Appendf(nil, "%s %q %q\n%s", p.Options.Layer, p.Options.Package, p.Sandbox, s.Meaning()))
	}
	all := []policy.Evaluator{rules}
	if p.guard != nil && !p.Source.Shadow {
		all = append(all, p.guard)
	}
	switch p.Options.Layer {
	case policy.User:
		a.layers.User = append(a.layers.User, all...)
	case policy.PerSandbox:
		a.narrow(p.Sandbox, rules)
	case policy.Project:
		tree := a.layers.Projects[p.Sandbox]
		tree.Evaluators = append(tree.Evaluators, rules)
		a.layers.Projects[p.Sandbox] = tree
	default:
		*a.evaluators = append(*a.evaluators, all...)
	}
	if ceiling := rules.Ceiling(); ceiling != nil {
		a.layers.Ceilings = append(a.layers.Ceilings, policy.Ceiling{Evaluator: ceiling, Layer: p.Options.Layer})
	}
	for _, name := range p.Options.Sandboxes {
		if own := rules.Sandbox(name); own != nil {
			a.narrow(name, own)
		}
	}
}

func (a *assembly) narrow(sandbox string, rules *rego.Evaluator) {
	l := a.layers
	l.Narrowing[sandbox] = append(l.Narrowing[sandbox], policy.Narrowing{Evaluator: rules, Exhaustive: rules.Allows()})
}

// CheckTests compiles each part with its tests.
func CheckTests(parts []RegoPart) error {
	for _, p := range parts {
		if err := p.Options.CheckTests(p.Sources); err != nil {
			return err
		}
	}
	return nil
}

// injections returns the credentials that Rego may name. It is never nil, so names are always checked.
func (c *Config) injections() []policy.Injection {
	return append([]policy.Injection{}, c.File.Injections()...)
}
