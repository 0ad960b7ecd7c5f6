package main

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// A regoPart is what one evaluator is made of. The plain files and folders of one
// list are a part together; every other entry is a part for itself.
type regoPart struct {
	at      string            // the entry in the file, as "rego[1]"; of several, the first
	sources []rego.Source     // tests included
	options rego.Options      // how it is asked
	sandbox string            // whom it is asked about; empty: everybody
	source  policy.RegoSource // the entry; of several, the first
	guard   policy.Evaluator  // denies everything where a bundle is stale; nil where none can be
}

// regoParts reads what the policy file names under rego. enter is called for each
// folder before it is listed; it may be nil. With an error, the parts are those that
// could be read.
func (c *config) regoParts(enter func(folder string)) (parts []regoPart, err error) {
	r := regoReader{except: filepath.Clean(c.path), enter: enter}
	together := map[bool]int{} // the parts of the plain entries, in force and in shadow, from 1
	for i, s := range c.file.Rego {
		part := regoPart{at: fmt.Sprintf("rego[%d]", i), source: s, options: rego.Options{Layer: policy.Organisation, Injections: c.injections(), Input: s.Input}}
		err = c.readPart(&r, &part)
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
	p.sources, err = r.read(c, p.source.Path)
	return err
}

// plainSource reports whether an entry is a path that is compiled together with the
// others of its list and mode.
func plainSource(s policy.RegoSource) bool {
	return s.Bundle == "" && s.Input == "egressd"
}

// read reads the files at a path of the policy file. The bounds are those of all
// that the reader reads.
func (r *regoReader) read(c *config, path string) ([]rego.Source, error) {
	if r.enter != nil {
		r.enter(filepath.Dir(c.relative(path))) // where another file or folder may take its place
	}
	r.sources = nil
	err := r.all([]string{path}, c.relative)
	return r.sources, err
}

// load compiles what decides of a part.
func (p *regoPart) load() (*rego.Evaluator, error) {
	e, err := rego.Load(p.deciding(), p.options)
	if err != nil {
		return nil, misused(regoError(err), "correct that, then egressd policy check")
	}
	return e, nil
}

func (p *regoPart) deciding() []rego.Source {
	return slices.DeleteFunc(slices.Clone(p.sources), func(s rego.Source) bool { return !s.Decides() })
}

// environment is what the policy of this configuration is made of beside its
// file. It loads what the file names under rego into c.rules.
func (c *config) environment(self func() []netip.Addr, listeners func() []netip.AddrPort) (policy.Environment, error) {
	env := policy.Environment{Self: self, Listeners: listeners, Inspection: true}
	parts, err := c.regoParts(nil)
	if err != nil {
		return env, misused(err, "correct rego in "+c.path)
	}
	c.rules, c.parts, c.lapses = nil, nil, nil
	for i := range parts {
		if err := c.add(&env, &parts[i]); err != nil {
			return env, err
		}
	}
	return env, nil
}

// add loads a part, and adds it to what the policy is made of.
func (c *config) add(env *policy.Environment, p *regoPart) error {
	rules, err := p.load()
	if err != nil {
		return err
	}
	evaluators, texts := &env.Evaluators, &env.Texts
	if p.source.Shadow {
		evaluators, texts = &env.Shadow, &env.ShadowTexts
	} else {
		c.rules, c.parts = append(c.rules, rules), append(c.parts, *p)
	}
	*evaluators = append(*evaluators, rules)
	if p.guard != nil && !p.source.Shadow {
		*evaluators = append(*evaluators, p.guard)
		if l, ok := p.guard.(*lapse); ok {
			c.lapses = append(c.lapses, l)
		}
	}
	for _, s := range p.deciding() {
		*texts = append(*texts, []byte(c.within(s.Name)), s.Text)
	}
	return nil
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
