package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/quota"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// listening is what a [FilteringServer] has open.
type listening struct {
	start    sync.Once
	limits   FilteringLimits
	waits    quota.Pool[sandbox.Holder] // of what may wait
	streams  quota.Pool[sandbox.Holder] // of connections
	life     context.Context
	die      context.CancelFunc
	answers  sync.WaitGroup // and connections
	mu       sync.Mutex     // guards what follows
	open     map[io.Closer]struct{}
	bySource map[netip.Addr]int // connections
	stopped  bool
}

func (f *FilteringServer) prepare() {
	f.limits = f.Limits
	for n, value := range map[*int]int{&f.limits.InFlight: 512, &f.limits.Connections: 256, &f.limits.PerSource: 32, &f.limits.PerSecond: 200} {
		if *n == 0 {
			*n = value
		}
	}
	if f.limits.Idle == 0 {
		f.limits.Idle = 10 * time.Second
	}
	f.waits.Most, f.streams.Most = f.limits.InFlight, f.limits.Connections
	f.life, f.die = context.WithCancel(context.Background())
	f.open, f.bySource = map[io.Closer]struct{}{}, map[netip.Addr]int{}
}

// keep has Shutdown close c, and reports false where it was called already.
func (f *FilteringServer) keep(c io.Closer) bool {
	f.start.Do(f.prepare)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped {
		f.open[c] = struct{}{}
		f.answers.Add(1)
	}
	return !f.stopped
}

// enter has Shutdown wait for one more answer, and reports false where it was called
// already.
func (f *FilteringServer) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return false
	}
	f.answers.Add(1)
	return true
}

// release closes what was kept.
func (f *FilteringServer) release(c io.Closer) {
	_ = c.Close()
	f.mu.Lock()
	delete(f.open, c)
	f.mu.Unlock()
	f.answers.Done()
}

func (f *FilteringServer) isStopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopped
}

// Shutdown ends all Serve methods and waits for them. Questions that wait for an
// answer get none.
func (f *FilteringServer) Shutdown() {
	f.start.Do(f.prepare)
	f.mu.Lock()
	f.stopped = true
	for c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.die()
	f.answers.Wait()
}

// peerAt is who sends from an address to the listener that is called name.
func peerAt(from netip.AddrPort, name string) sandbox.Peer {
	return sandbox.Peer{Addr: netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port()), Listener: name}
}

// ServeUDP answers what arrives at c, which it owns, from the address that it was
// sent to, until [FilteringServer.Shutdown]. name is what the configuration calls c.
func (f *FilteringServer) ServeUDP(c *net.UDPConn, name string) error {
	if !f.keep(c) {
		_ = c.Close()
		return ErrServerClosed
	}
	defer f.release(c)
	p, err := newPackets(c)
	if err != nil {
		return err
	}
	d := newDatagrams(f, p, name)
	defer d.flood.settle()
	for {
		err := d.next()
		switch {
		case f.isStoppedAfter(err):
			return ErrServerClosed
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // of a datagram, or of memory that may be there again
			f.pause()
		}
	}
}

// isStoppedAfter asks only where there is an error.
func (f *FilteringServer) isStoppedAfter(err error) bool { return err != nil && f.isStopped() }

// ServeTCP is ServeUDP for connections (RFC 7766). On each, one question is
// answered after the other.
func (f *FilteringServer) ServeTCP(l net.Listener, name string) error {
	if !f.keep(l) {
		_ = l.Close()
		return ErrServerClosed
	}
	defer f.release(l)
	for {
		c, err := l.Accept()
		switch {
		case f.isStoppedAfter(err):
			return ErrServerClosed
		case err != nil:
			if !temporary(err) {
				return err
			}
			f.pause()
			continue
		}
		f.accepted(c, name)
	}
}

// temporary reports whether Accept may succeed later: the error concerns one connection, or descriptors ran out.
func temporary(err error) bool {
	t, ok := err.(interface{ Temporary() bool })
	return ok && t.Temporary()
}

