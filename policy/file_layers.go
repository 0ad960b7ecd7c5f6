package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A fileKind says whose file it is. The zero value is the user's, the whole
// egressd.yaml.
type fileKind uint8

const (
	userFile fileKind = iota
	organisationFile
	projectFile
)

// ParseOrganisation reads an organisation.yaml, as [ParseFile] does: rules, Rego,
// ceiling, tests and "tls.never". Its rules have the layer [Organisation], and it is
// for [Layers].
func ParseOrganisation(name string, text []byte) (*File, error) {
	return parseAs(organisationFile, name, text)
}

// ParseProject reads a project.yaml, as [ParseFile] does: rules that loosen nothing
// beside their destination, Rego and tests. It is for [Layers].
func ParseProject(name string, text []byte) (*File, error) {
	return parseAs(projectFile, name, text)
}

func (k fileKind) layer() Layer {
	return [...]Layer{userFile: User, organisationFile: Organisation, projectFile: Project}[k]
}

// keys are those that a file of the kind has; nil for all.
func (k fileKind) keys() []string {
	switch k {
	case organisationFile:
		return []string{"version", "allow", "deny", "ask", "ceiling", "presets", "rego", "unsafe_allow", "tests", "tls"}
	case projectFile:
		return []string{"version", "allow", "deny", "ask", "presets", "rego", "tests"}
	}
	return nil
}

// only has every other key say where it belongs.
func (k fileKind) only(r *reader, all fields) fields {
	if k == userFile {
		return all
	}
	return r.elsewhere(all, k.keys(), "")
}

// onlyTLS does so for the section "tls", of which an organisation has one key.
func (k fileKind) onlyTLS(r *reader, all fields) fields {
	if k == userFile {
		return all
	}
	return r.elsewhere(all, []string{"never"}, "tls.")
}

func (r *reader) elsewhere(all fields, here []string, prefix string) fields {
	out := maps.Clone(all)
	for key := range all {
		if !slices.Contains(here, key) {
			out[key] = func(n *yaml.Node) { r.fail(n, "%s%s belongs into egressd.yaml; write it there", prefix, key) }
		}
	}
	return out
}

// ceiling reads the list "ceiling".
func (r *reader) ceiling(f *File) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.rules("ceiling", &f.Ceiling, Allow)(n)
		f.Ceiled = true
	}
}

// loosening reads a key that gives more than a destination, where a rule may.
func (r *reader) loosening(list, what string, read func(*yaml.Node)) func(*yaml.Node) {
	switch {
	case list == "ceiling":
		return func(n *yaml.Node) {
			r.fail(n, "%s: a ceiling says where to, and gives nothing; leave it out, and write it into the allow", what)
		}
	case r.kind == projectFile:
		return func(n *yaml.Node) {
			r.fail(n, "%s: a project cannot give that; write the rule into egressd.yaml", what)
		}
	case r.kind == organisationFile && strings.HasSuffix(what, ".inject"):
		return func(n *yaml.Node) {
			r.fail(n, "%s: credentials belong to who runs egressd; write the rule into egressd.yaml", what)
		}
	}
	return read
}

// plainRego reads a list of files and folders that decide.
func (r *reader) plainRego(what string, into *[]RegoSource) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.rego(what, into)(n)
		for i, s := range *into {
			if s.Bundle != "" || s.Shadow || s.Input != "egressd" {
				r.failAt(r.places[fmt.Sprintf("%s[%d]", what, i)], "%s[%d]: only files and folders that decide can stand here; write bundles, shadow and other inputs under the top-level key rego", what, i)
			}
		}
	}
}

// allMade reports Rego that a file names and of which nothing was made: what it would
// deny must not be forgotten.
func (f *File) allMade(env *Environment) error {
	o := env.Layers.Organisation
	own, ownShadow := env.Evaluators, env.Shadow
	if o != nil {
		own, ownShadow = env.Layers.User, env.ShadowLayers.User
	}
	switch {
	case o.names(false) && len(env.Evaluators) == 0, o.names(true) && len(env.Shadow) == 0:
		return errors.New("the organisation's file names rego, and nothing was made of it")
	case f.names(false) && len(own) == 0, f.names(true) && len(ownShadow) == 0:
		return errors.New("the file names rego, and nothing was made of it")
	}
	if err := f.allMadeBelow(&env.Layers); err != nil || !env.shadowed() {
		return err
	}
	return f.allMadeBelow(&env.ShadowLayers)
}

func (f *File) allMadeBelow(l *Layers) error {
	for _, s := range f.Sandboxes {
		if len(s.Rego) > 0 && len(l.Narrowing[s.Name]) == 0 {
			return fmt.Errorf("sandbox %s names rego, and nothing was made of it", s.Name)
		}
	}
	for name, one := range l.Projects {
		if len(one.File.Rego) > 0 && len(one.Evaluators) == 0 {
			return fmt.Errorf("the project of sandbox %s names rego, and nothing was made of it", name)
		}
	}
	return nil
}

// shadowed reports whether there is something in shadow.
func (env *Environment) shadowed() bool { return len(env.Shadow)+len(env.ShadowLayers.User) > 0 }

// slow reports whether something beside lists is asked.
func (env *Environment) slow() bool {
	l := &env.Layers
	n := len(env.Evaluators) + len(l.User) + len(l.Ceilings) + len(l.Narrowing)
	for _, one := range l.Projects {
		n += len(one.Evaluators)
	}
	return n > 0
}

// texts are what the digest covers of the layers: whose each is, and what it says.
func (l *Layers) texts() (all [][]byte, err error) {
	add := func(whose string, f *File) error {
		presets, err := f.parsePresets()
		all = append(all, []byte(whose), f.text)
		for _, preset := range presets {
			all = append(all, preset.text)
		}
		return err
	}
	if l.Organisation != nil {
		err = add("organisation", l.Organisation)
	}
	for _, name := range slices.Sorted(maps.Keys(l.Projects)) {
		one := l.Projects[name]
		err = errors.Join(err, add(fmt.Sprintf("project %s %t", name, one.Opens), one.File))
	}
	return all, err
}

// runOthersTests runs the tests of the other files: the organisation's against its
// own layer alone, since users may be stricter, and each project's as its sandbox.
func (f *File) runOthersTests(env *Environment, p *Policy) error {
	if o := env.Layers.Organisation; o != nil && len(o.Tests) > 0 {
		alone := Environment{Self: env.Self, Listeners: env.Listeners, Operator: env.Operator, Evaluators: env.Evaluators, Shadow: env.Shadow, Inspection: env.Inspection}
		if _, err := o.Compile(alone); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env.Layers.Projects)) {
		one := env.Layers.Projects[name]
		if !one.Opens {
			continue
		}
		if err := one.File.As(name).runTests(p); err != nil {
			return err
		}
	}
	return nil
}

// As returns a copy of f whose tests are asked by a sandbox.
func (f *File) As(sandbox string) *File {
	out := *f
	out.Tests = slices.Clone(f.Tests)
	for i := range out.Tests {
		out.Tests[i].Request.Sandbox.Name = sandbox
	}
	return &out
}
