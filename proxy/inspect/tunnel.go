// Package inspect serves the inside of TLS: it makes TLS with the upstream and with the client, and has each
// request decided, over HTTP/1 by package exchange and over HTTP/2 here. It knows no listener.
package inspect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
)

// An Inspection is what an [Inspector] looks inside TLS with. It is not changed
// once the Inspector has it.
type Inspection struct {
	Authority *certs.Authority // of the certificates that clients see
	Roots     *x509.CertPool   // that upstream certificates are verified against; nil means the system's

	Secrets exchange.Secrets // that are added to requests, also in clear and in tunnels that are open
}

// An Inspector serves inspected tunnels. It is safe for concurrent use.
type Inspector struct {
	forwarder  *exchange.Forwarder
	inspection atomic.Pointer[inspection]
	denials    atomic.Pointer[Denials]
	H2Memory   fair.MemoryQuota // of the windows of HTTP/2
}

// Prepare begins to use a forwarder.
func (s *Inspector) Prepare(f *exchange.Forwarder) {
	s.forwarder = f
	s.H2Memory.SetDefault(h2MemoryOfSandbox)
}

// Inspect sets what tunnels that begin from now on are inspected with. Before the first call, and after
// Inspect(nil), tunnels that have to be inspected are closed.
func (s *Inspector) Inspect(i *Inspection) {
	var next *inspection
	if i != nil {
		next = &inspection{Inspection: *i, sessions: map[string]tls.ClientSessionCache{}}
	}
	if before := s.inspection.Swap(next); before != nil {
		before.idle.close()
	}
}

// inspection is an Inspection and the TLS sessions that were made with it.
type inspection struct {
	Inspection
	mu       sync.Mutex
	sessions map[string]tls.ClientSessionCache // with upstreams, by sandbox
	idle     idleUpstreams
}

const (
	sessionsPerSandbox = 256
	sessionsSandboxes  = 256 // whose sessions are kept; with one more all are forgotten
)

// sessionsOf returns the sessions of one sandbox: another must not be known to
// an upstream by them.
func (i *inspection) sessionsOf(sandbox string) tls.ClientSessionCache {
	i.mu.Lock()
	defer i.mu.Unlock()
	cache := i.sessions[sandbox]
	if cache == nil {
		if len(i.sessions) >= sessionsSandboxes {
			clear(i.sessions)
		}
		cache = tls.NewLRUClientSessionCache(sessionsPerSandbox)
		i.sessions[sandbox] = cache
	}
	return cache
}

// A tunnel is an inspected tunnel: the client's TLS ends here, and another
// begins towards the upstream. Its requests are flows of their own.
type tunnel struct {
	*exchange.Client
	inspector        *Inspector
	inspection       *inspection
	flow             *egress.Flow
	dst              policy.Destination
	protos           []string        // that the client offered and that can be served
	proto            string          // that both sides speak
	broken           *egress.Refusal // what is answered to every request where the upstream could not be had
	certificateAsked atomic.Bool     // the upstream asked for a client certificate

	mu       sync.Mutex     // guards what follows
	upstream net.Conn       // the connection to the upstream, below TLS; nil once it is kept for another tunnel
	endedBy  record.Outcome // the outcome, once both connections were broken off
}

// The ALPN identifiers of HTTP/2 (RFC 9113 §3.1), HTTP/1.1 and HTTP/1.0. The
// last is agreed on with clients alone, that offer nothing better.
const (
	h2  = "h2"
	h1  = "http/1.1"
	h10 = "http/1.0"
)

// ServeTunnel serves an inspected tunnel whose first bytes h holds.
func (s *Inspector) ServeTunnel(h *exchange.Client, flow *egress.Flow, far net.Conn, offered []string) {
	i := &tunnel{Client: h, inspector: s, inspection: s.inspection.Load(), flow: flow, dst: *h.TunnelTo, upstream: far}
	for _, p := range offered {
		if p == h2 || p == h1 {
			i.protos = append(i.protos, p)
		}
	}
	flow.OnCut(i.Cut)
	tooOld := time.AfterFunc(s.forwarder.Limits.Lifetime, func() { i.breakOff(record.OutcomeLifetime) })
	end := i.serve()
	tooOld.Stop()
	i.closeUpstream()
	end.Outcome = i.Outcome(end.Outcome)
	flow.Close(end)
}

