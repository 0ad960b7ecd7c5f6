package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress/upstream"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

// A Route is how a gate reaches destinations: directly, or through an upstream proxy. The zero value reaches them
// directly. It is safe for concurrent use.
type Route struct {
	gate  *Gate
	proxy atomic.Pointer[upstreamProxy] // nil: directly
}

// Through has destinations reached through a proxy from now on; nil: directly. Open connections stay. If the proxy
// fails, nothing is reached directly instead.
func (r *Route) Through(p *upstream.Proxy) {
	if p == nil {
		r.proxy.Store(nil)
		return
	}
	up := &upstreamProxy{proxy: p, gate: r.gate}
	if before := r.proxy.Load(); before != nil && before.proxy.At.Host == p.At.Host && before.proxy.At.Port == p.At.Port {
		up.known.Store(before.known.Load())
	}
	r.proxy.Store(up)
}

// At returns the addresses that the name of the upstream proxy is known to have. It answers from memory.
func (r *Route) At() []netip.AddrPort { return r.proxy.Load().at() }

// Find looks up the name of the upstream proxy, for [Route.At].
func (r *Route) Find(ctx context.Context) error {
	if up := r.proxy.Load(); up != nil {
		_, err := up.addresses(ctx)
		return err
	}
	return nil
}

// An upstreamProxy is the proxy that a gate dials, and what is known of its addresses.
type upstreamProxy struct {
	proxy *upstream.Proxy
	gate  *Gate
	known atomic.Pointer[[]netip.AddrPort] // the last that its name had
}

// resolves reports whether the proxy finds the addresses of a destination. u may be nil.
func (u *upstreamProxy) resolves(d *policy.Destination) bool { return u != nil && u.proxy.TakesName(d) }

func (u *upstreamProxy) at() []netip.AddrPort {
	if u == nil {
		return nil
	}
	if known := u.known.Load(); known != nil {
		return *known
	}
	return nil
}

func (u *upstreamProxy) addresses(ctx context.Context) ([]netip.AddrPort, error) {
	at := &u.proxy.At
	if at.Addr.IsValid() {
		return u.know([]netip.Addr{at.Addr}), nil
	}
	names := u.gate.config.Resolver
	if names == nil {
		return nil, errNoAddress
	}
	addrs, _, ok := names.Cached(at.Host)
	if !ok || len(addrs) == 0 {
		var err error
		if addrs, _, err = names.Lookup(ctx, at.Host); err != nil {
			return nil, err
		}
	}
	return u.know(addrs), nil
}

// know notes the addresses of the proxy.
func (u *upstreamProxy) know(addrs []netip.Addr) []netip.AddrPort {
	all := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		all[i] = netip.AddrPortFrom(a.Unmap(), u.proxy.At.Port)
	}
	if !slices.Equal(all, u.at()) {
		u.known.Store(&all)
	}
	return all
}

// dial connects to a decided address, or asks the proxy to.
func (u *upstreamProxy) dial(ctx context.Context, f *Flow, to netip.AddrPort) (net.Conn, error) {
	if asked := f.Destination(); !u.proxy.Excepts(&asked, to) {
		return u.tunnel(ctx, f, to)
	}
	if u.at() == nil { // the flow could have been decided before the addresses of the proxy were known
		if _, err := u.addresses(ctx); err != nil {
			return nil, &upstreamError{err}
		}
	}
	if slices.Contains(u.at(), to) {
		return nil, errNotJudged
	}
	return f.dialOne(ctx, to)
}

// tunnel asks the proxy for a tunnel to a decided address, or without one to the name that was decided.
func (u *upstreamProxy) tunnel(ctx context.Context, f *Flow, to netip.AddrPort) (net.Conn, error) {
	asked := f.Destination()
	d := policy.Destination{Host: asked.Host, Port: asked.Port}
	if to.IsValid() {
		d = policy.Destination{Host: to.Addr().String(), Addr: to.Addr(), Port: to.Port()}
	}
	return u.connect(ctx, f, to, func(conn net.Conn) error { return u.proxy.Open(conn, d) })
}

func (u *upstreamProxy) connect(ctx context.Context, f *Flow, to netip.AddrPort, open func(net.Conn) error) (net.Conn, error) {
	conn, err := u.reach(ctx, f, to)
	if err != nil {
		return nil, err
	}
	opened, err := u.begin(ctx, conn, open)
	if err != nil {
		conn.Close()
		return nil, &upstreamError{cmpError(ctx.Err(), err)}
	}
	return opened, nil
}

// cmpError returns the error that says more: a time that is over, or else what failed.
func cmpError(over, failed error) error {
	if errors.Is(over, context.DeadlineExceeded) {
		return over
	}
	return failed
}

