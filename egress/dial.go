package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/policy"
)

// attemptDelay is how long one address has before the next is tried beside
// it (RFC 8305 §5).
const attemptDelay = 250 * time.Millisecond

// attemptsMost is how many addresses are tried at a time: the one that was begun first gives
// way to another. Each has a descriptor, and a name can have 32 that answer nothing.
const attemptsMost = 4

// keepAlive has the kernel ask a silent upstream whether it is still there. A client's own keepalives end at
// egressd, which cannot see them. Packet filters on the way forget silent connections: NAT gateways after 240 to 350
// seconds, others after 5, and clients that know it ask more often. A probe every 4 seconds keeps the connection in both.
// The kernel counts the interval from one probe to the next, whether it is answered or not. An upstream that answers none
// for two minutes is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 4 * time.Second, Interval: 4 * time.Second, Count: 30}

var (
	errNotJudged = errors.New("the address was not decided")
	errRefused   = errors.New("the policy in force refuses it")
	errPorts     = errors.New("too many connections to it were begun")
	errNoAddress = errors.New("there is no address")
)

// Dial connects to one of the flow's decided addresses and to nothing else.
// The error is always a [*Refusal]. The flow closes the connection when it is
// closed or cut.
func (f *Flow) Dial(ctx context.Context) (net.Conn, error) {
	l, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	return f.holding(l)
}

// holding returns the connection of l once the flow has it.
func (f *Flow) holding(l line) (net.Conn, error) {
	if !f.hold(l) {
		l.conn.Close()
		return nil, f.dialError(errRefused)
	}
	f.gate.Records.connected(f.took())
	return l.conn, nil
}

// A line is a connection and the address that it leads to: none, where an upstream proxy found the address.
type line struct {
	conn net.Conn
	to   netip.AddrPort
}

// dial is Dial for a caller who holds the connection.
func (f *Flow) dial(ctx context.Context) (line, error) {
	if refusal := f.current(ctx); refusal != nil {
		return line{}, refusal
	}
	ctx, cancel := f.gate.patience(ctx)
	defer cancel()
	l, err := f.reach(ctx)
	if err != nil {
		return line{}, f.dialError(err)
	}
	return l, nil
}

// reach connects to a decided address: directly, or through the upstream proxy.
func (f *Flow) reach(ctx context.Context) (line, error) {
	up, to, asked := f.gate.Route.proxy.Load(), f.decided(), f.Destination()
	switch {
	case up == nil:
		return race(ctx, &f.gate.tasks, to, f.dialOne)
	case len(to) == 0 && up.resolves(&asked):
		conn, err := up.tunnel(ctx, f, netip.AddrPort{})
		return line{conn: conn}, err
	}
	return race(ctx, &f.gate.tasks, to, func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		return up.dial(ctx, f, to)
	})
}

// hold keeps the connection of l as the flow's own, and reports false where it has ended.
func (f *Flow) hold(l line) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.wasCut {
		return false
	}
	if f.conn != nil {
		f.conn.Close()
	}
	f.conn = l.conn
	f.dialled = l.to
	return true
}

// race tries the addresses one after the other, each with a head start, and
// returns the first connection.
func race(ctx context.Context, tasks *tasks, to []netip.AddrPort, dial func(context.Context, netip.AddrPort) (net.Conn, error)) (line, error) {
	if len(to) == 1 {
		conn, err := dial(ctx, to[0])
		return line{conn, to[0]}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan dialled)
	giveUp := make([]context.CancelFunc, 0, len(to)) // by attempt
	started, ended := 0, 0
	last := errNoAddress
	for ended < len(to) {
		if started < len(to) {
			its, cancel := context.WithCancel(ctx)
			defer cancel()
			giveUp = append(giveUp, cancel)
			next := to[started]
			tasks.start(func() {
				conn, err := dial(its, next)
				results <- dialled{line{conn, next}, err}
			})
			if started >= attemptsMost {
				giveUp[started-attemptsMost]()
			}
			started++
		}
		select {
		case r := <-results:
			ended++
			if r.err == nil {
				cancel()
				late := started - ended
				tasks.start(func() { closeLater(results, late) })
				return r.line, nil
			}
			if last = r.err; isFinal(last) {
				cancel()
				late := started - ended
				tasks.start(func() { closeLater(results, late) })
				return line{}, last
			}
		case <-headStart(started < len(to)):
		}
	}
	return line{}, last
}

type dialled struct {
	line
	err error
}

// closeLater closes the connections of attempts that came second.
func closeLater(results <-chan dialled, n int) {
	for range n {
		if r := <-results; r.conn != nil {
			r.conn.Close()
		}
	}
}

// headStart fires when the next address may be tried; never, without one.
func headStart(next bool) <-chan time.Time {
	if !next {
		return nil
	}
	return time.After(attemptDelay)
}

func (f *Flow) dialOne(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: keepAlive,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return errNotJudged
			}
			if err := f.judged(to); err != nil {
				return err
			}
			return f.mayConnect(to)
		},
	}
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp", to.String())
}

// decided returns what may be dialled, in the order to try.
func (f *Flow) decided() []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	dst := &f.request.Destination
	if dst.Addr.IsValid() {
		return []netip.AddrPort{netip.AddrPortFrom(dst.Addr, dst.Port)}
	}
	decided := make([]netip.AddrPort, len(dst.Addrs))
	for i, a := range dst.Addrs {
		decided[i] = netip.AddrPortFrom(a, dst.Port)
	}
	return decided
}