// Cut implements [exchange.InspectedTunnel]. It breaks both connections off.
func (i *tunnel) Cut() { i.breakOff(record.OutcomeCut) }

// breakOff breaks both connections off. The first one says what the tunnel is
// recorded to have ended with.
func (i *tunnel) breakOff(outcome record.Outcome) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.endedBy == "" {
		i.endedBy = outcome
	}
	exchange.Abort(i.Raw)
	if i.upstream != nil {
		exchange.Abort(i.upstream)
	}
}

// Outcome is how the tunnel ended: by itself, or broken off.
func (i *tunnel) Outcome(byItself record.Outcome) record.Outcome {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.endedBy != "" {
		return i.endedBy
	}
	return byItself
}

func (i *tunnel) closeUpstream() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.upstream != nil {
		i.upstream.Close()
	}
}

// serve makes both handshakes, the upstream's first, so that the client is
// shown a certificate only for what there is, and learns what went wrong.
func (i *tunnel) serve() egress.End {
	if i.inspection == nil {
		return egress.End{Outcome: record.Outcome(policy.PolicyError), Note: "nothing to inspect with"}
	}
	if err := i.flow.Wait(context.Background()); err != nil {
		return egress.End{Outcome: record.Outcome(exchange.AsRefusal(err).Decision.Class)}
	}
	leaf, err := i.inspection.Authority.Leaf(i.dst.Host)
	if err != nil {
		return egress.End{Outcome: record.Outcome(policy.PolicyError), Note: "the local authority cannot sign: " + err.Error() + "; " + newAuthority}
	}
	end := egress.End{Outcome: record.OutcomeClosed}
	upstream := i.takeIdle()
	used := upstream != nil
	if used {
		end.Note = keptConnection
	} else {
		upstream, err = i.handshakeUpstream(context.Background(), i.upstream, i.protos)
	}
	if err != nil {
		i.broken = i.tlsFailed(err)
		end = egress.End{Outcome: record.Outcome(i.broken.Decision.Class), Note: i.broken.Decision.Reason}
	}
	client, err := i.handshakeClient(leaf, upstream)
	if err != nil {
		return i.clientFailed(err)
	}
	i.Conn = client
	if i.proto == h2 {
		i.serveH2(client, upstream)
	} else {
		i.keep(i.ServeInside(i, upstream, used))
	}
	if i.broken != nil { // maybe only since HTTP/2 was to begin
		end = egress.End{Outcome: record.Outcome(i.broken.Decision.Class), Note: i.broken.Decision.Reason}
	}
	return end
}

// redial connects to the upstream once more, for a next request: it closes its
// connections sooner than clients do theirs. The error is a [*egress.Refusal].
func (i *tunnel) redial(ctx context.Context) (*tls.Conn, error) {
	raw, err := i.flow.Dial(ctx)
	if err != nil {
		return nil, err
	}
	i.flow.Keep(nil) // it ends with the tunnel, and maybe after the next one is dialled
	if !i.replaceUpstream(raw) {
		return nil, i.flow.Failed(policy.NetworkReset, "")
	}
	var protos []string
	if i.proto == h2 || i.proto == h1 {
		protos = []string{i.proto}
	}
	c, err := i.handshakeUpstream(ctx, raw, protos)
	if err == nil && i.proto == h2 && c.ConnectionState().NegotiatedProtocol != h2 {
		err = errOtherProtocol
	}
	if err != nil {
		return nil, i.tlsFailed(err)
	}
	return c, nil
}

// replaceUpstream makes raw the connection to the upstream and closes the one before. HTTP/2 keeps the old
// connection, because it may still carry streams.
func (i *tunnel) replaceUpstream(raw net.Conn) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.endedBy != "" {
		raw.Close()
		return false
	}
	if i.proto != h2 {
		i.upstream.Close()
	}
	i.upstream = raw
	return true
}

// Broken implements [exchange.InspectedTunnel].
func (i *tunnel) Broken() *egress.Refusal { return i.broken }

// Destination implements [exchange.InspectedTunnel].
func (i *tunnel) Destination() policy.Destination { return i.dst }

