package egress

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A Flow is one attempt. One that [Gate.Open], [Gate.OpenRequest] or [Flow.Request] has returned is allowed: it is the capability
// to dial what was decided, and its owner closes it once. A second Dial closes the connection of the first, unless [Flow.Keep] has
// it. The gate has flows of its own for questions and denials, which are never open. The methods are safe for concurrent use.
type Flow struct {
	gate  *Gate         // final
	began time.Duration // final: since gate.began

	// While the flow is opened, one goroutine has it to itself. The next fields do not change after that.
	id  record.ID
	seq int64 // of the record that has to be durable before the first byte; -1: there is none yet

	mu       sync.Mutex       // guards what follows, once the flow is open; held for moments, never while a policy decides
	request  *policy.Request  // not changed once the flow is open
	decision *policy.Decision // not changed: others may share it
	policy   *policy.Policy   // that decided
	conn     net.Conn
	onChange func()         // told when the flow was cut, or has another budget
	src      netip.AddrPort // final
	dialled  netip.AddrPort
	contents contents
	wasCut   bool
	closed   bool

	next, prev *Flow // guarded by gate.Flows.mu
}

// sharedID is the seq of a denial that shares its id with denials of other requests.
const sharedID = -2

// An End is how a flow ended.
type End struct {
	Up, Down int64 // payload bytes
	Status   int   // of the HTTP response, 0 where there was none
	Outcome  record.Outcome
	Note     string // what a person should know of it, and what to do

	Credential string // kind of the one that the request carried
}

// newFlow returns a flow of which nothing is known but peer and r.
func (g *Gate) newFlow(peer sandbox.Peer, r policy.Request) *Flow {
	now := time.Now()
	r.Time = now
	if r.Process == nil {
		r.Process = peer.Process
	}
	return &Flow{
		gate: g, id: g.ids.next(now), began: now.Sub(g.began), src: plain(peer.Addr),
		request: &r, decision: undecided, seq: -1,
	}
}

// undecided is the decision of a flow before there is one: the zero value,
// which denies.
var undecided = new(policy.Decision)

// An idSource gives each ID once: the present time, or the tick after the last ID if several are requested
// within one tick.
type idSource struct{ last atomic.Uint64 }

func (s *idSource) next(now time.Time) record.ID {
	tick := uint64(now.UnixNano()) / uint64(record.IDTick)
	for {
		last := s.last.Load()
		id := max(tick, last+1)
		if s.last.CompareAndSwap(last, id) {
			return record.ID(id)
		}
	}
}

// Open decides whether peer may do what r asks, up to the addresses that its
// destination resolves to, and records the decision before it returns. The
// error is always a [*Refusal]. Cancelling ctx ends only the wait for a person's approval; the record is written in
// any case.
func (g *Gate) Open(ctx context.Context, peer sandbox.Peer, r policy.Request) (*Flow, error) {
	return g.OpenRequest(ctx, peer, r, nil)
}

// OpenRequest is Open for an HTTP request whose body a rule may have to read before it decides. Without a reader, such a
// request is refused.
func (g *Gate) OpenRequest(ctx context.Context, peer sandbox.Peer, r policy.Request, read RequestReader) (*Flow, error) {
	f := g.newFlow(peer, r)
	if refusal := f.open(ctx, peer, read); refusal != nil {
		return nil, refusal
	}
	return f, nil
}

func (f *Flow) open(ctx context.Context, peer sandbox.Peer, read RequestReader) *Refusal {
	if f.gate.shut.Load() {
		return f.refuse(stopping)
	}
	who, err := f.gate.accounts.identify(peer)
	if err != nil && f.gate.config.Sandboxes.Awaits(peer) {
		f.gate.config.Sandboxes.Await(ctx, peer)
		who, err = f.gate.accounts.identify(peer)
	}
	if err != nil {
		f.request.Sandbox.Container, f.request.Sandbox.Name = who.Container, who.Name
		return f.refuse(unidentified(err))
	}
	f.request.Sandbox = who
	f.request.Destination.Addrs, f.request.Destination.Aliases = nil, nil // the gate dials what it finds itself
	if refusal := f.admit(ctx, read); refusal != nil {
		return refusal
	}
	return f.enlist(ctx)
}

// charge counts the flow, if its sandbox may have one more.
func (f *Flow) charge() (c charge, ok bool) {
	var before policy.Usage
	for gone := true; gone; {
		c, before, ok, gone = f.account().charge(f.began, f.request.HTTP != nil, int64(f.gate.config.FlowsPerSandbox))
	}
	if f.gate.policy.Load().ReadsUsage() {
		seen := before // a copy: each flow would pay for before
		f.request.Usage = &seen
	}
	return c, ok
}

func (f *Flow) account() *account {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gate.accounts.of(f.request.Sandbox.Name)
}

// admit counts the flow, has it decided, and records that.
func (f *Flow) admit(ctx context.Context, read RequestReader) (refusal *Refusal) {
	id := f.id
	held, ok := f.charge()
	if !ok {
		refusal = f.refuse(tooManyFlows)
	} else if refusal = f.permit(ctx, read); refusal != nil {
		f.account().refund(held)
	}
	if refusal != nil {
		f.gate.Approvals.FlowEnded(id)
	}
	return refusal
}

