package file

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/egressd/egressd/policy"
)

// An Environment is what a policy needs to know beside its file.
type Environment struct {
	// Self, Listeners and AdminListeners are as in [policy.BaselineOptions].
	Self           func() []netip.Addr
	Listeners      func() []netip.AddrPort
	AdminListeners func() []netip.AddrPort

	// UpstreamAt is as in [policy.BaselineOptions]. The proxy itself stands in the file.
	UpstreamAt func() []netip.AddrPort

	// Evaluators are further opinions, of the organisation's layer. They can only
	// make the policy stricter than the file, except where the file is silent. With
	// any, and with any in Layers, the policy is not [policy.Policy.AnswersAtOnce].
	Evaluators []policy.Evaluator

	// Texts are what the policy is made of beside the file. The digest covers
	// them, in their order.
	Texts [][]byte

	// Code and Revisions are as in [policy.Parts].
	Code      [][]byte
	Revisions []string

	// Shadow, ShadowTexts, ShadowCode and ShadowLayers stand in the place of Evaluators, Texts, Code and
	// Layers in the policy that has sources in shadow: see [RegoSource.Shadow].
	Shadow       []policy.Evaluator
	ShadowTexts  [][]byte
	ShadowCode   [][]byte
	ShadowLayers Layers

	// Inspection says that tunnels can be inspected, except those to the
	// patterns of [TLS.Never]. A tunnel that cannot is refused where a rule
	// looks at its requests.
	Inspection bool

	// Layers are the others that have a say.
	Layers Layers

	// Learn has what no rule of any layer speaks of pass, by the rule [policy.LearnRule].
	// Nothing else is loosened: what a rule refuses, what the list of a sandbox
	// leaves out, what has no room in a ceiling, and the baseline.
	Learn bool

	// HostLists are the rules of the files under allow_file and deny_file, which [File.Compile] does not read itself.
	HostLists []policy.ListedHosts

	// Grants are lines that count beside those of the file for a while.
	Grants []policy.Grant
}

// Layers are the parts of a policy beside the user's file and the organisation's
// evaluators. Across layers the strictest opinion counts.
type Layers struct {
	// Organisation is the file of [ParseOrganisation]; nil where there is none. With
	// it, the file that is compiled is the user's alone.
	Organisation *File

	// User are further opinions below the organisation.
	User []policy.Evaluator

	// Ceilings bound the layers below the organisation, beside the ceiling lists of the
	// files: a request passes only if each ceiling allows it.
	Ceilings []policy.Ceiling

	// Narrowing are evaluators for one sandbox each, by its name. Their allows open
	// nothing; their refusals count.
	Narrowing map[string][]policy.Narrowing

	// Projects are the working trees of sandboxes, by the name of the sandbox.
	Projects map[string]WorkingTree
}

// A WorkingTree is the project layer of one sandbox.
type WorkingTree struct {
	File       *File // of [ParseProject]
	Evaluators []policy.Evaluator

	// Opens is whether what the project allows counts. Where it does not, only what
	// it denies and asks about does.
	Opens bool
}

// Compile makes the policy that the file describes, and runs its tests. The
// error is a [policy.FileError] where a test is red. A file that names Rego does not
// compile without evaluators: what they would deny must not be forgotten.
//
// If sources are in shadow, the policy has a shadow: the same file with only these sources. The tests of the file do not
// apply to the shadow.
func (f *File) Compile(env Environment) (*policy.Policy, error) {
	if err := f.allMade(&env); err != nil {
		return nil, err
	}
	p, err := f.assemble(&env)
	if err != nil {
		return nil, err
	}
	if err := f.test(&env, p); err != nil {
		return nil, err
	}
	if !env.shadowed() {
		return p, nil
	}
	env.Evaluators, env.Texts, env.Layers = env.Shadow, append([][]byte{[]byte("shadow")}, env.ShadowTexts...), env.ShadowLayers
	env.Code, env.Revisions = env.ShadowCode, nil
	other, err := f.assemble(&env)
	if err != nil {
		return nil, err
	}
	return p.WithShadow(other), nil
}