// leadsTo reports whether the address is one of those that were decided. No address stands for the name itself, which
// an upstream proxy resolves.
func (f *Flow) leadsTo(to netip.AddrPort) bool {
	if !to.IsValid() {
		return len(f.decided()) == 0
	}
	return slices.Contains(f.decided(), netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
}

// judged checks the address once more right before connect(2): it must be a decided one.
func (f *Flow) judged(to netip.AddrPort) error {
	if !f.leadsTo(to) {
		return errNotJudged
	}
	if f.current(context.Background()) != nil {
		return errRefused
	}
	return nil
}

// mayConnect counts one more connection of the flow's sandbox. A connection that egressd closes first keeps its local port
// for a minute (TIME-WAIT, RFC 9293 section 3.6.1): a sandbox that only connects and leaves could use up the local
// ports towards one address. Loopback is not counted, since the kernel uses its ports again.
func (f *Flow) mayConnect(to netip.AddrPort) error {
	if !to.Addr().IsLoopback() && !f.gate.ports.Take(f.Holder(), f.Sandbox(), to, time.Since(f.gate.began)) {
		return errPorts
	}
	return nil
}

var tooManyPorts = policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has begun as many connections to this address within a minute as local ports are left; a wider net.ipv4.ip_local_port_range raises the limit, and net.ipv4.tcp_tw_reuse=1 lifts it"}

// localPorts returns how many connections towards one place may begin in a minute, by the
// settings of the kernel: a little less than half of its local ports. It takes every second
// port first, and once these are used up each connect(2) looks at all of them.
func localPorts() int {
	if text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_tw_reuse"); err == nil && strings.TrimSpace(string(text)) == "1" {
		return 0 // a port is free again after a second
	}
	first, last := 32768, 60999 // ip-sysctl(7)
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if f := strings.Fields(string(text)); len(f) == 2 {
			a, errA := strconv.Atoi(f[0])
			b, errB := strconv.Atoi(f[1])
			if errA == nil && errB == nil {
				first, last = a, b
			}
		}
	}
	return max(2, (last-first+1)*9/20)
}

// plain returns an address that is written as IPv4 where it is one, and without a zone.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// A Kept holds the connection of an ended flow for the next flow of the same sandbox to the same destination. Only
// [Flow.Reuse] can use it.
type Kept struct {
	conn    net.Conn
	dialled netip.AddrPort
	where   policy.Destination
	sandbox string
	policy  *policy.Policy
}

// Keep takes the connection out of the flow, which no longer closes it. carried is that connection if the caller has
// taken it over already, or else nil. Keep returns nil if there is none or the flow was cut.
func (f *Flow) Keep(carried net.Conn) *Kept {
	f.mu.Lock()
	defer f.mu.Unlock()
	conn := carried
	if carried == nil {
		conn = f.conn
	}
	if conn == nil || f.wasCut || f.closed {
		return nil
	}
	if f.conn == conn {
		f.conn = nil
	}
	return &Kept{conn: conn, dialled: f.dialled, where: f.request.Destination, sandbox: f.request.Sandbox.Name, policy: f.policy}
}

// Close closes the connection. k may be nil.
func (k *Kept) Close() {
	if k != nil {
		k.conn.Close()
	}
}

// Reuse gives the flow a kept connection instead of a Dial. Sandbox, host, port and policy must be the same, and the
// connection must lead to an address that was decided for this flow.
func (f *Flow) Reuse(k *Kept) bool {
	if k == nil {
		return false
	}
	return k.isFor(f) && k.quiet() && f.judged(k.dialled) == nil && f.hold(line{k.conn, k.dialled})
}

// quiet reports whether the upstream has sent nothing since, not even an end:
// what it said unasked must not become the answer to the next request.
func (k *Kept) quiet() bool {
	sc, ok := k.conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var again bool
	err = raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		again = errors.Is(err, syscall.EAGAIN)
	})
	return err == nil && again
}

// isFor reports whether a flow may have the connection, as far as sandbox, host, port and policy go.
func (k *Kept) isFor(f *Flow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	to := f.request.Destination
	return k.where.Host == to.Host && k.where.Port == to.Port && k.sandbox == f.request.Sandbox.Name && k.policy == f.policy
}

// dialError turns what went wrong into the refusal to show.
func (f *Flow) dialError(err error) *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(err, errRefused) || errors.Is(err, errNotJudged) {
		if passes(f.decision.Verdict) {
			return f.refusal(policy.Decision{Class: policy.PolicyError, Rule: "gate", Layer: policy.Builtin, Reason: "the policy changed", Policy: f.decision.Policy})
		}
		return f.refusal(*f.decision)
	}
	if errors.Is(err, errPorts) {
		d := tooManyPorts
		d.Policy = f.decision.Policy
		r := f.refusal(d)
		r.Note = d.Reason // which egressd why shows
		return r
	}
	if at, ok := errors.AsType[*upstreamError](err); ok {
		return at.refusal(f)
	}
	return f.networkRefusal(networkClass(err))
}

func networkClass(err error) policy.Class {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return policy.NetworkRefused
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return policy.NetworkTimeout
	default:
		return policy.NetworkUnreachable
	}
}
