package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
)

// Parts are everything that a [Policy] is assembled from. Across layers the strictest opinion counts.
type Parts struct {
	// Self, Listeners and AdminListeners are as in [BaselineOptions].
	Self           func() []netip.Addr
	Listeners      func() []netip.AddrPort
	AdminListeners func() []netip.AddrPort

	// Upstream and UpstreamAt are as in [BaselineOptions].
	Upstream   *Destination
	UpstreamAt func() []netip.AddrPort

	// Lists are the rules of the file that egressd was given. Organisation are those of the organisation above it, or nil.
	Lists        Lists
	Organisation *Lists

	// Sandboxes are the rules of single sandboxes. If the list is empty, there is one sandbox,
	// "default", without rules of its own. A sandbox that a non-empty list does not name is denied.
	Sandboxes []SandboxLists

	// Projects are the working trees of sandboxes, by the name of the sandbox.
	Projects map[string]ProjectLists

	// Evaluators are further opinions of the organisation's layer. They make the policy stricter,
	// except where the lists are silent.
	Evaluators []Evaluator

	// User are further opinions below the organisation.
	User []Evaluator

	// Ceilings limit what the layers below the organisation may open, beside the ceilings in the lists.
	Ceilings []Ceiling

	// Narrowing are further opinions on one sandbox each, by its name. They open nothing.
	Narrowing map[string][]Narrowing

	// Grants are rules that count beside those of Lists for a while.
	Grants []Grant

	// Never holds the destinations whose tunnels are never inspected.
	Never []Pattern

	// Inspection says that tunnels can be inspected, except those to Never. A tunnel that cannot
	// be inspected is refused where a rule depends on its requests.
	Inspection bool

	// Observe lets requests pass that no rule of any layer is about.
	Observe []Observation

	// Texts are the sources of the policy. The digest covers them, in their order.
	Texts [][]byte

	// Code is what decides beside the lists, without comments and names of files: see [Policy.RulesID].
	Code [][]byte

	// Revisions are those of the bundles that have one.
	Revisions []string
}

// Lists are the rules of one author: an organisation, a user or a project.
type Lists struct {
	Layer Layer

	// Of the rules that match a request, deny beats ask and ask beats allow, unless the other pattern names the host more
	// closely ([Pattern.Closer]). A deny or an ask without a port means every port.
	Allow, Deny, Ask []Rule

	// HostLists are further rules, allows and denies, in files that have one pattern a line.
	HostLists []ListedHosts

	// UnsafeAllow are allow rules that open what the baseline keeps shut for Allow.
	UnsafeAllow []Rule

	// Presets are allow rules that count only where the other lists are silent.
	Presets []Rule

	// Default is Allow if the lists are exceptions from general access, else Deny.
	Default Verdict

	// ECH lets every allow rule pass a ClientHello with encrypted client hello.
	ECH bool

	// Ceiling lists what the layers below the organisation may open at most, if Ceiled is set.
	// An empty ceiling lets them open nothing.
	Ceiling []Rule
	Ceiled  bool
}

// SandboxLists are the rules of one sandbox. Only AlsoAllow opens something by itself.
type SandboxLists struct {
	Name string

	// Allow, if Narrowed is set, is all that the sandbox may reach.
	Allow    []Rule
	Narrowed bool

	Deny []Rule

	// AlsoAllow opens to the sandbox what no line of the file speaks of. It makes no exception to the baseline.
	AlsoAllow []Rule
}

// ProjectLists are the layer of the working tree of one sandbox.
type ProjectLists struct {
	Lists      Lists
	Evaluators []Evaluator

	// Opens says that allow rules of the project count. They also need a ceiling. Otherwise only
	// its denials and questions count.
	Opens bool
}