func (f *File) names(shadow bool) bool {
	return f != nil && slices.ContainsFunc(f.Rego, func(s RegoSource) bool { return s.Shadow == shadow && !s.Elsewhere })
}

// assemble makes the policy of the file and all layers, and runs no test.
func (f *File) assemble(env *Environment) (*policy.Policy, error) {
	own, err := f.lists()
	if err != nil {
		return nil, err
	}
	own.rules.HostLists = env.HostLists
	l := &env.Layers
	parts := policy.Parts{
		Self: env.Self, Listeners: env.Listeners, AdminListeners: env.AdminListeners,
		Upstream: f.Upstream.Proxy.destination(), UpstreamAt: env.UpstreamAt,
		Lists:      own.rules,
		Projects:   make(map[string]policy.ProjectLists, len(l.Projects)),
		Evaluators: env.Evaluators,
		User:       l.User,
		Ceilings:   l.Ceilings,
		Narrowing:  l.Narrowing,
		Grants:     env.Grants,
		Never:      f.TLS.Never,
		Inspection: env.Inspection,
		Observe:    f.observations(env.Learn),
		Texts:      own.texts,
		Code:       env.Code,
		Revisions:  env.Revisions,
	}
	for _, s := range f.Sandboxes {
		parts.Sandboxes = append(parts.Sandboxes, policy.SandboxLists{Name: s.Name, Allow: s.Allow, Narrowed: s.Narrowed, Deny: s.Deny, AlsoAllow: s.AlsoAllow})
	}
	if o := l.Organisation; o != nil {
		above, err := o.lists()
		if err != nil {
			return nil, err
		}
		parts.Organisation = &above.rules
		parts.Never = slices.Concat(parts.Never, o.TLS.Never)
		parts.Texts = append(append(parts.Texts, []byte("organisation")), above.texts...)
	}
	for _, name := range slices.Sorted(maps.Keys(l.Projects)) {
		one := l.Projects[name]
		lists, err := one.File.lists()
		if err != nil {
			return nil, fmt.Errorf("project of sandbox %s: %w", name, err)
		}
		parts.Projects[name] = policy.ProjectLists{Lists: lists.rules, Evaluators: one.Evaluators, Opens: one.Opens}
		parts.Texts = append(append(parts.Texts, fmt.Appendf(nil, "project %s %t", name, one.Opens)), lists.texts...)
	}
	parts.Texts = append(parts.Texts, env.Texts...)
	if env.Learn {
		parts.Texts = append(parts.Texts, []byte(policy.LearnRule))
	}
	for i := range env.Grants {
		parts.Texts = append(parts.Texts, env.Grants[i].Text())
	}
	return policy.Assemble(parts), nil
}

// fileLists are the rules of a file and of its presets, and their texts.
type fileLists struct {
	rules policy.Lists
	texts [][]byte
}

func (f *File) lists() (fileLists, error) {
	presets, err := parsePresets(f.Presets)
	if err != nil {
		return fileLists{}, err
	}
	out := fileLists{
		rules: policy.Lists{
			Layer: f.kind.layer(),
			Allow: f.Allow, Deny: append(slices.Clip(f.Deny), f.mints()...), Ask: f.Ask, UnsafeAllow: f.UnsafeAllow,
			Default: f.Default, ECH: f.TLS.ECH == "allow",
			Ceiling: f.Ceiling, Ceiled: f.Ceiled,
		},
		texts: append([][]byte{f.text}, f.expansions...),
	}
	for _, preset := range presets {
		out.rules.Presets = append(out.rules.Presets, preset.Allow...)
		out.texts = append(out.texts, preset.text)
	}
	return out, nil
}

// allMade reports Rego that a file names and of which nothing was made: what it would
// deny must not be forgotten.
func (f *File) allMade(env *Environment) error {
	if len(env.HostLists) != len(f.AllowFiles)+len(f.DenyFiles) {
		return errors.New("the file names allow_file or deny_file, and they were not read")
	}
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
