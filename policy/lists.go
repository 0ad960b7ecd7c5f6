package policy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// rules is the [Evaluator] of lists of rules. Of the rules that match a request, those that name its host most closely
// count ([Pattern.Closer]), and the strictest of them decides.
type rules struct {
	first   *index // temporary denies, asked before own; nil where there are none
	own     *index
	granted *index // temporary allows and those for one sandbox, asked where own is silent; nil where there are none
	presets *index // asked where own and granted are silent; nil where there are none
	layer   Layer
	silence silence
}

// A silence says what a list means for what none of its rules decides.
type silence uint8

const (
	// silent: no opinion, except that a destination of which only some requests
	// are allowed has its others denied.
	silent silence = iota
	// permissive: no opinion at all. Rules are exceptions from "default: allow".
	permissive
	// exhaustive: denied. The list is all there is.
	exhaustive
)

// addGrants adds temporary allows and denies. Grants of any other effect count as denies.
func (rs *rules) addGrants(grants []Grant, ech bool) {
	for i := range grants {
		g := &grants[i]
		if g.Effect == Allow {
			rs.addAllow(g, ech)
			continue
		}
		denied := *g
		denied.Effect = Deny
		addTo(&rs.first, g.Pattern, denied.compile(false))
	}
}

// addOwnGrants adds what is allowed to one sandbox alone to its own list, or to that of its template.
func (rs *rules) addOwnGrants(grants []Grant, name string) {
	of, _ := ParseTemplate(name)
	for i := range grants {
		g := &grants[i]
		_, fits := of.ID(g.Sandbox)
		if g.Effect == Allow && (fits || g.Sandbox == name) {
			rs.addAllow(g, false)
		}
	}
}

// addAlsoAllow adds what the file opens to one sandbox, or to those of one template.
func (rs *rules) addAlsoAllow(s *SandboxLists) {
	kind, _ := ParseTemplate(s.Name)
	for i := range s.AlsoAllow {
		compiled := s.AlsoAllow[i].compile(Allow, false)
		compiled.sandbox, compiled.kind = s.Name, kind
		addTo(&rs.granted, s.AlsoAllow[i].Pattern, compiled)
	}
}

func (rs *rules) addAllow(g *Grant, ech bool) {
	into := &rs.granted
	if g.OverDeny {
		into = &rs.own
	}
	addTo(into, g.Pattern, g.compile(ech))
}

func addTo(ix **index, p Pattern, r rule) {
	if *ix == nil {
		*ix = newIndex()
	}
	(*ix).add(p, r)
}

// indexes are in the order in which they are asked. Some are nil.
func (rs *rules) indexes() [4]*index { return [...]*index{rs.first, rs.own, rs.granted, rs.presets} }

// finish is called once, after the last rule was added.
func (rs *rules) finish() {
	for _, ix := range rs.indexes() {
		if ix != nil {
			ix.finish()
		}
	}
}

// Evaluate judges the host that the sandbox asked for by every rule, and the
// addresses and aliases that it resolved to by those that deny or ask: an
// allowed address allows no name.
func (rs *rules) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	t := evaluationTurn{ctx: ctx, sandbox: &r.Sandbox}
	defer t.end()
	s := rs.searchFor(r)
	s.turn = &t
	d := s.at(r, r.Destination.Port)
	rs.resolvedTo(r, func(s search) {
		s.turn = &t
		d = combine(d, restricting(s.at(r, r.Destination.Port)))
	})
	return d, t.err
}

// Probe implements [prober].
func (rs *rules) Probe(_ context.Context, r *Request, p *Probes) {
	s := rs.searchFor(r)
	s.probe(p)
	rs.resolvedTo(r, func(s search) { s.probe(p) })
}

// resolvedTo calls yield with a search for each address and alias that the destination of r
// was resolved to, and for the IPv4 address in each.
func (rs *rules) resolvedTo(r *Request, yield func(search)) {
	dst := &r.Destination
	about := func(alias string, addr netip.Addr) {
		yield(search{rules: rs, who: r.Sandbox.Name, buckets: rs.find(alias, addr, dst.Port, r.Sandbox.Name), silence: permissive, resolved: true})
	}
	for _, addr := range dst.Addrs {
		if addr != dst.Addr {
			about("", addr)
		}
		if v4 := EmbeddedIPv4(addr); v4.IsValid() {
			about("", v4)
		}
	}
	if v4 := EmbeddedIPv4(dst.Addr); v4.IsValid() {
		about("", v4)
	}
	for _, alias := range dst.Aliases {
		about(alias, netip.Addr{})
	}
}