// Assemble returns the policy that the parts describe. Without a ceiling it makes no
// difference who opens a destination.
func Assemble(parts Parts) *Policy {
	b := &parts
	ceilings := b.ceilings()
	baseline := b.baseline()
	p := &Policy{
		baseline:   baseline,
		ceilings:   ceilings,
		fallback:   b.Lists.Default,
		ech:        b.Lists.ECH,
		inspection: b.Inspection,
		never:      indexOf(b.Never),
		digest:     digestOf(b.texts()),
		parts:      b,
		identity:   &identity{parts: b},
	}
	projects := b.projects(len(ceilings) > 0)
	lists := b.Lists.evaluator(b.Grants, b.Sandboxes...)
	p.evaluators = []Evaluator{baseline}
	if b.Organisation != nil {
		p.evaluators = append(p.evaluators, b.Organisation.evaluator(nil))
	}
	if b.Lists.Layer == Organisation {
		p.evaluators = append(p.evaluators, lists)
	} else {
		p.below = append(p.below, lists)
	}
	p.below = append(p.below, projects.opening()...)
	p.narrowing = projects.closed()
	own := b.sandboxes(baseline)
	p.evaluators = append(p.evaluators, own)
	p.observed = newObservations(b.Observe, own)
	if len(b.Narrowing) > 0 {
		p.narrowing = append(p.narrowing, narrowLayer{newListed(b.Narrowing)})
	}
	p.evaluators = append(p.evaluators, b.Evaluators...)
	p.below = append(p.below, b.User...)
	p.evaluators = append(p.evaluators, b.guards()...)
	p.slow = b.slow() || !p.short()
	for i := range b.Lists.Allow {
		if r := &b.Lists.Allow[i]; len(r.Set) > 0 {
			p.setting = append(p.setting, r)
		}
	}
	return p
}

// texts returns everything that the digest covers.
func (b *Parts) texts() [][]byte {
	all := slices.Clone(b.Texts)
	for i := range b.Lists.HostLists {
		all = append(all, []byte(b.Lists.HostLists[i].ID), b.Lists.HostLists[i].Hosts.text)
	}
	return all
}

func (b *Parts) baseline() *Baseline {
	above := b.Organisation.exceptions()
	return NewBaseline(BaselineOptions{
		Self: b.Self, Listeners: b.Listeners, AdminListeners: b.AdminListeners, Upstream: b.Upstream, UpstreamAt: b.UpstreamAt,
		Exceptions: slices.Concat(b.Lists.Allow, above[0]),
		Unsafe:     slices.Concat(b.Lists.UnsafeAllow, above[1]),
	})
}

// exceptions returns the rules with which the lists make exceptions to the baseline, and the unsafe ones.
func (l *Lists) exceptions() (opening [2][]Rule) {
	if l == nil {
		return opening
	}
	return [2][]Rule{l.Allow, l.UnsafeAllow}
}

// evaluator returns the opinion of the lists, with what is granted beside them, and what is opened to single sandboxes.
func (l *Lists) evaluator(grants []Grant, sandboxes ...SandboxLists) *rules {
	rs := &rules{own: newIndex(), layer: l.Layer}
	if l.Default == Allow {
		rs.silence = permissive
	}
	rs.own.files, rs.own.ech = l.HostLists, l.ECH
	rs.own.addAll(l.Allow, Allow, l.ECH)
	rs.own.addAll(l.UnsafeAllow, Allow, l.ECH)
	rs.own.addAll(l.Deny, Deny, false)
	rs.own.addAll(l.Ask, Ask, false)
	rs.addGrants(grants, l.ECH)
	for i := range sandboxes {
		rs.addAlsoAllow(&sandboxes[i])
	}
	if len(l.Presets) > 0 {
		rs.presets = newIndex()
		rs.presets.addAll(l.Presets, Allow, l.ECH)
	}
	rs.finish()
	return rs
}

