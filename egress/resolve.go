package egress

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// An Answer is what a sandbox may learn of a name: addresses of the family that it asked for, or other records. Questions
// for HTTPS and SVCB have neither. Others share the slices: read them only.
type Answer struct {
	Addrs []netip.Addr
	Data  [][]byte      // of each record, see [RRs]
	TTL   time.Duration // from a second to five minutes
}

const (
	leastTTL = time.Second
	mostTTL  = 300 * time.Second
)

// Resolve answers a sandbox's question to a name server; q has a canonical name. In this order, Resolve
//
//  1. identifies peer and charges the message to its sandbox,
//  2. asks the policy about the name: whether the sandbox may reach some port of it by some method,
//  3. records the decision, and waits until the record is durable, since a name can carry data,
//  4. asks the resolver,
//  5. asks the policy about every address and alias; if one of them is refused, there is no answer.
//
// A name that the resolver has cached is recorded after its addresses are decided. A denied name is never looked up.
// The error is a [*Refusal], and wraps the resolver's error if the lookup failed.
func (g *Gate) Resolve(ctx context.Context, peer sandbox.Peer, q policy.DNSQuery) (Answer, error) {
	f, refusal := g.question(peer, q)
	if refusal != nil {
		return Answer{}, refusal
	}
	a, refusal := f.answer(ctx)
	return a, errorOf(refusal)
}

// errorOf keeps a nil refusal from becoming an error that is not nil.
func errorOf(r *Refusal) error {
	if r == nil {
		return nil
	}
	return r
}

// question begins the flow of one message to a name server. q is its zero value if the message holds no question.
func (g *Gate) question(peer sandbox.Peer, q policy.DNSQuery) (*Flow, *Refusal) {
	r := policy.Request{Via: policy.ViaDNS, Destination: policy.Destination{Host: q.Name}}
	if q.Name != "" {
		r.DNS = &q
	}
	f := g.newFlow(peer, r)
	who, err := g.accounts.identify(peer)
	if err != nil && g.config.Sandboxes.Awaits(peer) {
		g.config.Sandboxes.Await(g.life, peer)
		who, err = g.accounts.identify(peer)
	}
	if err != nil {
		return nil, f.refuseMessage(unidentified(err), recordOf{flood: true})
	}
	f.request.Sandbox = who
	account := g.accounts.of(who.Name)
	if g.policy.Load().ReadsUsage() {
		used := account.sum(f.began)
		f.request.Usage = &used
	}
	switch {
	case !account.names.TakeMessage(g.config.NameLimits, f.request.Time):
		return nil, f.refuseMessage(tooOften, recordOf{flood: true})
	case g.shut.Load():
		return nil, f.refuseMessage(stopping, recordOf{})
	}
	return f, nil
}