// WhyBroken implements [exchange.InspectedTunnel].
func (i *tunnel) WhyBroken() string {
	if i.certificateAsked.Load() {
		return wantsCertificate
	}
	return ""
}

// Request implements [exchange.InspectedTunnel].
func (i *tunnel) Request(ctx context.Context, r *policy.HTTPRequest, read egress.RequestReader) (*egress.Flow, error) {
	return i.flow.Request(ctx, r, read)
}

// Redial implements [exchange.InspectedTunnel].
func (i *tunnel) Redial(ctx context.Context, request *egress.Flow) (net.Conn, error) {
	conn, err := i.redial(ctx)
	request.Over(i.flow)
	if err != nil {
		return nil, refusalFor(request, exchange.AsRefusal(err))
	}
	return conn, nil
}

// DialBeside implements [exchange.InspectedTunnel].
func (i *tunnel) DialBeside(ctx context.Context, request *egress.Flow) (net.Conn, error) {
	raw, err := request.Dial(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := i.handshakeUpstream(ctx, raw, []string{h1})
	if err != nil {
		return nil, refusalFor(request, i.tlsFailed(err))
	}
	return conn, nil
}

// refusalFor turns a tunnel's refusal into a refusal of one of its requests, so that the reply names the
// request.
func refusalFor(request *egress.Flow, tunnel *egress.Refusal) *egress.Refusal {
	r := request.Failed(tunnel.Decision.Class, "")
	r.Decision, r.Note, r.Final = tunnel.Decision, tunnel.Note, tunnel.Final
	return r
}

// Denials are answers inside TLS for clients whose other tunnels are not inspected. They are safe for concurrent use.
type Denials struct {
	Authority *certs.Authority                    // of the certificates that clients see
	Never     func(host string, port uint16) bool // destinations that are not answered so; may be nil
	Of        func(listener string) bool          // listeners whose clients are to trust the authority; nil for all

	mu        sync.Mutex          // guards what follows
	distrusts map[string]struct{} // programs, each with a host, that refused the authority
}

// maxDistrusts bounds what [Denials] remembers. Any more are shown a certificate each time.
const maxDistrusts = 1024

func (d *Denials) answers(refusal *egress.Refusal, client, listener string) bool {
	to := refusal.Destination
	if d.Of != nil && !d.Of(listener) || answer.To(refusal.Decision.Class).Status >= 500 || d.Never != nil && d.Never(to.Host, to.Port) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.distrusts[client+" "+to.Host]
	return !known
}

func (d *Denials) distrust(whom string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.distrusts == nil {
		d.distrusts = map[string]struct{}{}
	}
	if len(d.distrusts) < maxDistrusts {
		d.distrusts[whom] = struct{}{}
	}
}

// AnswerDenials has denials answered inside TLS while there is no [Inspection]. It inspects nothing else. nil stops it.
func (s *Inspector) AnswerDenials(d *Denials) { s.denials.Store(d) }

// Page returns a function that answers the first request inside a client's TLS with a refusal, or nil if the client
// is to get an alert. listener is where the client came in. client names the program: one that refused the authority of [Denials] for a host gets an alert there from then on.
func (s *Inspector) Page(refusal *egress.Refusal, client, listener string) func(*exchange.Client) {
	with := s.inspection.Load()
	denials := s.denials.Load()
	switch {
	case with != nil:
		denials = nil
	case denials == nil || !denials.answers(refusal, client, listener):
		return nil
	default:
		with = &inspection{Inspection: Inspection{Authority: denials.Authority}}
	}
	return func(h *exchange.Client) {
		i := &tunnel{Client: h, inspector: s, inspection: with, dst: refusal.Destination, broken: refusal}
		leaf, err := with.Authority.Leaf(i.dst.Host)
		if err != nil {
			return
		}
		conn, err := i.handshakeClient(leaf, nil)
		if err != nil {
			if denials != nil {
				denials.distrust(client + " " + refusal.Destination.Host)
			}
			return
		}
		h.Conn = conn
		h.ServeInside(i, nil, false)
	}
}

// LooksInside reports whether tunnels can be inspected now.
func (s *Inspector) LooksInside() bool { return s.inspection.Load() != nil }
