package attach

import (
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/sandbox/foreign"
)

// closeConn closes a connection of somebody, in whose queue there may be descriptors.
func closeConn(c *net.UnixConn) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { foreign.Empty(int(fd)) })
	}
	c.Close()
}

// shut ends who accepts from l, and has nobody connect any more.
func shut(l *net.UnixListener) {
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	_ = l.SetDeadline(time.Now())
}

// closeListener closes a listener, and before that all who have connected and were not accepted: with
// it the kernel would close what they have sent.
func closeListener(l *net.UnixListener) {
	f, err := l.File()
	l.Close() // nobody else who does has to wait
	if err == nil {
		foreign.Empty(int(f.Fd()))
		f.Close()
	}
}

// Farewells are visitors that are seen off, of which each may take as long as it likes: a file
// that it has sent may be of a file system of its own. The zero value has none.
type closings struct {
	once  sync.Once
	freed *sync.Cond

	mu    sync.Mutex // guards what follows
	under int
	last  bool // there is no time to wait for room
}

func (w *closings) lock() {
	w.once.Do(func() { w.freed = sync.NewCond(&w.mu) })
	w.mu.Lock()
}

// begin runs f on a goroutine of its own. It waits where there are too many.
func (w *closings) begin(f func()) {
	w.lock()
	defer w.mu.Unlock()
	for w.under >= closingMost && !w.last {
		w.freed.Wait()
	}
	w.under++
	go func() {
		f()
		w.lock()
		defer w.mu.Unlock()
		w.under--
		w.freed.Signal()
	}()
}

// hurry has begin wait no more.
func (w *closings) hurry() {
	w.lock()
	defer w.mu.Unlock()
	w.last = true
	w.freed.Broadcast()
}

// wait waits until there are none, but no longer than patience.
func (w *closings) wait(patience time.Duration) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		w.lock()
		none := w.under == 0
		w.mu.Unlock()
		if none {
			return
		}
	}
}
