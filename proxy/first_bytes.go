package proxy

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/internal/sniff"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
)

// accessDenied is the fatal TLS alert access_denied (RFC 8446 §6.2), in a
// record that every version reads.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, 49}

// firstBytes are what the client of a tunnel says first, while they are judged against what was asked for. They go
// once they have passed. All methods run on the loop.
type firstBytes struct {
	conn       *conn
	upstream   int             // what judge hands over when it says Take
	refused    *egress.Refusal // what judge did refuse
	hello      *sniff.Assembler
	helloWatch *helloWatch // of the hello that has passed, or nil
	preamble   *preamble   // that may be all that the client says, or nil
	holding    bool        // a goroutine searches the bytes, or waits for the policy
	// resume judges the bytes once that goroutine is done; nil before.
	resume func(first []byte) (relay.Judgement, []byte)
}

// First implements [relay.Keeper].
func (c *conn) First(first []byte) (relay.Judgement, []byte) { return c.firstBytes.judge(first) }

// Follow implements [relay.Follower].
func (c *conn) Follow(up bool, next []byte) (relay.Judgement, []byte) {
	return c.firstBytes.follow(up, next)
}

// judge judges a tunnel's first bytes.
func (f *firstBytes) judge(first []byte) (relay.Judgement, []byte) {
	c := f.conn
	first = f.preamble.with(first)
	switch resume := f.resume; {
	case f.holding:
		return relay.Hold, nil
	case resume != nil:
		f.resume = nil
		return resume(first)
	}
	protocol := detect(first, c.flow.Destination().Port)
	spoken := c.tunnel.Down() > 0
	switch {
	case protocol == sniff.Undecided:
		return f.awaitPreamble(first)
	case protocol == sniff.TLS:
		return f.judgeTLS(first)
	case protocol == sniff.HTTP1 && !spoken: // no HTTP server speaks first
		f.takeHTTP(first)
		return relay.Take, nil
	case c.flow.HasCanaries():
		return f.scan(first)
	default:
		return f.narrow(nil, otherProtocol)
	}
}

// scan searches first bytes of no known protocol for canaries, on a goroutine: 64 KiB take a millisecond,
// which all tunnels of the loop would wait for.
func (f *firstBytes) scan(first []byte) (relay.Judgement, []byte) {
	c := f.conn
	flow, own := c.flow, bytes.Clone(first)
	return f.hold(func(ctx context.Context) error {
		return c.server.forwarder.ScanFirst(ctx, flow, own)
	}, func(_ []byte, err error) (relay.Judgement, []byte) {
		if err != nil {
			f.refused = forward.AsRefusal(err)
			return relay.Refuse, nil
		}
		return f.narrow(nil, otherProtocol)
	})
}

// detect returns the protocol that first begins, for a port. Plain HTTP is not accepted on port 443. On ports
// other than 443 and 80, the words of another protocol could look like a request, so the whole request line
// must be valid.
func detect(first []byte, port uint16) sniff.Protocol {
	p := sniff.Detect(first)
	if p != sniff.HTTP1 || port == 80 {
		return p
	}
	if port == 443 {
		return sniff.Other
	}
	line, _, whole := bytes.Cut(first, []byte("\n"))
	switch {
	case bytes.IndexByte(line, 0) >= 0: // as in git's own protocol, whose client waits for an answer
		return sniff.Other
	case bytes.HasSuffix(line, []byte(" HTTP/1.1\r")), bytes.HasSuffix(line, []byte(" HTTP/1.0\r")):
		return sniff.HTTP1
	case whole || len(first) > 8<<10:
		return sniff.Other
	default:
		return sniff.Undecided
	}
}

func web(port uint16) bool { return port == 443 || port == 80 }

func (f *firstBytes) judgeTLS(first []byte) (relay.Judgement, []byte) {
	c := f.conn
	if f.hello == nil {
		f.hello = new(sniff.Assembler)
	}
	hello, err := f.hello.Parse(first)
	switch {
	case errors.Is(err, sniff.ErrShort) && len(first) < c.server.forwarder.Limits.HelloBytes:
		return relay.More, nil
	case err != nil:
		return f.narrow(accessDenied, tlsClaim(malformedClaim(err)))
	}
	f.hello = nil
	claim, behind := claimOf(&hello), 0
	if hello.AllowsRetry() {
		behind = hello.Size
	}
	if name, ok := f.claimedHost(claim); ok {
		return f.goByName(first, name, func(first []byte) (relay.Judgement, []byte) { return f.decideTLS(first, claim, behind) })
	}
	return f.decideTLS(first, claim, behind)
}