// permit decides the name, resolves it, decides its addresses, and records. Those of a tunnel are known already to the
// requests inside.
func (f *Flow) permit(ctx context.Context, read RequestReader) *Refusal {
	calm := context.WithoutCancel(ctx)
	var late time.Time
	if refusal := f.decideRequest(ctx, read, &late); refusal != nil {
		return refusal
	}
	if dst := &f.request.Destination; !dst.Addr.IsValid() && len(dst.Addrs) == 0 && !f.gate.Route.proxy.Load().resolves(dst) {
		if refusal := f.resolve(calm); refusal != nil {
			return refusal
		}
		if refusal := f.decideRequest(ctx, read, &late); refusal != nil {
			return refusal
		}
	}
	f.compare(calm, f.request)
	return f.recordDecision()
}

// decideRequest decides the request. It reads the body, and asks the server for node ids, if a rule needs them.
func (f *Flow) decideRequest(ctx context.Context, read RequestReader, late *time.Time) *Refusal {
	calm := context.WithoutCancel(ctx)
	if read != nil && f.request.HTTP != nil {
		if a := read.LFSAction(f, f.gate.Digest()); a != f.request.HTTP.LFS {
			h := *f.request.HTTP
			h.LFS = a
			f.request.HTTP = &h
		}
	}
	if refusal := f.decideOrAsk(ctx, f.request, late); refusal != nil {
		return f.denied(calm)
	}
	if d := f.spent(); d != nil { // before a client is told to send a body
		return f.refuse(*d)
	}
	if refusal := f.readRequest(ctx, read, late); refusal != nil {
		return f.denied(calm)
	}
	return nil
}

// A RequestReader finds out what decides an HTTP request beyond its head. The gate calls it from one goroutine, and never
// once the flow is open. It returns the decision that refuses the request if it cannot.
type RequestReader interface {
	// ReadBody reads the body, if a rule reads it. Each call reads on, at least one byte or the end; whole asks for all
	// that is left. It returns all that was read so far. It refuses a body that is too long, broken off or late.
	ReadBody(f *Flow, whole bool) (*policy.Body, *policy.Decision)

	// LFSAction returns the action of an answer of Git LFS that the request carries out, or nil. The answer was given to the
	// sandbox of the flow while the policy with the digest held.
	LFSAction(f *Flow, digest string) *policy.LFSAction

	// AskNodes asks the server of the request what node ids of GraphQL in its body are. Each id has a node in the result.
	AskNodes(ctx context.Context, f *Flow, ids []string) (map[string]policy.Node, *policy.Decision)
}

// readRequest finds out of a request what the policy asks for, and has the request decided again. Nothing of the request leaves
// before. A request of which nobody can find it out is refused.
func (f *Flow) readRequest(ctx context.Context, reader RequestReader, late *time.Time) *Refusal {
	for f.decision.Verdict == policy.Inspect && f.request.HTTP != nil {
		h := *f.request.HTTP
		refused := f.unreadable()
		switch ids := h.UnknownNodes(); {
		case reader == nil:
		case h.Unread():
			h.Body, refused = reader.ReadBody(f, f.decision.Needs&policy.NeedsBody != 0)
		case len(ids) > 0:
			var found map[string]policy.Node
			found, refused = reader.AskNodes(ctx, f, ids)
			h.Nodes = maps.Clone(h.Nodes)
			for _, id := range ids {
				if h.Nodes == nil {
					h.Nodes = map[string]policy.Node{}
				}
				h.Nodes[id] = found[id]
			}
		}
		if refused != nil {
			return f.settle(*refused)
		}
		f.request.HTTP = &h
		if refusal := f.decideOrAsk(ctx, f.request, late); refusal != nil {
			return refusal
		}
	}
	return nil
}

// unreadable is the decision about a request of which nobody can find out what a rule needs.
func (f *Flow) unreadable() *policy.Decision {
	return &policy.Decision{
		Class: policy.BodyDenied, Rule: f.decision.Rule, Layer: f.decision.Layer, Policy: f.decision.Policy,
		Reason: "a rule reads the body of the request, which cannot be read here",
	}
}

// settle has the flow stand on a refusal that no policy made.
func (f *Flow) settle(d policy.Decision) *Refusal {
	f.decision = &d
	return f.refusal(d)
}