func (u *upstreamProxy) reach(ctx context.Context, f *Flow, to netip.AddrPort) (net.Conn, error) {
	at, err := u.addresses(ctx)
	if err != nil {
		return nil, &upstreamError{err}
	}
	l, err := race(ctx, &f.gate.tasks, at, func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
		return u.dialProxy(ctx, f, at, to)
	})
	switch {
	case err == nil:
		return l.conn, nil
	case errors.Is(err, errRefused), errors.Is(err, errNotJudged), errors.Is(err, errPorts):
		return nil, err
	}
	return nil, &upstreamError{err}
}

// dialProxy connects to the proxy at an address of it, to ask it for a decided one.
func (u *upstreamProxy) dialProxy(ctx context.Context, f *Flow, at, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: keepAlive,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			if a, err := netip.ParseAddrPort(address); err != nil || netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) != at {
				return errNotJudged
			}
			if err := f.judged(to); err != nil {
				return err
			}
			return f.mayConnect(at)
		},
	}
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp", at.String())
}

// begin makes TLS with the proxy if it is to be, and has open ask it. The time of ctx bounds both.
func (u *upstreamProxy) begin(ctx context.Context, raw net.Conn, open func(net.Conn) error) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := u.proxy.Secure(ctx, raw)
	if err != nil {
		return nil, err
	}
	if err := open(conn); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, ctx.Err()
	}
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return conn, nil
	}
	socket, carry, err := upstream.Socket(secure)
	if err != nil {
		return nil, err
	}
	u.gate.tasks.start(carry)
	return socket, nil
}

// An upstreamError is a failure of the upstream proxy.
type upstreamError struct{ error }

func (e *upstreamError) Unwrap() error { return e.error }

// isFinal reports whether the proxy would refuse other addresses, too.
func isFinal(err error) bool {
	var refused *upstream.RefusedError
	return errors.As(err, &refused) && refused.Final
}

// refusal is what to show of e. f.mu is held.
func (e *upstreamError) refusal(f *Flow) *Refusal {
	class, why := networkClass(e.error), ""
	var refused *upstream.RefusedError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(e.error, &refused):
		class, why = policy.UpstreamRefused, refused.Error()
	case errors.As(e.error, &certificate):
		class, why = policy.NetworkTLS, "the certificate of the upstream proxy is not valid for its host, or its authority is in neither the system's nor tls.extra_roots"
	case errors.Is(e.error, upstream.ErrNotProtocol):
		class, why = policy.NetworkTLS, upstream.ErrNotProtocol.Error()
	case errors.Is(e.error, io.EOF), errors.Is(e.error, io.ErrUnexpectedEOF):
		class, why = policy.NetworkReset, "the upstream proxy closed the connection before it answered"
	case class == policy.NetworkRefused:
		why = "the upstream proxy refused the connection, or broke it off"
	case class == policy.NetworkTimeout:
		why = "the upstream proxy did not answer in time"
	default:
		why = "the upstream proxy cannot be reached"
	}
	r := f.networkRefusal(class)
	r.Decision.Reason, r.Note = why, why
	return r
}

// A Forwarding says how plain HTTP goes to an upstream proxy: as whole requests with an absolute target.
type Forwarding struct{ authorization string }

// Fields returns the fields that each request has for the proxy.
func (w *Forwarding) Fields() http1.Fields {
	if w.authorization == "" {
		return nil
	}
	return http1.Fields{{Name: "Proxy-Authorization", Value: w.authorization}}
}

// DialHTTP is Dial for requests of plain HTTP that are no upgrade. If an upstream proxy takes them whole, the
// connection leads to that proxy and the Forwarding says how to write them. It is nil otherwise.
func (f *Flow) DialHTTP(ctx context.Context) (net.Conn, *Forwarding, error) {
	up := f.gate.Route.proxy.Load()
	d := f.Destination()
	if up == nil || !up.proxy.TakesRequests(&d) {
		conn, err := f.Dial(ctx)
		return conn, nil, err
	}
	if refusal := f.current(ctx); refusal != nil {
		return nil, nil, refusal
	}
	ctx, cancel := f.gate.patience(ctx)
	defer cancel()
	var to netip.AddrPort
	if all := f.decided(); len(all) == 1 {
		to = all[0]
	}
	conn, err := up.connect(ctx, f, to, func(net.Conn) error { return nil })
	if err != nil {
		return nil, nil, f.dialError(err)
	}
	conn, err = f.holding(line{conn, to})
	return conn, &Forwarding{up.proxy.Authorization()}, err
}
