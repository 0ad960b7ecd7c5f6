package main

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/sandbox"
)

// A regoPart is what one evaluator is made of. The plain files and folders of one
// list are a part together; every other entry is a part for itself.
type regoPart struct {
	at      string            // the entry in the file, as "rego[1]"; of several, the first
	file    string            // the file that names it
	sources []rego.Source     // tests included
	options rego.Options      // how it is asked
	sandbox string            // whom it is asked about; empty: everybody
	source  policy.RegoSource // the entry; of several, the first
	guard   policy.Evaluator  // denies everything where a bundle is stale; nil where none can be
}

// A regoList is a list of entries of one file.
type regoList struct {
	regoPart // what is the same for all of them
	entries  []policy.RegoSource
}

// regoLists are all lists of the configuration but those of projects. The Rego of
// the file is the organisation's where there is nobody else to have written it.
func (c *config) regoLists() (all []regoList) {
	own := rego.Options{Layer: policy.Organisation, Injections: c.injections(), Sandboxes: c.sandboxNames()}
	if o := c.organisation; o != nil {
		own.Layer = policy.User
		all = append(all, regoList{regoPart{at: "organisation rego", file: o.path, options: rego.Options{Layer: policy.Organisation, Injections: c.injections()}}, o.file.Rego})
	}
	all = append(all, regoList{regoPart{at: "rego", file: c.path, options: own}, c.file.Rego})
	for i, s := range c.file.Sandboxes {
		at := fmt.Sprintf("sandboxes[%d].rego", i)
		only := rego.Options{Package: "egress." + s.Name, Layer: policy.PerSandbox, Injections: c.injections()}
		all = append(all, regoList{regoPart{at: at, file: c.path, options: only, sandbox: s.Name}, s.Rego})
	}
	return all
}

func (c *config) sandboxNames() (names []string) {
	for _, s := range c.file.Sandboxes {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		names = []string{sandbox.Default}
	}
	return names
}

// regoParts reads what the policy is made of beside its files: what they name under
// rego, and projects. enter is called for each folder before it is listed; it may be
// nil. With an error, the parts are those that could be read.
func (c *config) regoParts(enter func(folder string)) (parts []regoPart, err error) {
	r := regoReader{except: []string{filepath.Clean(c.path)}, enter: enter}
	if c.organisation != nil {
		r.except = append(r.except, filepath.Clean(c.organisation.path))
	}
	for _, list := range c.regoLists() {
		more, err := c.partsOf(&r, &list)
		parts = append(parts, more...)
		if err != nil {
			return parts, cli.Misused(err, "correct "+list.at+" in "+list.file)
		}
	}
	projects, err := c.readProjects()
	for _, p := range projects {
		parts = append(parts, p.parts()...)
	}
	return parts, err
}

// partsOf reads the entries of a list. With an error, they are those that could be
// read.
func (c *config) partsOf(r *regoReader, list *regoList) (parts []regoPart, err error) {
	together := map[bool]int{} // the parts of the plain entries, in force and in shadow, from 1
	for i, s := range list.entries {
		part := list.regoPart
		part.at, part.source, part.options.Input = fmt.Sprintf("%s[%d]", list.at, i), s, s.Input
		err = c.readPart(r, &part)
		if first := together[s.Shadow]; plainSource(s) && first > 0 {
			parts[first-1].sources = append(parts[first-1].sources, part.sources...)
		} else if parts = append(parts, part); plainSource(s) {
			together[s.Shadow] = len(parts)
		}
		if err != nil {
			return parts, err
		}
	}
	return parts, nil
}

// readPart reads what an entry names.
func (c *config) readPart(r *regoReader, p *regoPart) (err error) {
	switch {
	case p.source.Bundle != "" && p.source.Input != "egressd":
		return fmt.Errorf("%s: bundles of policies with another input are not supported by this version", p.at)
	case p.source.Bundle != "":
		return c.readBundle(p, r.enter)
	}
	p.sources, err = r.read(p.file, p.source.Path)
	return err
}