func (f *FilteringServer) pause() {
	select {
	case <-f.life.Done():
	case <-time.After(20 * time.Millisecond):
	}
}

func (f *FilteringServer) accepted(c net.Conn, name string) {
	from, _ := c.RemoteAddr().(*net.TCPAddr)
	if from == nil || !f.keep(c) {
		_ = c.Close()
		return
	}
	peer := peerAt(from.AddrPort(), name)
	who := f.Gate.Names.Holder(peer)
	if !f.admit(peer.Addr.Addr(), who) {
		if inquiry, err := f.Gate.Names.Inquire(peer, policy.DNSQuery{}); err == nil {
			_ = inquiry.Refuse(nil, policy.TooManyFlows, "too many connections to the name server are open")
		}
		f.release(c)
		return
	}
	go func() {
		defer f.release(c)
		defer f.dismiss(peer.Addr.Addr(), who)
		f.stream(c, peer)
	}()
}

// admit counts a connection with its address and with its sandbox.
func (f *FilteringServer) admit(from netip.Addr, who sandbox.Holder) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bySource[from] >= f.limits.PerSource || !f.streams.Acquire(who) {
		return false
	}
	f.bySource[from]++
	return true
}

func (f *FilteringServer) dismiss(from netip.Addr, who sandbox.Holder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams.Release(who)
	if f.bySource[from]--; f.bySource[from] == 0 {
		delete(f.bySource, from)
	}
}

// stream answers what comes on c, until it has nothing more to say in time.
func (f *FilteringServer) stream(c net.Conn, peer sandbox.Peer) {
	in, out := make([]byte, 512), []byte(nil)
	for {
		if c.SetDeadline(time.Now().Add(f.limits.Idle)) != nil {
			return
		}
		msg, err := readFrame(c, in)
		if err != nil {
			if msg != nil {
				f.unreadable(peer, msg)
			}
			return
		}
		b, ok := f.framed(peer, msg, append(out[:0], 0, 0))
		if !ok || c.SetDeadline(time.Now().Add(f.limits.Idle)) != nil {
			return
		}
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
		if _, err := c.Write(b); err != nil {
			return
		}
		in, out = msg[:cap(msg)], b
	}
}

// framed appends the response to msg. Where there is none, or something broke, the
// connection ends.
func (f *FilteringServer) framed(peer sandbox.Peer, msg, b []byte) (_ []byte, ok bool) {
	defer recovered.Log(toAnswer, func() { ok = false })
	t := &turn{server: f, peer: peer}
	t.begin(&f.Gate.Names, msg)
	var a answer
	switch t.stage {
	case unanswered:
		return nil, false
	case waits:
		a = t.finish(f.life)
	default:
		a = t.settled()
	}
	return a.appendTo(b, &t.message, 1<<16-1), true
}

// unreadable records what came of a message that was announced and did not come,
// or is longer than a question can be.
func (f *FilteringServer) unreadable(peer sandbox.Peer, part []byte) {
	if inquiry, err := f.Gate.Names.Inquire(peer, policy.DNSQuery{}); err == nil {
		_ = inquiry.Refuse(part, policy.MalformedRequest, "the message is longer than a question, or shorter than its length says")
	}
}

// readFrame reads one message after its length (RFC 1035 section 4.2.2), into
// room where it fits. Beside an error it returns what came of a message, or nil
// where none was begun.
func readFrame(r io.Reader, room []byte) ([]byte, error) {
	var length [2]byte
	if n, err := io.ReadFull(r, length[:]); err != nil {
		if n > 0 {
			return length[:n], err
		}
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(length[:]))
	if size > maxUDP {
		return length[:], errBroken
	}
	if size > cap(room) {
		room = make([]byte, size)
	}
	n, err := io.ReadFull(r, room[:size])
	return room[:n], err
}
