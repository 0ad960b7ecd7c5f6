package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/sandbox"
)

// A RegoPart is what one evaluator is made of. The plain files and folders of one
// list are a part together; every other entry is a part for itself.
type RegoPart struct {
	At      string            // the entry in the file, as "rego[1]"; of several, the first
	File    string            // the file that names it
	Sources []rego.Source     // tests included
	Options rego.Options      // how it is asked
	Sandbox string            // whom it is asked about; empty: everybody
	Source  policy.RegoSource // the entry; of several, the first
	guard   policy.Evaluator  // denies everything where a bundle is stale; nil where none can be
}

// A regoList is a list of entries of one file.
type regoList struct {
	RegoPart // what is the same for all of them
	entries  []policy.RegoSource
}

// regoLists are all lists of the configuration but those of projects. The Rego of
// the file is the organisation's where there is nobody else to have written it.
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

// RegoParts reads what the policy is made of beside its files: what they name under
// rego, and projects. enter is called for each folder before it is listed; it may be
// nil. With an error, the parts are those that could be read.
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

// parts are what the policy is to be compiled of beside its files.
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

// partsOf reads the entries of a list. With an error, they are those that could be
// read.
func (c *Config) partsOf(r *regoReader, list *regoList) (parts []RegoPart, err error) {
	together := map[bool]int{} // the parts of the plain entries, in force and in shadow, from 1
	for i, s := range list.entries {
		part := list.RegoPart
		part.At, part.Source, part.Options.Input = fmt.Sprintf("%s[%d]", list.At, i), s, s.Input
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

// readPart reads what an entry names.
func (c *Config) readPart(r *regoReader, p *RegoPart) (err error) {
	switch {
	case p.Source.Bundle != "" && p.Source.Input != "egressd":
		return fmt.Errorf("%s: bundles of policies with another input are not supported by this version", p.At)
	case p.Source.Bundle != "":
		return c.readBundle(p, r.enter)
	}
	p.Sources, err = r.read(p.File, p.Source.Path)
	return err
}

// PlainSource reports whether an entry is a path that is compiled together with the
// others of its list and mode.
func PlainSource(s policy.RegoSource) bool {
	return s.Bundle == "" && s.Input == "egressd"
}

// read reads the files at a path that a policy file names. The bounds are those of
// all that the reader reads.
func (r *regoReader) read(file, path string) ([]rego.Source, error) {
	if r.enter != nil {
		r.enter(filepath.Dir(beside(file, path))) // where another file or folder may take its place
	}
	r.sources = nil
	err := r.all([]string{path}, func(path string) string { return beside(file, path) })
	return r.sources, err
}

// load compiles what decides of a part.
func (p *RegoPart) load() (*rego.Evaluator, error) {
	e, err := rego.Load(p.Deciding(), p.Options)
	if err != nil {
		return nil, hint.Misused(p.regoError(err), "correct that, then egressd policy check")
	}
	return e, nil
}

// regoError says what it was that failed, where the error names no place.
func (p *RegoPart) regoError(err error) error {
	if p.Sandbox != "" && !errors.As(err, new(policy.FileError)) {
		return fmt.Errorf("%s of %s: %w", p.At, p.File, err)
	}
	return RegoError(err)
}

// Deciding are the sources without the tests.
func (p *RegoPart) Deciding() []rego.Source {
	return slices.DeleteFunc(slices.Clone(p.Sources), func(s rego.Source) bool { return !s.Decides() })
}

// within is a path as seen from the folder of the file that names it, so that a
// policy is the same wherever it is. What is in a bundle that was fetched is nowhere.
func (p *RegoPart) within(path string) string {
	if strings.Contains(path, "://") {
		return path
	}
	if rel, err := filepath.Rel(filepath.Dir(p.File), path); err == nil {
		return rel
	}
	return path
}

// An assembly is what a policy is made of beside its files.
type assembly struct {
	evaluators *[]policy.Evaluator
	texts      *[][]byte
	layers     *policy.Layers
}

// Environment is what the policy of this configuration is made of beside its
// file. It loads what the files name under rego into c.Rules and c.Parts.
func (c *Config) Environment(self func() []netip.Addr, listeners func() []netip.AddrPort) (policy.Environment, error) {
	env := policy.Environment{Self: self, Listeners: listeners, Operator: c.Operator, Inspection: true, Learn: c.Learn}
	if at := c.OperatorAt(); env.Operator == nil && len(at) > 0 {
		env.Operator = func() []netip.AddrPort { return at }
	}
	parts, err := c.parts()
	if err != nil {
		return env, err
	}
	c.read = parts
	inForce := assembly{&env.Evaluators, &env.Texts, &env.Layers}
	inShadow := assembly{&env.Shadow, &env.ShadowTexts, &env.ShadowLayers}
	c.layer(inForce.layers)
	c.Rules, c.Parts, c.Lapses = nil, nil, nil
	shadowed := map[policy.Layer]bool{} // whose sources in force others stand in for
	for _, p := range parts {
		shadowed[p.Options.Layer] = shadowed[p.Options.Layer] || p.Source.Shadow
	}
	anyShadow := shadowed[policy.Organisation] || shadowed[policy.User]
	if anyShadow {
		c.layer(inShadow.layers)
	}
	for i := range parts {
		p := &parts[i]
		rules, err := p.load()
		if err != nil {
			return env, err
		}
		if !p.Source.Shadow {
			c.holds(p, rules)
			inForce.add(p, rules)
		}
		if anyShadow && (p.Source.Shadow || !shadowed[p.Options.Layer]) {
			inShadow.add(p, rules)
		}
	}
	return env, nil
}

// holds notes what is in force.
func (c *Config) holds(p *RegoPart, rules *rego.Evaluator) {
	c.Rules, c.Parts = append(c.Rules, rules), append(c.Parts, *p)
	if l, ok := p.guard.(*Lapse); ok {
		c.Lapses = append(c.Lapses, l)
	}
}

// add adds what a part came to.
func (a *assembly) add(p *RegoPart, rules *rego.Evaluator) {
	for _, s := range p.Deciding() {
		*a.texts = append(*a.texts, []byte(p.within(s.Name)), s.Text)
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

// CheckTests compiles each part together with its tests.
func CheckTests(parts []RegoPart) error {
	for _, p := range parts {
		if err := p.Options.CheckTests(p.Sources); err != nil {
			return err
		}
	}
	return nil
}

// injections are the credentials that a policy in Rego may name: known, even where
// there are none.
func (c *Config) injections() []policy.Injection {
	return append([]policy.Injection{}, c.File.Injections()...)
}
