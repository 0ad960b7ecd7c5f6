package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// An Environment is what a policy needs to know beside its file.
type Environment struct {
	// Self, Listeners and Operator are as in [BaselineOptions].
	Self      func() []netip.Addr
	Listeners func() []netip.AddrPort
	Operator  func() []netip.AddrPort

	// Evaluators are further opinions, of the organisation's layer. They can only
	// make the policy stricter than the file, except where the file is silent. With
	// any, and with any in Layers, the policy is not [Policy.Prompt].
	Evaluators []Evaluator

	// Texts are what the policy is made of beside the file. The digest covers
	// them, in their order.
	Texts [][]byte

	// Shadow, ShadowTexts and ShadowLayers stand in the place of Evaluators, Texts and
	// Layers in the policy that has sources in shadow: see [RegoSource.Shadow].
	Shadow       []Evaluator
	ShadowTexts  [][]byte
	ShadowLayers Layers

	// Inspection says that tunnels can be inspected, except those to the
	// patterns of [TLS.Never]. A tunnel that cannot is refused where a rule
	// looks at its requests.
	Inspection bool

	// Layers are the others that have a say.
	Layers Layers

	// Learn has what no rule of any layer speaks of pass, by the rule [LearnRule].
	// Nothing else is loosened: what a rule refuses, what the list of a sandbox
	// leaves out, what has no room in a ceiling, and the baseline.
	Learn bool

	// Grants are lines that count beside those of the file for a while.
	Grants []Grant
}

// compilerVersion stands in digests. It changes whenever the same text comes
// to mean something else.
const compilerVersion = "egressd policy 3"

// Compile makes the policy that the file describes, and runs its tests. The
// error is a [FileError] where a test is red. A file that names Rego does not
// compile without evaluators: what they would deny must not be forgotten.
//
// With sources in shadow, the policy has a shadow that is the same file with those
// in the place of all others. The tests of the file are not about it.
func (f *File) Compile(env Environment) (*Policy, error) {
	if err := f.allMade(&env); err != nil {
		return nil, err
	}
	presets, err := f.parsePresets()
	if err != nil {
		return nil, err
	}
	p, err := f.assemble(&env, presets)
	if err != nil {
		return nil, err
	}
	if err := f.test(&env, presets, p); err != nil {
		return nil, err
	}
	if !env.shadowed() {
		return p, nil
	}
	env.Evaluators, env.Texts, env.Layers = env.Shadow, append([][]byte{[]byte("shadow")}, env.ShadowTexts...), env.ShadowLayers
	other, err := f.assemble(&env, presets)
	if err != nil {
		return nil, err
	}
	return p.WithShadow(other), nil
}

// test runs the tests of all files against p, as if it withheld nothing for a while: they are
// about what the files say.
func (f *File) test(env *Environment, presets []*File, p *Policy) (err error) {
	if lasting := withoutDenials(env.Grants); len(lasting) < len(env.Grants) {
		other := *env
		other.Grants = lasting
		if p, err = f.assemble(&other, presets); err != nil {
			return err
		}
	}
	if err := f.runTests(p); err != nil {
		return err
	}
	return f.runOthersTests(env, p)
}

// names reports whether a source of Rego is in shadow, or in force.
func (f *File) names(shadow bool) bool {
	return f != nil && slices.ContainsFunc(f.Rego, func(s RegoSource) bool { return s.Shadow == shadow })
}

func (f *File) assemble(env *Environment, presets []*File) (*Policy, error) {
	p, err := f.stack(env, presets)
	if err != nil {
		return nil, err
	}
	texts, err := env.Layers.texts()
	if err != nil {
		return nil, err
	}
	texts = append(texts, env.Texts...)
	if env.Learn {
		texts = append(texts, []byte(LearnRule))
	}
	for i := range env.Grants {
		texts = append(texts, env.Grants[i].text())
	}
	p.slow, p.digest = env.slow() || !p.short(), f.digest(presets, texts)
	return p, nil
}

func (f *File) ech() bool { return f.TLS.ECH == "allow" }

func (f *File) parsePresets() ([]*File, error) {
	presets := make([]*File, len(f.Presets))
	for i, name := range slices.Sorted(slices.Values(f.Presets)) {
		preset, err := parsePreset(name)
		if err != nil {
			return nil, fmt.Errorf("read preset %s: %w", name, err)
		}
		for j := range preset.Allow {
			preset.Allow[j].ID = "preset:" + name
		}
		presets[i] = preset
	}
	return presets, nil
}

