//go:build linux

package dns

import (
	"cmp"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// A poller carries the exchanges of a forwarder. The goroutine that has a question sends it. One goroutine of the
// poller reads the answers at all sockets; it ends shortly after the last exchange. The zero value is ready for use.
type poller struct {
	mu      sync.Mutex // guards what follows; never held over a system call
	running bool
	closing bool // no exchange begins any more
	epoll   int  // while it runs, and
	file    *os.File
	under   int       // exchanges that have begun and are not over
	busy    time.Time // when one began last
	sockets map[int32]*socket
	ports   ports
	linger  time.Duration // for tests; 0: pollerLinger

	ended sync.WaitGroup // the goroutine

	in     messages // from here on it belongs to the goroutine
	room   [messagesMost][buffer]byte
	events [together]syscall.EpollEvent
	came   int // of events
	swept  time.Time
}

const (
	pollerLinger = 250 * time.Millisecond // after the last exchange
	pollerTick   = 20 * time.Millisecond  // how late it may be that an exchange's time is over
)

// begin sends the questions of x to an upstream. It reports false where that cannot be
// done here, and nothing was sent.
func (m *poller) begin(x *exchange, to netip.AddrPort) bool {
	x.until = earlier(time.Now().Add(x.forwarder.timeout()), x.began.Add(x.forwarder.totalTimeout()))
	one, ok := m.open(x)
	if !ok {
		return false
	}
	if one == nil {
		var err error
		if one, err = newSocket(to); err != nil {
			m.close()
			return false
		}
		if !m.add(one, x) {
			_ = syscall.Close(one.fd)
			m.close()
			return false
		}
	}
	var out messages
	for k, q := range x.queries {
		out.put(k, q.wire)
	}
	m.sent(one, x, out.send(one.fd, len(x.queries)))
	return true
}

// open counts an exchange, has the goroutine run, and chooses a socket, if there is
// one to choose.
func (m *poller) open(x *exchange) (one *socket, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing || !m.running && !m.start() {
		return nil, false
	}
	m.under++
	m.busy = x.began
	if one = m.ports.choose(); one != nil {
		m.have(x, one)
	}
	return one, true
}

// start has the goroutine run. m.mu is held.
func (m *poller) start() bool {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return false
	}
	_ = syscall.SetNonblock(epoll, true) // so that the runtime can wait for it
	file := os.NewFile(uintptr(epoll), "epoll")
	raw, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Now().Add(pollerTick))
	}
	if err != nil {
		_ = file.Close()
		return false
	}
	m.running, m.epoll, m.file, m.sockets = true, epoll, file, map[int32]*socket{}
	m.ended.Go(func() { m.run(raw) })
	return true
}

// have gives an exchange a socket, for its questions to be sent from. m.mu is held.
func (m *poller) have(x *exchange, one *socket) {
	x.one, one.x = one, x
	one.sending++
}

// close counts an exchange out that came to nothing.
func (m *poller) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.under--
}

// add has the goroutine look at a new socket.
func (m *poller) add(one *socket, x *exchange) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(one.fd)}
	if syscall.EpollCtl(m.epoll, syscall.EPOLL_CTL_ADD, one.fd, &event) != nil {
		return false
	}
	m.sockets[event.Fd] = one
	m.have(x, one)
	return true
}

// sent notes that the questions of an exchange were sent, or the error. After an error it shuts the socket down for
// reading, so that the goroutine finds it readable at once and ends the exchange.
func (m *poller) sent(one *socket, x *exchange, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one.sending--
	switch {
	case one.retired && one.sending == 0:
		_ = syscall.Close(one.fd)
	case err != nil && !x.over && !one.retired:
		x.failed = err
		_ = syscall.Shutdown(one.fd, syscall.SHUT_RD)
	}
}

// stop has the goroutine end the exchanges under way as Timeout, and itself.
func (m *poller) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closing = true
	if m.running {
		_ = m.file.SetReadDeadline(time.Now())
	}
}

// never ends an exchange of which nothing was sent, and reports whether somebody still
// waits for it.
func (m *poller) never(x *exchange) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	x.over = true
	return !x.given
}

// giveUp ends an exchange that nobody waits for, and reports whether it was under way.
func (m *poller) giveUp(x *exchange) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x.over || x.given {
		return false
	}
	x.given = true
	return true
}

