package egress

import (
	"context"
	"net/netip"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// An Inquiry is one message of a sandbox to a name server that answers with the
// addresses that names have, or with other resource records of the types that the resolver looks up. It is used by one goroutine at a time, and ends with
// the first answer or error.
//
//	i, err := gate.Names.Inquire(peer, question)
//	a, wait, err := i.AnswerNow()
//	if wait { a, err = i.Answer(ctx) } // where one can wait
type Inquiry struct {
	flow     *Flow
	recorded bool   // that the name may be looked up
	decided  bool   // that its addresses may be known, by AnswerNow
	prepared bool   // for Resolve
	batch    *Batch // that writes its record, or nil
	position int    // of the record in batch, from 1 on; 0: it has none there
	rrs      RRs
}

// An Answer has the addresses that a sandbox may learn, of both families, or the other resource records that it asked for. HTTPS and SVCB
// questions have neither. Others share them: read them only.
type Answer struct {
	Addrs []netip.Addr
	RRs   RRs
}

// Inquire identifies peer and takes what one message costs from its sandbox's
// budget. q is what it asks, with a canonical name, or the zero value where it
// could not be read. The error is a [*Refusal], and recorded.
func (n *Names) Inquire(peer sandbox.Peer, q policy.DNSQuery) (*Inquiry, error) {
	m := new(inquiryMemory)
	return &m.inquiry, m.inquire(n.gate, peer, q)
}

// inquiryMemory is the memory of an inquiry, in one piece.
type inquiryMemory struct {
	inquiry  Inquiry
	flow     Flow
	request  policy.Request
	question policy.DNSQuery
}

// inquire begins an inquiry. The one before in the same memory has ended.
func (m *inquiryMemory) inquire(g *Gate, peer sandbox.Peer, q policy.DNSQuery) error {
	m.question = q
	m.request = policy.Request{Via: policy.ViaDNS, Destination: policy.Destination{Host: q.Name}}
	if q.Name != "" {
		m.request.DNS = &m.question
	}
	f, i := &m.flow, &m.inquiry
	g.begin(f, peer, &m.request)
	*i = Inquiry{flow: f, batch: i.batch}
	who, err := g.accounts.identify(peer)
	if err != nil {
		return i.refuseFlood(unidentified(err))
	}
	f.request.Sandbox = who
	account := g.accounts.of(who.Name)
	if g.policy.Load().ReadsUsage() {
		used := account.sum(f.began)
		f.request.Usage = &used
	}
	if !account.names.TakeMessage(g.config.NameLimits, f.request.Time) {
		return i.refuseFlood(tooOften)
	}
	if g.shut.Load() {
		return i.refuse(stopping)
	}
	return nil
}

// Refuse records that the message was refused before it could be put to the
// policy, and returns the refusal to render: raw is what was sent, of which the
// first 256 bytes are recorded.
func (i *Inquiry) Refuse(raw []byte, class policy.Class, why string) *Refusal {
	d := policy.Decision{Class: class, Rule: "parser", Layer: policy.Builtin, Reason: why}
	if i.flow.request.DNS != nil {
		return i.refuse(d)
	}
	return i.malformed(d, raw)
}

// Local records that the question is answered without asking anyone, since its
// answer is the same everywhere. The error is a [*Refusal].
func (i *Inquiry) Local() error {
	i.flow.policy = i.flow.gate.policy.Load()
	i.flow.decision = &policy.Decision{Verdict: policy.Allow, Rule: "dns", Layer: policy.Builtin, Reason: "the answer is the same everywhere, and nobody is asked for it", Policy: i.flow.policy.Digest()}
	return errorOf(i.record())
}

// record records that the name may be known. In a batch, Write writes the record later.
func (i *Inquiry) record() *Refusal {
	if i.batch != nil {
		i.batch.add(i)
		return nil
	}
	return i.flow.recordDecision()
}

// AnswerNow is Answer for who must not wait: it reports wait, having recorded
// nothing, where the answer takes time. The error is a [*Refusal].
func (i *Inquiry) AnswerNow() (a Answer, wait bool, err error) {
	i.flow.hurried = true
	a, wait, refusal := i.answerNow()
	i.flow.hurried = false
	if refusal == wouldWait {
		return Answer{}, true, nil
	}
	return a, wait, errorOf(refusal)
}

func (i *Inquiry) answerNow() (a Answer, wait bool, refusal *Refusal) {
	if !i.flow.gate.policy.Load().AnswersAtOnce() {
		return Answer{}, true, nil
	}
	ctx := context.Background()
	if i.forAddresses() && i.passesAsCached(ctx) {
		return Answer{Addrs: i.flow.request.Destination.Addrs}, false, i.record()
	}
	if refusal := i.decideName(ctx); refusal != nil {
		return Answer{}, false, refusal
	}
	if !i.known() {
		i.decided = i.forAddresses()
		return Answer{}, true, nil
	}
	a, refusal = i.judge(ctx)
	return a, false, refusal
}

// Answer decides whether the sandbox may learn the addresses or records of the name: whether it may reach some port of the
// name by some method. It then records the decision, asks the resolver, and decides every address and alias. If one of them
// is refused, there is no answer. The error is a [*Refusal], and wraps the resolver's error if the lookup failed.
func (i *Inquiry) Answer(ctx context.Context) (Answer, error) {
	if refusal := i.decideName(ctx); refusal != nil {
		return Answer{}, refusal
	}
	if !i.known() {
		if refusal := i.lookUp(ctx); refusal != nil {
			return Answer{}, refusal
		}
	}
	a, refusal := i.judge(ctx)
	return a, errorOf(refusal)
}

// errorOf keeps a nil refusal from becoming an error that is not nil.
func errorOf(r *Refusal) error {
	if r == nil {
		return nil
	}
	return r
}

// decideName decides before anything is known of the name.
func (i *Inquiry) decideName(ctx context.Context) *Refusal {
	f := i.flow
	if r := f.gate.Names.rrs; !i.forAddresses() && !i.hasNone() && (r == nil || !r.MayAsk(f.request.DNS.Type)) {
		return i.refuse(typeDenied)
	}
	if refusal := f.decide(ctx, f.request); refusal != nil {
		return f.denied(ctx, refusal)
	}
	return nil
}

// forAddresses reports whether the question is for addresses.
func (i *Inquiry) forAddresses() bool {
	kind := i.flow.request.DNS.Type
	return kind == "A" || kind == "AAAA"
}

// hasNone reports whether the answer is always that there are no such records, as for HTTPS and SVCB (RFC 9460).
func (i *Inquiry) hasNone() bool {
	kind := i.flow.request.DNS.Type
	return kind == "HTTPS" || kind == "SVCB"
}

// known reports whether the answer takes no lookup.
func (i *Inquiry) known() bool {
	return i.hasNone() || i.forAddresses() && i.cached()
}

// passesAsCached decides name and cached addresses in one step: a request that passes with its addresses passes without
// them. If it does not pass, the caller decides again step by step, so that the record has the first reason.
func (i *Inquiry) passesAsCached(ctx context.Context) bool {
	f := i.flow
	if !i.cached() {
		return false
	}
	if f.decide(ctx, f.request) == nil && f.policy.Shadow() == nil {
		return true
	}
	f.request.Destination.Addrs, f.request.Destination.Aliases = nil, nil
	return false
}

func (i *Inquiry) cached() (ok bool) {
	f := i.flow
	if f.gate.config.Resolver == nil {
		return false
	}
	dst := &f.request.Destination
	dst.Addrs, dst.Aliases, ok = f.gate.config.Resolver.Cached(dst.Host)
	dst.Local = ok && isLocal(f.gate.config.Resolver, dst.Host)
	return ok && len(dst.Addrs) > 0
}

// lookUp asks the resolver. The record of the name is durable before the question leaves the machine, since a name
// can carry data.
func (i *Inquiry) lookUp(ctx context.Context) *Refusal {
	f := i.flow
	if f.gate.config.Resolver == nil {
		return i.networkRefusal(nil)
	}
	defer f.account().names.EndWaiting()
	if refusal := i.mayAsk(ctx); refusal != nil {
		return refusal
	}
	if refusal := f.recordDecision(); refusal != nil {
		return refusal
	}
	i.recorded = true
	if f.Wait(ctx) != nil {
		return f.refusal(unavailable)
	}
	ctx, cancel := f.gate.patience(ctx)
	defer cancel()
	host := f.request.Destination.Host
	if i.forAddresses() {
		return i.resolved(f.gate.config.Resolver.Lookup(ctx, host))
	}
	rrs, aliases, err := f.gate.Names.rrs.LookupRRs(ctx, host, f.request.DNS.Type)
	i.rrs = rrs
	return i.resolved(nil, aliases, err)
}

// mayAsk takes the cost of a lookup from the sandbox's budget. The caller ends the wait there in either case.
func (i *Inquiry) mayAsk(ctx context.Context) *Refusal {
	f := i.flow
	used := f.account()
	if !used.names.StartWaiting() {
		return i.refuse(tooManyAtOnce)
	}
	if !used.names.TakeName(f.gate.config.NameLimits, f.request.Destination.Host, f.request.Time) {
		return i.refuseFlood(tellsTooMuch)
	}
	f.compare(ctx, f.request)
	return nil
}

// resolved takes what the resolver said.
func (i *Inquiry) resolved(addrs []netip.Addr, aliases []string, err error) *Refusal {
	dst := &i.flow.request.Destination
	dst.Addrs, dst.Aliases = addrs, aliases
	switch {
	case i.flow.gate.shut.Load():
		return i.refuse(stopping)
	case err != nil || len(addrs)+len(i.rrs.Data) == 0:
		return i.networkRefusal(err)
	}
	return nil
}

// networkRefusal is for a name that may be known and cannot be resolved.
func (i *Inquiry) networkRefusal(err error) *Refusal {
	if !i.recorded {
		if refusal := i.flow.recordDecision(); refusal != nil {
			return refusal
		}
	}
	r := i.flow.networkRefusal(policy.NetworkDNS)
	r.cause = err
	return r
}

// judge decides what the name turned out to be.
func (i *Inquiry) judge(ctx context.Context) (Answer, *Refusal) {
	f := i.flow
	if refusal := f.decide(ctx, f.request); refusal != nil {
		return Answer{}, f.denied(ctx, refusal)
	}
	if !i.recorded {
		f.compare(ctx, f.request)
		if refusal := i.record(); refusal != nil {
			return Answer{}, refusal
		}
	}
	return Answer{f.request.Destination.Addrs, i.rrs}, nil
}

func (i *Inquiry) refuse(d policy.Decision) *Refusal {
	if i.flow.request.DNS == nil {
		return i.malformed(d, nil)
	}
	return i.flow.refuse(d)
}

// malformed records the refusal of a message that holds no question.
func (i *Inquiry) malformed(d policy.Decision, raw []byte) *Refusal {
	f := i.flow
	d.Policy = f.gate.Digest()
	f.noteDenial()
	f.decision = &d
	if refusal := f.recordRefusal(recordOf{kind: record.KindRefused, raw: raw}); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// refuseFlood records a refusal that may happen thousands of times a second with different names. The first one in a second
// is a record; a second record counts the rest.
func (i *Inquiry) refuseFlood(d policy.Decision) *Refusal {
	f := i.flow
	d.Policy = f.gate.Digest()
	f.noteDenial()
	f.decision = &d
	kind := record.KindDNS
	if f.request.DNS == nil {
		kind = record.KindRefused
	}
	if refusal := f.recordRefusal(recordOf{kind: kind, flood: true}); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// Bind notes that the sandbox got these addresses as the answer to its question, with that time to live. [Names.OfAnswer]
// returns the name for them.
func (i *Inquiry) Bind(addrs []netip.Addr, ttl time.Duration) {
	g, r := i.flow.gate, i.flow.request
	if g.config.BindAnswers && r.DNS != nil && len(addrs) > 0 {
		g.Names.answers.Bind(r.Sandbox.Name, r.DNS.Name, addrs, ttl)
	}
}