// baseline is that of the file and of the organisation's. A project makes no
// exception to it.
func (f *File) baseline(env *Environment) *Baseline {
	above := exceptionsOf(env.Layers.Organisation)
	return NewBaseline(BaselineOptions{
		Self:       env.Self,
		Listeners:  env.Listeners,
		Operator:   env.Operator,
		Exceptions: slices.Concat(f.Allow, above[0]),
		Unsafe:     slices.Concat(f.UnsafeAllow, above[1]),
	})
}

// topRules is the opinion of the lists at the top of the file and its presets, with what is
// granted beside them.
func (f *File) topRules(presets []*File, grants []Grant) *rules {
	rs := &rules{own: newIndex(), layer: f.kind.layer()}
	if f.Default == Allow {
		rs.silence = permissive
	}
	rs.own.addAll(f.Allow, Allow, f.ech())
	rs.own.addAll(f.UnsafeAllow, Allow, f.ech())
	rs.own.addAll(f.Deny, Deny, false)
	rs.own.addAll(f.Ask, Ask, false)
	rs.addGrants(grants, f.ech())
	rs.own.finish()
	if len(presets) == 0 {
		return rs
	}
	rs.presets = newIndex()
	for _, preset := range presets {
		rs.presets.addAll(preset.Allow, Allow, f.ech())
	}
	rs.presets.finish()
	return rs
}

func (f *File) sandboxLayer(grants []Grant) sandboxLayer {
	layer := make(sandboxLayer, len(f.Sandboxes))
	if len(f.Sandboxes) == 0 {
		layer["default"] = &rules{own: newIndex(), layer: PerSandbox, silence: permissive}
		layer["default"].own.finish()
		layer[unlisted] = layer["default"]
	}
	for _, s := range f.Sandboxes {
		rs := &rules{own: newIndex(), layer: PerSandbox, silence: permissive}
		if s.Narrowed {
			rs.silence = exhaustive
			rs.addOwnGrants(grants, s.Name)
		}
		rs.own.addAll(s.Allow, Allow, false)
		rs.own.addAll(s.Deny, Deny, false)
		rs.own.finish()
		layer[s.Name] = rs
	}
	return layer
}

func (ix *index) addAll(list []Rule, effect Verdict, ech bool) {
	for i := range list {
		ix.add(list[i].Pattern, list[i].compile(effect, ech))
	}
}

func (r *Rule) compile(effect Verdict, ech bool) rule {
	compiled := rule{
		effect: effect, ports: r.Pattern.ports, methods: r.Methods, paths: r.paths,
		id: r.ID, reason: r.Reason, at: r.at,
	}
	if slices.Contains(r.Methods, "GET") && !slices.Contains(r.Methods, "HEAD") {
		compiled.methods = append(slices.Clone(r.Methods), "HEAD")
	}
	if effect == Allow {
		compiled.options = options{anyProtocol: r.AnyProtocol, ech: r.ECH || ech, upgrade: r.Upgrade}
		compiled.injects = r.Inject != nil
		if r.Reason == "" {
			compiled.reason = "rule " + r.ID + " allows it"
		}
	}
	return compiled
}

// digest covers all text that the policy is made of. Each part stands behind
// its length, so that no two sets of parts read the same.
func (f *File) digest(presets []*File, more [][]byte) string {
	var all []byte
	add := func(part []byte) { all = append(fmt.Appendf(all, "%d\n", len(part)), part...) }
	add([]byte(compilerVersion))
	add(f.text)
	for _, preset := range presets {
		add(preset.text)
	}
	for _, text := range more {
		add(text)
	}
	return digestOf(all)
}

func (f *File) runTests(p *Policy) error {
	var red FileError
	for i := range f.Tests {
		if problem, ok := f.RunTest(context.Background(), p, i); !ok {
			red = append(red, problem)
		}
	}
	if len(red) > 0 {
		return red.sorted()
	}
	return nil
}

// RunTest runs the test f.Tests[i] against p, and says what is wrong where it is
// red. It judges the rules as they are written: as if every tunnel could be
// inspected, and nothing were learned. The problem has the test's place either way.
func (f *File) RunTest(ctx context.Context, p *Policy, i int) (_ Problem, green bool) {
	inspecting := *p
	inspecting.inspection, inspecting.learning = true, false
	at := f.Tests[i].at
	problem := Problem{File: f.name, Line: at.line, Column: at.column}
	if err := f.Tests[i].run(ctx, &inspecting); err != nil {
		problem.Message = err.Error()
		return problem, false
	}
	return problem, true
}