// resolve fills in the addresses. A query that leaves the machine carries a name, and so is sent once its record is durable.
func (f *Flow) resolve(ctx context.Context) *Refusal {
	if f.gate.config.Resolver == nil {
		return f.failed(ctx, policy.NetworkDNS)
	}
	dst := &f.request.Destination
	var ok bool
	if dst.Addrs, dst.Aliases, ok = f.gate.config.Resolver.Cached(dst.Host); ok && len(dst.Addrs) > 0 {
		dst.Local = isLocal(f.gate.config.Resolver, dst.Host)
		return nil
	}
	used := f.account()
	defer used.endLookup(dst.Host)
	if !used.startLookup(dst.Host) {
		return f.refuse(policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has too many names looked up at a time"})
	}
	seq, err := f.gate.Records.append(f, recordOf{kind: record.KindDNS})
	if err != nil || f.gate.config.Log.Wait(ctx, seq) != nil {
		return f.refusal(unavailable)
	}
	ctx, cancel := f.gate.patience(ctx)
	defer cancel()
	dst.Addrs, dst.Aliases, err = f.gate.config.Resolver.Lookup(ctx, dst.Host)
	switch {
	case f.gate.shut.Load():
		return f.refuse(stopping)
	case err != nil || len(dst.Addrs) == 0:
		return f.failed(ctx, policy.NetworkDNS)
	}
	return nil
}

// enlist adds the flow to the open flows, so that a new policy can cut it. Then it decides again if the policy
// changed before, or a rule of it ended.
func (f *Flow) enlist(ctx context.Context) *Refusal {
	if f.request.HTTP != nil {
		f.contents = opaque // a later policy that asks for more of the body comes too late
	}
	f.gate.Flows.add(f)
	refusal := f.current(context.WithoutCancel(ctx))
	if refusal != nil {
		f.Close(End{Outcome: record.Outcome(refusal.Decision.Class)})
	}
	return refusal
}

// Request opens a flow for one HTTP request inside the inspected tunnel f. The policy in force decides it for f's sandbox,
// destination and addresses, and the decision is recorded before Request returns. The error is always a
// [*Refusal].
//
// Cancelling ctx ends only the wait for a person's approval. Without a reader, a request is refused if a rule asks
// for more of it.
//
// The new flow is closed on its own, and cut on its own when a later policy
// refuses it. It outlives neither f's permission nor f's connection.
func (f *Flow) Request(ctx context.Context, h *policy.HTTPRequest, read RequestReader) (*Flow, error) {
	inner, refusal := f.inner(ctx, h)
	if refusal != nil {
		return nil, refusal
	}
	f.gate.Approvals.Inherit(f.id, inner.id)
	if refusal := inner.admit(ctx, read); refusal != nil {
		return nil, refusal
	}
	inner.Over(f)
	if refusal := inner.enlist(ctx); refusal != nil {
		return nil, refusal
	}
	return inner, nil
}

// inner makes the flow of a request inside f, which has to be still allowed.
func (f *Flow) inner(ctx context.Context, h *policy.HTTPRequest) (*Flow, *Refusal) {
	refusal := f.current(context.WithoutCancel(ctx))
	f.mu.Lock()
	defer f.mu.Unlock()
	r := *f.request
	r.HTTP, r.Protocol, r.Usage = h, policy.ProtocolHTTP, nil
	inner := f.gate.newFlow(sandbox.Peer{Addr: f.src}, r)
	if refusal != nil {
		return nil, inner.refuse(refusal.Decision)
	}
	return inner, nil
}

// Over sets the address of f's close record to the address that tunnel dialled last. f was opened inside tunnel. Call Over
// again if tunnel has dialled a new connection for the request.
func (f *Flow) Over(tunnel *Flow) {
	tunnel.mu.Lock()
	dialled := tunnel.dialled
	tunnel.mu.Unlock()
	f.mu.Lock()
	f.dialled = dialled
	f.mu.Unlock()
}

// ID names the flow in replies and records.
func (f *Flow) ID() record.ID { return f.id }

// Destination is what was asked for, with the addresses that were decided.
func (f *Flow) Destination() policy.Destination {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.request.Destination
}

// Sandbox names who opened the flow.
func (f *Flow) Sandbox() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.request.Sandbox.Name
}

// Git returns what the request of the flow asks of a git server, or nil.
func (f *Flow) Git() *policy.GitOperation {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.request.HTTP == nil {
		return nil
	}
	return f.request.HTTP.Git()
}

// LFSAction returns the action of an answer of Git LFS that the request of the flow carries out, or nil.
func (f *Flow) LFSAction() *policy.LFSAction {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.request.HTTP == nil {
		return nil
	}
	return f.request.HTTP.LFS
}

// Holder names who holds the part of what all sandboxes share that the flow counts with, see [policy.Sandbox.Holder].
func (f *Flow) Holder() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.request.Sandbox.Holder()
}

// Close ends the flow and records how. Only the first call counts.
func (f *Flow) Close(end End) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.closed = true
	conn := f.conn
	if f.wasCut {
		end.Outcome = record.OutcomeCut
	}
	line := f.gate.Records.encode(f, recordOf{kind: record.KindClose, end: end, took: f.took()})
	f.mu.Unlock()
	f.gate.Records.appendEnd(line)
	f.gate.Flows.remove(f)
	f.gate.Approvals.FlowEnded(f.id)
	f.account().ended()
	if conn != nil {
		conn.Close()
	}
}

// took is how long the flow has lasted.
func (f *Flow) took() time.Duration { return time.Since(f.gate.began) - f.began }