// searchFor finds the rules about the host that was asked for.
func (rs *rules) searchFor(r *Request) search {
	return search{rules: rs, who: r.Sandbox.Name, buckets: rs.find(r.Destination.Host, r.Destination.Addr, r.Destination.Port, r.Sandbox.Name), silence: rs.silence}
}

func (rs *rules) find(name string, addr netip.Addr, port uint16, who string) (b [4]*bucket) {
	for i, ix := range rs.indexes() {
		if ix != nil {
			b[i] = ix.find(name, addr, port, who)
		}
	}
	return b
}

// longest returns the length of the longest chain of rules for one host.
func (rs *rules) longest() (n int) {
	for _, ix := range rs.indexes() {
		n += ix.longest()
	}
	return n
}

// A search goes through the rules for one host. The first that matches the request decides.
type search struct {
	rules    *rules
	who      string     // the sandbox
	buckets  [4]*bucket // where to begin in each of [rules.indexes]
	silence  silence
	resolved bool // the host was not asked for, but is what was asked for resolved to
	turn     *evaluationTurn
}

// each calls yield with every rule at port until it returns false.
func (s *search) each(port uint16, yield func(*rule) bool) {
	for _, b := range s.buckets {
		for ; b != nil; b = b.next {
			if s.resolved && b.pattern.kind == anyHost {
				break
			}
			for i := range b.rules {
				if b.rules[i].ports.has(port) && b.rules[i].stands(s.who) && !yield(&b.rules[i]) {
					return
				}
			}
		}
	}
}

func (s *search) at(r *Request, port uint16) Decision {
	if r.HTTP == nil {
		return s.unseen(r, port)
	}
	found, missed, awaits := s.seen(r, port)
	switch {
	case awaits != 0:
		return Decision{Verdict: Inspect, Rule: found.id, Layer: s.rules.layer, Needs: awaits, Reason: "rule " + found.id + " reads the body of the request"}
	case found != nil:
		return s.decide(r, port, found)
	case missed != nil && s.silence != permissive:
		return s.misses(r, port, missed)
	}
	return s.nothing(r)
}

// seen returns the first rule that is about the request, or nil and the allow
// that came nearest. A WebSocket passes over allows without "upgrade" to the first
// allow with it, or to an approved ask. A deny or ask in between stops the search. If awaits is not 0, the body decides
// whether the found rule matches.
func (s *search) seen(r *Request, port uint16) (found, missed *rule, awaits Needs) {
	h := r.HTTP
	var plain *rule // would allow the request if it were no WebSocket
	s.each(port, func(candidate *rule) bool {
		if !s.turn.spend(candidate.work(h)) {
			return false
		}
		awaits = candidate.awaits(h)
		switch {
		case awaits != 0:
			found = candidate
			return false
		case !candidate.holds(h):
			if candidate.effect == Allow && candidate.nearer(missed, h) {
				missed = candidate
			}
			return true
		case h.Upgrade && candidate.effect == Allow && !s.upgrades(candidate):
			plain = cmp.Or(plain, candidate)
			return true
		}
		found = candidate
		return false
	})
	if plain != nil && awaits == 0 && (found == nil || s.effect(r, found) != Allow) {
		found = plain
	}
	return found, missed, awaits
}

// nearer reports whether an allow that a request does not meet comes nearer to it than other, which may be nil.
func (r *rule) nearer(other *rule, h *HTTPRequest) bool {
	return other == nil || r.nearness(h) > other.nearness(h)
}

// nearness is greater the more of a rule's conditions a request meets, in the order in which they are looked at.
func (r *rule) nearness(h *HTTPRequest) (n int) {
	switch {
	case !r.holdsMethodOf(h):
	case !r.holdsPath(h.Path):
		n = 1
	default:
		n = 2
	}
	if r.near(h) {
		n += 3
	}
	return n
}

// upgrades reports whether an allow lets a request become a WebSocket. An allow without
// conditions does, because it judges no request. So does every allow of a list of
// exceptions ("default: allow"), because it changes no verdict.
func (s *search) upgrades(allow *rule) bool {
	return allow.options.upgrade || !allow.conditional() || s.silence == permissive
}