// refuseMessage records the refusal of a message to a name server, which may hold no question. With r.flood, the refusal may
// happen thousands of times a second with different names: the first one in a second is a record, and a second record
// counts the rest.
func (f *Flow) refuseMessage(d policy.Decision, r recordOf) *Refusal {
	d.Policy = f.gate.Digest()
	f.noteDenial()
	f.decision = &d
	r.kind = record.KindDNS
	if f.request.DNS == nil {
		r.kind = record.KindRefused
	}
	if refusal := f.recordRefusal(r); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// answer is [Gate.Resolve] from step 2 on.
func (f *Flow) answer(ctx context.Context) (Answer, *Refusal) {
	kind := f.request.DNS.Type
	isEmpty := kind == "HTTPS" || kind == "SVCB" // for every name (RFC 9460)
	if rrs := f.gate.Names.rrs; !f.asksForAddresses() && !isEmpty && (rrs == nil || !rrs.MayAsk(kind)) {
		return Answer{}, f.refuse(typeDenied)
	}
	if refusal := f.decide(ctx, f.request); refusal != nil {
		return Answer{}, f.denied(ctx)
	}
	if isEmpty || f.gate.config.Resolver == nil {
		return Answer{}, f.answerNothing(ctx, isEmpty)
	}
	var rrs RRs
	cached := f.asksForAddresses() && f.cached()
	if !cached {
		var refusal *Refusal
		if rrs, refusal = f.lookUp(ctx); refusal != nil {
			return Answer{}, refusal
		}
	}
	if refusal := f.decide(ctx, f.request); refusal != nil {
		return Answer{}, f.denied(ctx)
	}
	if cached {
		f.compare(ctx, f.request)
		if refusal := f.recordDecision(); refusal != nil {
			return Answer{}, refusal
		}
	}
	return f.told(rrs), nil
}

func (f *Flow) asksForAddresses() bool {
	kind := f.request.DNS.Type
	return kind == "A" || kind == "AAAA"
}

// answerNothing records that the name may be known, which is not looked up. It is a failure unless the answer is always empty.
func (f *Flow) answerNothing(ctx context.Context, isEmpty bool) *Refusal {
	f.compare(ctx, f.request)
	if refusal := f.recordDecision(); refusal != nil || isEmpty {
		return refusal
	}
	return f.networkRefusal(policy.NetworkDNS)
}

// cached fills in the addresses if the resolver has them at hand.
func (f *Flow) cached() (ok bool) {
	dst, resolver := &f.request.Destination, f.gate.config.Resolver
	dst.Addrs, dst.Aliases, ok = resolver.Cached(dst.Host)
	dst.Local = ok && isLocal(resolver, dst.Host)
	return ok && len(dst.Addrs) > 0
}

// lookUp asks the resolver, and fills in the addresses.
func (f *Flow) lookUp(ctx context.Context) (rrs RRs, refusal *Refusal) {
	g, dst, budget := f.gate, &f.request.Destination, &f.account().names
	defer budget.EndWaiting()
	switch {
	case !budget.StartWaiting():
		return RRs{}, f.refuse(tooManyAtOnce)
	case !budget.TakeName(g.config.NameLimits, dst.Host, f.request.Time):
		return RRs{}, f.refuseMessage(tellsTooMuch, recordOf{flood: true})
	}
	f.compare(ctx, f.request)
	if refusal := f.recordDecision(); refusal != nil {
		return RRs{}, refusal
	}
	if f.Wait(ctx) != nil {
		return RRs{}, f.refusal(unavailable)
	}
	ctx, cancel := g.patience(ctx)
	defer cancel()
	var err error
	if f.asksForAddresses() {
		dst.Addrs, dst.Aliases, err = g.config.Resolver.Lookup(ctx, dst.Host)
	} else {
		rrs, dst.Aliases, err = g.Names.rrs.LookupRRs(ctx, dst.Host, f.request.DNS.Type)
	}
	switch {
	case g.shut.Load():
		return RRs{}, f.refuse(stopping)
	case err != nil || len(dst.Addrs)+len(rrs.Data) == 0:
		refusal = f.networkRefusal(policy.NetworkDNS)
		refusal.cause = err
		return RRs{}, refusal
	}
	return rrs, nil
}

// told is what the sandbox learns once everything is decided. It binds the addresses to the name, see [Names.OfAnswer].
func (f *Flow) told(rrs RRs) Answer {
	g, host, kind := f.gate, f.request.Destination.Host, f.request.DNS.Type
	a := Answer{Addrs: ofFamily(f.request.Destination.Addrs, kind), Data: rrs.Data, TTL: rrs.TTL}
	if len(a.Addrs) > 0 && g.config.Life != nil {
		a.TTL = g.config.Life(host)
	}
	a.TTL = min(max(a.TTL, leastTTL), mostTTL)
	if g.config.BindAnswers && len(a.Addrs) > 0 {
		g.Names.answers.Bind(f.request.Sandbox.Name, host, a.Addrs, a.TTL)
	}
	return a
}

// ofFamily returns those of addrs that a question of a type asks for. If it is all of them, it returns the slice itself.
func ofFamily(addrs []netip.Addr, kind string) []netip.Addr {
	other := func(a netip.Addr) bool { return a.Is4() != (kind == "A") }
	if !slices.ContainsFunc(addrs, other) {
		return addrs
	}
	return slices.DeleteFunc(slices.Clone(addrs), other)
}