// run takes what comes, until nothing has been under way for a while.
func (m *poller) run(raw syscall.RawConn) {
	for k := range m.room {
		m.in.put(k, m.room[k][:])
	}
	poll := m.poll
	for {
		// A goroutine that is blocked in epoll_wait(2) would have the runtime take its
		// processor away from it, and watch out for that 50,000 times a second.
		err := raw.Read(poll)
		if err == nil {
			for _, event := range m.events[:m.came] {
				m.hear(event.Fd)
			}
		}
		if now := time.Now(); err != nil || now.Sub(m.swept) >= pollerTick {
			if !m.sweep(now) {
				return
			}
			_ = m.file.SetReadDeadline(now.Add(pollerTick))
		}
	}
}

// poll asks which sockets there is something at, and reports false for none.
func (m *poller) poll(fd uintptr) bool {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&m.events)), uintptr(len(m.events)), 0, 0, 0)
	m.came = int(n)
	if errno != 0 {
		m.came = 0
	}
	return m.came > 0
}

// hear takes what came at a socket, which nobody else reads from or closes.
func (m *poller) hear(fd int32) {
	n, err := m.in.receive(int(fd))
	m.mu.Lock()
	one := m.sockets[fd]
	if (err == syscall.EAGAIN || err == syscall.EINTR) && (one == nil || one.x == nil || one.x.failed == nil) {
		m.mu.Unlock()
		return
	}
	if one == nil || one.x == nil || one.x.given { // and so nobody has asked for it
		m.retire(one)
		m.mu.Unlock()
		return
	}
	x := one.x
	if x.failed != nil {
		err = x.failed
	}
	m.mu.Unlock()
	for k := range n {
		x.take(m.room[k][:m.in.heads[k].size])
	}
	if err != nil {
		x.fail(err)
	}
	if !anyWaiting(x.queries) {
		m.finish(x, err == nil && x.unfit == 0)
	}
}

// take gives a packet to the question that it answers.
func (x *exchange) take(msg []byte) {
	fitted, told := take(x.queries, msg)
	switch {
	case !fitted:
		if x.unfit++; x.unfit == maxUnfit {
			leaveToTCP(x.queries)
		}
	case told:
		x.until = earlier(x.until, time.Now().Add(x.forwarder.timeout()/4))
	}
}

// fail ends what waits.
func (x *exchange) fail(err error) {
	for _, q := range x.queries {
		if q.state == waiting {
			q.fail(err)
		}
	}
}

// finish ends an exchange. It is clean where all that came was the answers, in their
// own case.
func (m *poller) finish(x *exchange, clean bool) {
	m.mu.Lock()
	one := x.one
	one.x, x.over = nil, true
	if !clean || !m.ports.give(one, time.Now()) {
		m.retire(one)
	}
	m.under--
	given := x.given
	m.mu.Unlock()
	if !given {
		x.forwarder.heard(x)
	}
}

// retire closes a socket, with the exchange that has it, if one does: at once, or when
// the questions are sent that are about to be. It is called with m.mu held.
func (m *poller) retire(one *socket) {
	if one == nil {
		return
	}
	if x := one.x; x != nil {
		one.x, x.over = nil, true
		m.under--
	}
	m.ports.drop(func(other *socket) bool { return other == one })
	m.shut(one)
}

// shut is retire for a socket that nobody has.
func (m *poller) shut(one *socket) {
	delete(m.sockets, int32(one.fd))
	if one.sending > 0 {
		one.retired = true
		_ = syscall.EpollCtl(m.epoll, syscall.EPOLL_CTL_DEL, one.fd, nil)
		return
	}
	_ = syscall.Close(one.fd)
}

// sweep ends the exchanges whose time is over and closes the sockets that are too old.
// It reports false where there is nothing left to do, and nothing left.
func (m *poller) sweep(now time.Time) bool {
	m.swept = now
	var late []*exchange
	m.mu.Lock()
	for _, one := range m.sockets {
		switch x := one.x; {
		case x == nil:
		case x.given:
			m.retire(one)
		case m.closing || !now.Before(x.until):
			late = append(late, x)
		}
	}
	for _, one := range m.ports.drop(func(one *socket) bool { return m.ports.old(one, now) }) {
		m.shut(one)
	}
	if m.under == 0 && (m.closing || now.Sub(m.busy) >= cmp.Or(m.linger, pollerLinger)) {
		m.end()
		m.mu.Unlock()
		return false
	}
	m.mu.Unlock()
	for _, x := range late {
		x.fail(Timeout)
		m.finish(x, false)
	}
	return true
}

// end closes everything. m.mu is held.
func (m *poller) end() {
	for _, one := range m.sockets {
		m.shut(one)
	}
	_ = m.file.Close()
	m.running, m.sockets, m.ports.spare = false, nil, nil
}