// decideTLS judges first bytes that are a hello. behind is how many of them it has if a second one may follow, or 0.
func (f *firstBytes) decideTLS(first []byte, claim *policy.ClientHello, behind int) (relay.Judgement, []byte) {
	c := f.conn
	return f.decide(first, accessDenied, tlsClaim(claim), func(first []byte) (relay.Judgement, []byte) {
		spoken := c.tunnel.Down() > 0
		switch {
		case c.flow.Inspected() && (spoken || f.preamble.passed()): // what was said in clear is no part of TLS
			f.refused = c.flow.Failed(policy.NotTLS, "something was said before TLS began")
			return relay.Refuse, accessDenied
		case c.flow.Inspected():
			f.takeTLS(first, claim.ALPN)
			return relay.Take, nil
		case behind > 0:
			return f.passWatchingHello(claim, first[behind:])
		}
		return f.pass()
	})
}

// claimedHost returns the host that a hello names in a tunnel that was opened to an address. Once something has passed,
// the tunnel stays where it leads.
func (f *firstBytes) claimedHost(claim *policy.ClientHello) (policy.Destination, bool) {
	c := f.conn
	to := c.flow.Destination()
	if !to.Addr.IsValid() || claim.ServerName == "" || c.tunnel.Down() > 0 || f.preamble.passed() {
		return policy.Destination{}, false
	}
	return policy.Destination{Host: claim.ServerName, Port: to.Port, Asked: to.Addr}, true
}

// goByName has a tunnel to an address go to the host that its client claims, if the policy mentions that host.
// Otherwise the claim is judged in the tunnel to the address.
func (f *firstBytes) goByName(first []byte, host policy.Destination, otherwise func(first []byte) (relay.Judgement, []byte)) (relay.Judgement, []byte) {
	c := f.conn
	gate, peer, r := c.server.Gate, c.peer, policy.Request{Via: c.replies.replier.via(), Destination: host}
	after := func(first []byte, mentioned bool) (relay.Judgement, []byte) {
		if !mentioned {
			return otherwise(first)
		}
		f.redirect(first, host)
		return relay.Take, nil
	}
	mentioned, wait := gate.Outlook.MentionsNow(peer, r)
	if !wait {
		return after(first, mentioned)
	}
	return f.hold(func(ctx context.Context) error {
		mentioned = gate.Outlook.Mentions(ctx, peer, r)
		return nil
	}, func(first []byte, _ error) (relay.Judgement, []byte) { return after(first, mentioned) })
}

// redirect ends the tunnel to an address, on whose connection nothing was said, and opens another one to the host that the
// client's first bytes claim.
func (f *firstBytes) redirect(first []byte, host policy.Destination) {
	c := f.conn
	relay.Reset(f.upstream)
	c.loop.CloseFD(f.upstream)
	f.preamble.stop(c.loop)
	c.closeFlow("named")
	c.rest = bytes.Clone(first)
	c.replies.replier = capturedReplier{c.replies.replier.via()}
	c.captured = &capture{conn: c, to: netip.AddrPortFrom(host.Asked, host.Port), name: host.Host, claimed: true}
	c.firstBytes = firstBytes{conn: c}
	c.loop.Post(func() { // the loop still has the tunnel
		if c.closed {
			return
		}
		c.tunnel, c.carried, c.durable = relay.Tunnel{}, false, false
		if err := c.loop.Watch(c.fd, c); err != nil {
			c.drop()
			return
		}
		c.captured.ask()
	})
}

// tlsClaim adds what a hello claims.
func tlsClaim(claim *policy.ClientHello) func(*policy.Request) {
	return func(r *policy.Request) { r.Protocol, r.TLS = policy.ProtocolTLS, claim }
}

func otherProtocol(r *policy.Request) { r.Protocol = policy.ProtocolOpaque }

// pass lets the first bytes go, and what comes behind them, as far as the policy
// lets anything go up.
func (f *firstBytes) pass() (relay.Judgement, []byte) {
	c := f.conn
	f.preamble.stop(c.loop)
	c.connHolder, c.setup = c.admission.holder, nil
	c.tunnel.Limit(c.flow.Budget())
	return relay.Pass, nil
}

