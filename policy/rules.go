package policy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// rules is the [Evaluator] of lists of rules. The most specific rule that is
// about a request decides it.
type rules struct {
	first   *index // asked before own, whatever that says; nil where there is nothing
	own     *index
	presets *index // asked where own is silent; nil where there are none
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

// Evaluate judges the host that the sandbox asked for by every rule, and the
// addresses and aliases that it resolved to by those that deny or ask: an
// allowed address allows no name.
func (rs *rules) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	t := turn{ctx: ctx, sandbox: r.Sandbox.Name}
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

// resolvedTo calls yield with a search for each address and alias that the destination of r
// was resolved to, and for the IPv4 address in each.
func (rs *rules) resolvedTo(r *Request, yield func(search)) {
	dst := &r.Destination
	about := func(alias string, addr netip.Addr) {
		yield(search{rules: rs, who: r.Sandbox.Name, buckets: rs.find(alias, addr), silence: permissive, resolved: true})
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
	return search{rules: rs, who: r.Sandbox.Name, buckets: rs.find(r.Destination.Host, r.Destination.Addr), silence: rs.silence}
}

// restricting returns what is left of an opinion that may open nothing. What it refuses
// stays, and so does all that bounds the others: what it still has to see of a request,
// a budget, a mark, and the question that it rests on.
func restricting(d Decision) Decision {
	if d.Verdict != Allow && d.Verdict != Inspect {
		return d
	}
	left := Decision{Verdict: Abstain, Needs: d.Needs, AllowedIf: d.AllowedIf, Log: d.Log, Question: d.Question}
	left.Spend(d.MaxBytesUp, d.BudgetRule, d.BudgetLayer)
	if d.Verdict == Inspect && d.Needs == 0 {
		left.Needs = NeedsMethod // it did not say what, so a request at least
	}
	return left
}

func (rs *rules) find(name string, addr netip.Addr) (b [3]*bucket) {
	if rs.first != nil {
		b[0] = rs.first.find(name, addr)
	}
	b[1] = rs.own.find(name, addr)
	if rs.presets != nil {
		b[2] = rs.presets.find(name, addr)
	}
	return b
}

// A search goes through the rules for one host, the most specific first.
type search struct {
	rules    *rules
	who      string     // the sandbox
	buckets  [3]*bucket // where to begin: in what comes first, in the file's own rules and in the presets
	silence  silence
	resolved bool // the host was not asked for, but is what was asked for resolved to
	turn     *turn
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

// at decides at one port.
func (s *search) at(r *Request, port uint16) Decision {
	if r.HTTP == nil {
		return s.unseen(r, port)
	}
	found, missed := s.seen(r.HTTP, port)
	switch {
	case found != nil:
		return s.decide(r, port, found)
	case missed != nil && s.silence != permissive:
		return s.misses(r, port, missed)
	}
	return s.nothing(r)
}

// effect is what a rule comes to for a request: where a person has approved what it asks,
// it allows that.
func (s *search) effect(r *Request, by *rule) Verdict {
	if by.effect == Ask && r.ApprovedBy(s.rules.layer, by.id) != "" {
		return Allow
	}
	return by.effect
}

// seen returns the first rule that is about the request, or nil and the allow
// that came nearest. A WebSocket goes on to the first allow that lets it, as
// long as no deny or ask stands before that one, also where that is approved.
func (s *search) seen(h *HTTPRequest, port uint16) (found, missed *rule) {
	var plain *rule // would allow the request if it were no WebSocket
	s.each(port, func(candidate *rule) bool {
		switch {
		case !s.turn.spend(min(len(h.Path), pathMost) * len(candidate.paths)):
			return false
		case !candidate.holds(h):
			if candidate.effect == Allow && (missed == nil || !missed.holdsMethod(h.Method) && candidate.holdsMethod(h.Method)) {
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
	if plain != nil && (found == nil || found.effect != Allow) {
		found = plain
	}
	return found, missed
}

// upgrades reports whether an allow lets a request become a WebSocket: one
// without conditions does, since nothing would be left to judge, and so does
// one that changes nothing.
func (s *search) upgrades(allow *rule) bool {
	return allow.options.upgrade || !allow.conditional() || s.silence == permissive
}

// verdicts is a set of verdicts.
type verdicts uint8

func (v verdicts) has(verdict Verdict) bool { return v&(1<<verdict) != 0 }

// An outlook is what the rules at a port come to without the request: those
// with a condition, and the first without one.
type outlook struct {
	possible verdicts
	first    *rule // the one to name: the loosest, of those the first
	ends     bool  // the last rule has no condition
	needs    Needs
	question string // those whose answers it rests on
	missed   *rule  // an allow of other methods than the one that is tried, or nil
}

func (s *search) outlook(r *Request, port uint16) (o outlook) {
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
		o.possible |= 1 << effect
		if effect != candidate.effect {
			o.question = bothQuestions(o.question, r.ApprovedBy(s.rules.layer, candidate.id))
		}
		o.needs |= candidate.needs()
		o.ends = len(candidate.paths) == 0 && (len(candidate.methods) == 0 || tried != "")
		return !o.ends
	})
	return o
}

// unseen decides without the request: by the first rule without a condition
// if all rules before it say the same, else that it depends.
func (s *search) unseen(r *Request, port uint16) Decision {
	o := s.outlook(r, port)
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
	case !o.possible.has(Allow), o.possible == 1<<Allow && o.needs&NeedsCredential == 0:
		d := s.decide(r, port, o.first)
		d.Question = bothQuestions(d.Question, o.question)
		return d
	case o.possible == 1<<Allow:
		return s.inspect(o, "a rule adds a credential to requests to "+whereTo(r))
	}
	d := s.inspect(o, "rule "+o.first.id+" allows some requests")
	d.AllowedIf = s.allowedIf(port)
	return d
}

func (s *search) inspect(o outlook, why string) Decision {
	return Decision{Verdict: Inspect, Rule: o.first.id, Layer: s.rules.layer, Needs: o.needs, Reason: why, Question: o.question}
}

// decide is the decision of a rule.
func (s *search) decide(r *Request, port uint16, by *rule) Decision {
	d := Decision{Verdict: s.effect(r, by), Rule: by.id, Layer: s.rules.layer, Reason: by.reason}
	switch d.Verdict {
	case Allow:
		if by.effect == Ask {
			d.Question = r.ApprovedBy(d.Layer, d.Rule)
		}
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

// refuses says what a rule does, without the addresses and aliases that the
// sandbox did not ask for.
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

// misses denies a request to a host of which other requests are allowed.
func (s *search) misses(r *Request, port uint16, by *rule) Decision {
	d := Decision{Class: PathDenied, Rule: by.id, Layer: s.rules.layer, AllowedIf: s.allowedIf(port)}
	d.Reason = "rule " + by.id + " does not allow this path at " + whereTo(r)
	if !by.holdsMethod(r.HTTP.Method) {
		method := r.HTTP.Method
		if !plainMethod(method) {
			method = "this method"
		}
		d.Class = MethodDenied
		d.Reason = "rule " + by.id + " does not allow " + method + " at " + whereTo(r)
	}
	return d
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

// allowedIf says which requests at port would be allowed, the most specific
// rule first, or nil.
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

// maxWays bounds what a reply says.
const maxWays = 8

// whereTo returns what was asked for: the name of a question, or host:port.
func whereTo(r *Request) string {
	if r.DNS != nil {
		return r.Destination.Host
	}
	return r.Destination.String()
}

// A sandboxLayer narrows what the rest of the policy allows to some sandboxes.
// It opens nothing: where it agrees, it has no opinion.
type sandboxLayer map[string]*rules

// unlisted is no name. It stands for the sandboxes that somebody has given a name as
// their network was handed in, which is for where a file lists none.
const unlisted = ""

// Evaluate denies a sandbox that it does not know: one that was removed, or
// one that a reload is about to bring. A request of nobody, as in a test of the
// file, is judged by the other layers alone.
func (l sandboxLayer) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	own := l.of(&r.Sandbox)
	switch {
	case r.Sandbox.Name == "":
		return Decision{Verdict: Abstain}, nil
	case own == nil:
		return Decision{Class: RuleDeny, Rule: "sandboxes", Layer: PerSandbox, Reason: "the policy does not list this sandbox"}, nil
	}
	d, err := own.Evaluate(ctx, r)
	if d.Verdict == Allow && !d.Upgrade && r.HTTP != nil && r.HTTP.Upgrade {
		return noWebSocket(r, d.Rule), err
	}
	return restricting(d), err
}

// of returns the list of a sandbox, or nil where the policy does not know it.
func (l sandboxLayer) of(who *Sandbox) *rules {
	if own := l[who.Name]; own != nil || who.Stay == 0 {
		return own
	}
	return l[unlisted]
}