// effect is what a rule comes to for a request: where a person has approved what it asks,
// it allows that.
func (s *search) effect(r *Request, by *rule) Verdict {
	if by.effect == Ask && r.ApprovedBy(s.rules.layer, "", by.id) != "" {
		return Allow
	}
	return by.effect
}

// rulesAtPort is what the rules at a port come to without the request: those
// with a condition, and the first without one.
type rulesAtPort struct {
	possible verdicts
	first    *rule // the one to name: the loosest, of those the first
	ends     bool  // the last rule has no condition
	needs    Needs
	question string // those whose answers it rests on
	missed   *rule  // an allow of other methods than the one that is tried, or nil
	budgets  bool   // requests have different budgets
}

// verdicts is a set of verdicts.
type verdicts uint8

func (v verdicts) has(verdict Verdict) bool { return v&(1<<verdict) != 0 }

func (s *search) rulesAt(r *Request, port uint16) (o rulesAtPort) {
	tried := r.triedMethod()
	s.each(port, func(candidate *rule) bool {
		effect := s.effect(r, candidate)
		if tried != "" && !candidate.holdsMethod(tried) {
			if effect == Allow {
				o.missed = cmp.Or(o.missed, candidate)
			}
			return true
		}
		if o.first == nil || effect > s.effect(r, o.first) {
			o.first = candidate
		}
		o.budgets = o.budgets || o.first.most != candidate.most
		o.possible |= 1 << effect
		if effect != candidate.effect {
			o.question = bothQuestions(o.question, r.ApprovedBy(s.rules.layer, "", candidate.id))
			if candidate.conditional() {
				o.possible |= 1 << candidate.effect // an approval of some requests lets no tunnel pass unread
			}
		}
		o.needs |= candidate.needs()
		asks := candidate.sees()
		o.ends = asks == 0 || asks == NeedsMethod && tried != ""
		return !o.ends
	})
	return o
}

// unseen decides before the request is known. The first rule without a condition decides
// if all rules before it have the same effect; otherwise the decision needs the request.
func (s *search) unseen(r *Request, port uint16) Decision {
	o := s.rulesAt(r, port)
	switch {
	case o.ends:
	case o.possible == 0 && o.missed != nil && s.silence != permissive:
		return Decision{Class: MethodDenied, Rule: o.missed.id, Layer: s.rules.layer, Reason: "rule " + o.missed.id + " allows no such request to " + whereTo(r)}
	case (o.possible.has(Allow) || o.missed != nil) && s.silence == silent, s.silence == exhaustive && o.possible != 0:
		o.possible |= 1 << Deny
	case o.possible.has(Deny) || o.possible.has(Ask):
		return Decision{Verdict: Abstain, Needs: o.needs, AllowedIf: s.allowedIf(port)}
	case o.needs&NeedsCredential != 0:
		return Decision{Verdict: Abstain, Needs: o.needs}
	default:
		return s.nothing(r)
	}
	switch {
	case !o.possible.has(Allow), o.possible == 1<<Allow && o.needs&NeedsCredential == 0 && !o.budgets:
		d := s.decide(r, port, o.first)
		d.Question = bothQuestions(d.Question, o.question)
		return d
	case o.possible == 1<<Allow && o.budgets:
		return s.inspect(o, "rules let different numbers of bytes go up to "+whereTo(r))
	case o.possible == 1<<Allow:
		return s.inspect(o, "a rule adds a credential or a field to requests to "+whereTo(r))
	}
	d := s.inspect(o, "rule "+o.first.id+" allows some requests")
	d.AllowedIf = s.allowedIf(port)
	return d
}

func (s *search) inspect(o rulesAtPort, why string) Decision {
	return Decision{Verdict: Inspect, Rule: o.first.id, Layer: s.rules.layer, Needs: o.needs, Reason: why, Question: o.question}
}