func (b *Parts) sandboxes(baseline *Baseline) sandboxLayer {
	layer := make(map[string]*rules, len(b.Sandboxes))
	if len(b.Sandboxes) == 0 {
		layer["default"] = &rules{own: newIndex(), layer: PerSandbox, silence: permissive}
		layer["default"].own.finish()
		layer[unlisted] = layer["default"]
	}
	for _, s := range b.Sandboxes {
		rs := &rules{own: newIndex(), layer: PerSandbox, silence: permissive}
		if s.Narrowed {
			rs.silence = exhaustive
			rs.addOwnGrants(b.Grants, s.Name)
		}
		rs.own.addAll(s.Allow, Allow, false)
		if s.Narrowed {
			rs.own.addAll(s.AlsoAllow, Allow, false)
		}
		rs.own.addAll(s.Deny, Deny, false)
		rs.finish()
		layer[s.Name] = rs
	}
	return sandboxLayer{newListed(layer), byName(b.Observe), baseline}
}

// projects returns the opinion of all projects. A project opens nothing without a ceiling.
func (b *Parts) projects(ceiled bool) projectLayer {
	layer := projectLayer{}
	for name, one := range b.Projects {
		evaluators := append([]Evaluator{one.Lists.evaluator(nil)}, one.Evaluators...)
		layer[name] = &openProject{evaluators, one.Opens && ceiled}
	}
	return layer
}

// ceilings returns the ceilings of the lists and the further ones.
func (b *Parts) ceilings() (all []Ceiling) {
	for _, l := range b.ceiled() {
		rs := &rules{own: newIndex(), layer: Organisation, silence: exhaustive}
		if l.Layer == User && b.Organisation != nil {
			rs.layer = User // otherwise nobody else can have written it
		}
		rs.own.addAll(l.Ceiling, Allow, false)
		rs.own.finish()
		all = append(all, Ceiling{rs, rs.layer})
	}
	return append(all, b.Ceilings...)
}

func (b *Parts) ceiled() (all []*Lists) {
	for _, l := range []*Lists{b.Organisation, &b.Lists} {
		if l != nil && l.Ceiled {
			all = append(all, l)
		}
	}
	return all
}

// guards keep the exceptions that the layers below the organisation make to the baseline under
// the ceilings: every listed ceiling has to name each of them. If all ceilings are evaluators,
// these layers make no exceptions.
func (b *Parts) guards() (all []Evaluator) {
	own := b.Lists.exceptions()
	if b.Lists.Layer == Organisation || len(b.ceilings()) == 0 || len(exceptions(own[0]))+len(own[1]) == 0 {
		return nil
	}
	for _, l := range b.ceiled() {
		all = append(all, b.guard(l.Ceiling))
	}
	if len(all) == 0 {
		all = append(all, b.guard(nil))
	}
	return all
}

func (b *Parts) guard(named []Rule) namedBaseline {
	above := b.Organisation.exceptions()
	return namedBaseline{NewBaseline(BaselineOptions{
		Self: b.Self, Listeners: b.Listeners, AdminListeners: b.AdminListeners, Upstream: b.Upstream, UpstreamAt: b.UpstreamAt,
		Exceptions: slices.Concat(above[0], named), Unsafe: slices.Concat(above[1], named),
	})}
}

// slow reports whether the policy has evaluators that are not lists.
func (b *Parts) slow() bool {
	n := len(b.Evaluators) + len(b.User) + len(b.Ceilings) + len(b.Narrowing)
	for _, one := range b.Projects {
		n += len(one.Evaluators)
	}
	return n > 0
}

// compilerVersion is part of digests. It changes whenever the same text gets another meaning.
const compilerVersion = "egressd policy 4"

// digestOf covers the compiler's version and all texts. Each part stands behind
// its length, so no two different lists of parts have the same digest.
func digestOf(texts [][]byte) string {
	all := sha256.New()
	for _, part := range append([][]byte{[]byte(compilerVersion)}, texts...) {
		fmt.Fprintf(all, "%d\n", len(part))
		all.Write(part)
	}
	return "sha256:" + hex.EncodeToString(all.Sum(nil))
}
