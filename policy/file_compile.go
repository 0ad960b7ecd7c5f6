package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// An Environment is what a policy needs to know beside its file.
type Environment struct {
	// Self and Listeners are as in [BaselineOptions].
	Self      func() []netip.Addr
	Listeners func() []netip.AddrPort

	// Evaluators are further opinions. They can only make the policy stricter
	// than the file, except where the file is silent. With any, the policy is
	// not [Policy.Prompt].
	Evaluators []Evaluator

	// Inspection says that tunnels can be inspected, except those to the
	// patterns of [TLS.Never]. A tunnel that cannot is refused where a rule
	// looks at its requests.
	Inspection bool
}

// compilerVersion stands in digests. It changes whenever the same text comes
// to mean something else.
const compilerVersion = "egressd policy 2"

// Compile makes the policy that the file describes, and runs its tests. The
// error is a [FileError] where a test is red.
func (f *File) Compile(env Environment) (*Policy, error) {
	presets, err := f.parsePresets()
	if err != nil {
		return nil, err
	}
	evaluators := []Evaluator{f.baseline(env), f.topRules(presets), f.sandboxLayer()}
	p := &Policy{
		evaluators: append(evaluators, env.Evaluators...),
		fallback:   f.Default,
		ech:        f.ech(),
		inspection: env.Inspection,
		never:      f.neverIndex(),
		slow:       len(env.Evaluators) > 0,
		digest:     f.digest(presets),
	}
	if err := f.runTests(p); err != nil {
		return nil, err
	}
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

func (f *File) baseline(env Environment) *Baseline {
	return NewBaseline(BaselineOptions{
		Self:       env.Self,
		Listeners:  env.Listeners,
		Exceptions: specialPatterns(f.Allow),
		Unsafe:     patterns(f.UnsafeAllow),
	})
}

func patterns(list []Rule) []Pattern {
	all := make([]Pattern, len(list))
	for i, rule := range list {
		all[i] = rule.Pattern
	}
	return all
}

func specialPatterns(list []Rule) []Pattern {
	public := func(p Pattern) bool { return !InSpecialSpace(p) }
	return slices.DeleteFunc(patterns(list), public)
}

// topRules is the opinion of the lists at the top of the file and its presets.
func (f *File) topRules(presets []*File) *rules {
	rs := &rules{own: newIndex(), layer: User}
	if f.Default == Allow {
		rs.silence = permissive
	}
	rs.own.addAll(f.Allow, Allow, f.ech())
	rs.own.addAll(f.UnsafeAllow, Allow, f.ech())
	rs.own.addAll(f.Deny, Deny, false)
	rs.own.addAll(f.Ask, Ask, false)
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

func (f *File) sandboxLayer() sandboxLayer {
	layer := make(sandboxLayer, len(f.Sandboxes))
	if len(f.Sandboxes) == 0 {
		layer["default"] = &rules{own: newIndex(), layer: PerSandbox, silence: permissive}
		layer["default"].own.finish()
	}
	for _, s := range f.Sandboxes {
		rs := &rules{own: newIndex(), layer: PerSandbox, silence: permissive}
		if s.Narrowed {
			rs.silence = exhaustive
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
		id: r.ID, reason: r.Reason,
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
func (f *File) digest(presets []*File) string {
	var all []byte
	add := func(part []byte) { all = append(fmt.Appendf(all, "%d\n", len(part)), part...) }
	add([]byte(compilerVersion))
	add(f.text)
	for _, preset := range presets {
		add(preset.text)
	}
	return digestOf(all)
}

// runTests judges the rules as they are written: as if every tunnel could be
// inspected.
func (f *File) runTests(p *Policy) error {
	inspecting := *p
	inspecting.inspection = true
	var red FileError
	for i := range f.Tests {
		if err := f.Tests[i].run(context.Background(), &inspecting); err != nil {
			at := f.Tests[i].at
			red = append(red, Problem{f.name, at.line, at.column, err.Error()})
		}
	}
	if len(red) > 0 {
		return red.sorted()
	}
	return nil
}