func (s *search) decide(r *Request, port uint16, by *rule) Decision {
	d := Decision{Verdict: s.effect(r, by), Rule: by.id, Layer: s.rules.layer, Reason: by.reason}
	switch d.Verdict {
	case Allow:
		if by.effect == Ask {
			d.Question = r.ApprovedBy(d.Layer, "", d.Rule)
		}
		d.Spend(by.most, by.id, d.Layer)
		d.AnyProtocol, d.ECH, d.Upgrade = by.options.anyProtocol, by.options.ech, s.upgrades(by)
		if by.injects && !r.inClear() {
			d.Inject = by.id
		}
		return d
	case Ask:
		d.Class = AskRejected
	case Deny:
		d.Class = RuleDeny
	}
	if by.conditional() {
		d.AllowedIf = s.allowedIf(port)
	}
	if d.Reason == "" {
		d.Reason = "rule " + by.id + " " + s.refuses(r, by)
	}
	return d
}

// refuses describes the effect of a rule for a reply. It leaves out addresses and aliases
// that the sandbox did not ask for.
func (s *search) refuses(r *Request, by *rule) string {
	verb := "denies"
	if by.effect == Ask {
		verb = "asks about"
	}
	switch {
	case s.resolved:
		return verb + " what " + whereTo(r) + " resolves to"
	case by.conditional() && r.HTTP != nil:
		return verb + " this request to " + whereTo(r)
	}
	return verb + " " + whereTo(r)
}

// misses denies a request to a host of which other requests are allowed. Lines that name single requests say nothing
// about others, so beside them a request lacks a line of its own.
func (s *search) misses(r *Request, port uint16, by *rule) Decision {
	d := Decision{Class: PathDenied, Rule: by.id, Layer: s.rules.layer, AllowedIf: s.allowedIf(port)}
	if s.singles(port) {
		d.Class, d.Rule = DefaultDeny, "default"
		d.Reason = "no rule allows this request to " + whereTo(r) + "; rules allow single requests to it"
		return d
	}
	what, why := "this path", ""
	if !by.holdsMethodOf(r.HTTP) {
		d.Class, what = MethodDenied, r.HTTP.Method
		switch {
		case r.HTTP.overridesMethod():
			what = "a field that replaces the method"
		case !PlainMethod(what):
			what = "this method"
		}
	}
	if m := by.conditions.missing(r.HTTP); m != nil && by.holdsMethodOf(r.HTTP) && by.holdsPath(r.HTTP.Path) {
		what = m.refuse(r.HTTP, &d)
		why = m.why(r.HTTP)
	}
	d.Reason = "rule " + by.id + " does not allow " + what + " at " + whereTo(r) + why
	if words := by.words(); len(words) <= maxWords {
		d.Reason += "; it allows: " + words
	}
	return d
}

// singles reports whether all rules at port are lines for one request each, as egressd allow --from writes them. The lists of
// an organisation or a project are never that: no command adds to them.
func (s *search) singles(port uint16) bool {
	if s.rules.layer != User && s.rules.layer != PerSandbox {
		return false
	}
	all := true
	s.each(port, func(candidate *rule) bool {
		all = candidate.effect == Allow && candidate.single()
		return all
	})
	return all
}

// nothing is what a list without a fitting rule says.
func (s *search) nothing(r *Request) Decision {
	if s.silence != exhaustive {
		return Decision{Verdict: Abstain}
	}
	return Decision{
		Class: DefaultDeny, Rule: "default", Layer: s.rules.layer,
		Reason: fmt.Sprintf("no rule of this sandbox allows %s", whereTo(r)),
	}
}

// allowedIf says which requests at port would be allowed, or nil.
func (s *search) allowedIf(port uint16) []string {
	var ways, unless []string
	ended := false
	s.each(port, func(candidate *rule) bool {
		words := candidate.words()
		switch {
		case candidate.effect != Allow && candidate.conditional():
			unless = append(unless, "not ("+words+")")
		case candidate.effect == Allow && candidate.conditional():
			ways = append(ways, strings.Join(append([]string{words}, unless...), " and "))
		case candidate.effect == Allow && len(unless) > 0:
			ways = append(ways, strings.Join(unless, " and "))
		}
		ended = !candidate.conditional() || len(ways) == maxWays
		return !ended
	})
	if !ended && s.silence == permissive && len(unless) > 0 {
		ways = append(ways, strings.Join(unless, " and "))
	}
	return slices.Compact(ways)
}

// Limits of what a reply lists.
const (
	maxWays  = 8
	maxWords = 120 // bytes of the conditions of a rule
)

func (s *search) probe(p *Probes) {
	for _, b := range s.buckets {
		for ; b != nil; b = b.next {
			for i := range b.rules {
				p.add(&b.rules[i])
			}
		}
	}
}