// claimOf turns a hello into what policy reads. A server name that is not a
// canonical name equals no host, so it is kept for the record only.
func claimOf(h *sniff.Hello) *policy.ClientHello {
	claim := &policy.ClientHello{ALPN: h.ALPN, ECH: h.ECH, JA4: h.JA4()}
	if !h.HasServerName {
		return claim
	}
	name, err := policy.ParseName(h.ServerName)
	if err != nil {
		claim.NoName = h.ServerName
		return claim
	}
	claim.ServerName = name
	return claim
}

// malformedClaim returns the claim of a hello that could not be read to its end.
func malformedClaim(err error) *policy.ClientHello {
	claim := &policy.ClientHello{Malformed: true}
	if malformed, ok := errors.AsType[*sniff.MalformedError](err); ok {
		claim.NoName = malformed.Name
	}
	return claim
}

// narrow is decide for what passes once the policy lets it.
func (f *firstBytes) narrow(farewell []byte, edit func(*policy.Request)) (relay.Judgement, []byte) {
	return f.decide(nil, farewell, edit, func([]byte) (relay.Judgement, []byte) { return f.pass() })
}

// decide has the policy decide by what edit adds, and then says what becomes of first: after a
// refusal nothing, except that the client is sent farewell. Where the policy takes its time, a goroutine waits for it.
func (f *firstBytes) decide(first, farewell []byte, edit func(*policy.Request), then func(first []byte) (relay.Judgement, []byte)) (relay.Judgement, []byte) {
	c := f.conn
	after := func(first []byte, err error) (relay.Judgement, []byte) {
		if err != nil {
			f.refused = forward.AsRefusal(err)
			return relay.Refuse, farewell
		}
		return then(first)
	}
	flow := c.flow
	wait, err := flow.NarrowNow(edit)
	if !wait {
		return after(first, err)
	}
	return f.hold(func(ctx context.Context) error { return flow.Narrow(ctx, edit) }, after)
}

// hold keeps the client's bytes in the tunnel while a goroutine does work. Then judge resumes with the bytes and the
// error of work, on the loop. ctx ends with the tunnel.
func (f *firstBytes) hold(work func(ctx context.Context) error, then func(first []byte, err error) (relay.Judgement, []byte)) (relay.Judgement, []byte) {
	c := f.conn
	loop := c.loop
	ctx, leave := context.WithCancel(context.Background())
	c.cancel, f.holding = leave, true
	c.server.running.Go(func() {
		err := work(ctx)
		leave()
		loop.Post(func() {
			if c.closed {
				return
			}
			c.cancel, f.holding = nil, false
			f.resume = func(first []byte) (relay.Judgement, []byte) { return then(first, err) }
			c.tunnel.Again()
		})
	})
	return relay.Hold, nil
}

// takeHTTP moves a tunnel in which plain HTTP is spoken to a goroutine that
// decides every request. The tunnel's own connection, on which nothing was
// said, goes: each request has a flow of its own.
func (f *firstBytes) takeHTTP(first []byte) {
	c := f.conn
	host, via := c.flow.Destination(), c.replies.replier.via()
	relay.Reset(f.upstream) // nothing was said on it
	c.loop.CloseFD(f.upstream)
	c.flow.CloseNow(egress.End{Up: f.preamble.size(), Outcome: "http"})
	c.onGoroutine(first, func(h *hosted) {
		h.TunnelTo, h.Via = &host, via
		h.ServeH1()
	})
}

// takeTLS moves a tunnel whose requests have to be decided to a goroutine that
// ends the client's TLS and begins its own.
func (f *firstBytes) takeTLS(first []byte, offered []string) {
	c := f.conn
	flow, host, via := c.flow, c.flow.Destination(), c.replies.replier.via()
	c.loop.Forget(f.upstream)
	upstream, err := netConn(f.upstream)
	if err != nil {
		flow.CloseNow(egress.End{Outcome: string(relay.Broken)})
		c.onGoroutine(nil, func(*hosted) {})
		return
	}
	served := c.onGoroutine(first, func(h *hosted) {
		h.TunnelTo, h.Via = &host, via
		c.server.inspector.ServeTunnel(&h.Client, flow, upstream, offered)
	})
	if !served {
		upstream.Close()
		flow.CloseNow(egress.End{Outcome: "cut"})
	}
}

// A helloWatch keeps a ClientHello while the server may ask the client for a second one. The second must make
// the same claim, and not every server compares them: a different server name would reach a host that was
// never decided (decision 40).
type helloWatch struct {
	sniff.Retry
	claim *policy.ClientHello
}