// plainSource reports whether an entry is a path that is compiled together with the
// others of its list and mode.
func plainSource(s policy.RegoSource) bool {
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
func (p *regoPart) load() (*rego.Evaluator, error) {
	e, err := rego.Load(p.deciding(), p.options)
	if err != nil {
		return nil, cli.Misused(p.regoError(err), "correct that, then egressd policy check")
	}
	return e, nil
}

// regoError says what it was that failed, where the error names no place.
func (p *regoPart) regoError(err error) error {
	if p.sandbox != "" && !errors.As(err, new(policy.FileError)) {
		return fmt.Errorf("%s of %s: %w", p.at, p.file, err)
	}
	return regoError(err)
}

func (p *regoPart) deciding() []rego.Source {
	return slices.DeleteFunc(slices.Clone(p.sources), func(s rego.Source) bool { return !s.Decides() })
}

// within is a path as seen from the folder of the file that names it, so that a
// policy is the same wherever it is. What is in a bundle that was fetched is nowhere.
func (p *regoPart) within(path string) string {
	if strings.Contains(path, "://") {
		return path
	}
	if rel, err := filepath.Rel(filepath.Dir(p.file), path); err == nil {
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

// environment is what the policy of this configuration is made of beside its
// file. It loads what the files name under rego into c.rules and c.parts.
func (c *config) environment(self func() []netip.Addr, listeners func() []netip.AddrPort) (policy.Environment, error) {
	env := policy.Environment{Self: self, Listeners: listeners, Inspection: true, Learn: c.learn}
	parts, err := c.regoParts(nil)
	if err != nil {
		return env, err
	}
	inForce := assembly{&env.Evaluators, &env.Texts, &env.Layers}
	inShadow := assembly{&env.Shadow, &env.ShadowTexts, &env.ShadowLayers}
	c.layer(inForce.layers)
	c.rules, c.parts, c.lapses = nil, nil, nil
	shadowed := map[policy.Layer]bool{} // whose sources in force others stand in for
	for _, p := range parts {
		shadowed[p.options.Layer] = shadowed[p.options.Layer] || p.source.Shadow
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
		if !p.source.Shadow {
			c.holds(p, rules)
			inForce.add(p, rules)
		}
		if anyShadow && (p.source.Shadow || !shadowed[p.options.Layer]) {
			inShadow.add(p, rules)
		}
	}
	return env, nil
}

// holds notes what is in force.
func (c *config) holds(p *regoPart, rules *rego.Evaluator) {
	c.rules, c.parts = append(c.rules, rules), append(c.parts, *p)
	if l, ok := p.guard.(*lapse); ok {
		c.lapses = append(c.lapses, l)
	}
}

// add adds what a part came to.
func (a *assembly) add(p *regoPart, rules *rego.Evaluator) {
	for _, s := range p.deciding() {
		*a.texts = append(*a.texts, []byte(p.within(s.Name)), s.Text)
	}
	all := []policy.Evaluator{rules}
	if p.guard != nil && !p.source.Shadow {
		all = append(all, p.guard)
	}
	switch p.options.Layer {
	case policy.User:
		a.layers.User = append(a.layers.User, all...)
	case policy.PerSandbox:
		a.narrow(p.sandbox, rules)
	case policy.Project:
		tree := a.layers.Projects[p.sandbox]
		tree.Evaluators = append(tree.Evaluators, rules)
		a.layers.Projects[p.sandbox] = tree
	default:
		*a.evaluators = append(*a.evaluators, all...)
	}
	if ceiling := rules.Ceiling(); ceiling != nil {
		a.layers.Ceilings = append(a.layers.Ceilings, policy.Ceiling{Evaluator: ceiling, Layer: p.options.Layer})
	}
	for _, name := range p.options.Sandboxes {
		if own := rules.Sandbox(name); own != nil {
			a.narrow(name, own)
		}
	}
}

func (a *assembly) narrow(sandbox string, rules *rego.Evaluator) {
	l := a.layers
	l.Narrowing[sandbox] = append(l.Narrowing[sandbox], policy.Narrowing{Evaluator: rules, Exhaustive: rules.Allows()})
}

// checkTests compiles each part together with its tests.
func checkTests(parts []regoPart) error {
	for _, p := range parts {
		if err := p.options.CheckTests(p.sources); err != nil {
			return err
		}
	}
	return nil
}

// injections are the credentials that a policy in Rego may name: known, even where
// there are none.
func (c *config) injections() []policy.Injection {
	return append([]policy.Injection{}, c.file.Injections()...)
}