// passWatchingHello passes a hello and goes on looking for a second one. behind is what the client
// sent after the first.
func (f *firstBytes) passWatchingHello(claim *policy.ClientHello, behind []byte) (relay.Judgement, []byte) {
	c := f.conn
	f.helloWatch = &helloWatch{claim: claim}
	j, farewell := f.follow(true, behind)
	if j != relay.Follow && j != relay.Await {
		return j, farewell
	}
	c.connHolder = c.admission.holder
	c.tunnel.Limit(c.flow.Budget())
	return j, nil
}

// follow judges a second ClientHello, and what follows a preamble.
func (f *firstBytes) follow(up bool, next []byte) (relay.Judgement, []byte) {
	if f.helloWatch == nil {
		return f.followPreamble(up, next), nil
	}
	if !up {
		if f.helloWatch.Server(next) {
			return f.pass()
		}
		return relay.Follow, nil
	}
	hello, err := f.helloWatch.Client(next)
	switch {
	case errors.Is(err, sniff.ErrShort) && f.helloWatch.Keeps():
		return relay.Await, nil
	case errors.Is(err, sniff.ErrShort):
		return relay.Follow, nil
	case errors.Is(err, sniff.ErrNoTLS):
		return f.pass()
	case err != nil:
		return f.narrow(accessDenied, tlsClaim(malformedClaim(err)))
	}
	claim := claimOf(&hello)
	if sameClaim(claim, f.helloWatch.claim) {
		return f.pass()
	}
	return f.narrow(accessDenied, tlsClaim(claim))
}

// sameClaim reports whether two hellos of one connection differ in their fingerprint alone:
// the second one may leave out extensions (RFC 8446 §4.1.2).
func sameClaim(a, b *policy.ClientHello) bool {
	x, y := *a, *b
	x.JA4, y.JA4 = "", ""
	return reflect.DeepEqual(x, y)
}

// A preamble is the few bytes that a client sends first and then falls silent, such as JDWP-Handshake. They
// may begin HTTP or a ClientHello, or they may be all that the client sends before the server answers. If the
// rules allow any protocol, they pass after a pause. Later bytes are held again as soon as the protocol can be
// told, and judged together with the preamble, which alone is too short for a server to act on.
//
// A nil preamble is none.
type preamble struct {
	pause  *relay.Timer
	paused bool   // the pause is
	sent   []byte // went to the upstream
}

// preamblePause is the time without a byte after which the client's first bytes count as a preamble.
const preamblePause = time.Second

// awaitPreamble judges first bytes that are too few to tell what they begin.
func (f *firstBytes) awaitPreamble(first []byte) (relay.Judgement, []byte) {
	c := f.conn
	switch {
	case c.clientFirst() || sniff.Detect(first) != sniff.Undecided:
		return relay.More, nil
	case f.preamble == nil:
		w := new(preamble)
		w.pause = c.loop.After(min(preamblePause, c.server.forwarder.Limits.Hello/2), func() {
			w.paused = true
			c.tunnel.Again()
		})
		f.preamble = w
		return relay.More, nil
	case !f.preamble.paused || f.preamble.passed():
		return relay.More, nil
	}
	return f.decide(first, nil, otherProtocol, func(first []byte) (relay.Judgement, []byte) {
		f.preamble.sent = slices.Clone(first)
		c.tunnel.Limit(c.flow.Budget())
		return relay.Follow, nil
	})
}

// followPreamble lets bytes after a preamble pass while the protocol is still unknown.
func (f *firstBytes) followPreamble(up bool, next []byte) relay.Judgement {
	if !up {
		return relay.Follow
	}
	all := f.preamble.with(next)
	if sniff.Detect(all) != sniff.Undecided {
		return relay.More
	}
	f.preamble.sent = all
	return relay.Follow
}

func (w *preamble) with(b []byte) []byte {
	if !w.passed() {
		return b
	}
	return slices.Concat(w.sent, b)
}

// passed reports whether w went to the upstream.
func (w *preamble) passed() bool { return w != nil && w.sent != nil }

// size is how many bytes went to the upstream.
func (w *preamble) size() int64 {
	if w == nil {
		return 0
	}
	return int64(len(w.sent))
}

// stop is for when the client's first bytes have been judged.
func (w *preamble) stop(loop *relay.Loop) {
	if w != nil {
		loop.Stop(w.pause)
	}
}
