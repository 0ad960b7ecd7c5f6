package attach

import (
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/sandbox/foreign"
)

// closeConn closes a client's connection. Descriptors may wait in its queue, and closing those may block.
func closeConn(c *net.UnixConn) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { foreign.Empty(int(fd)) })
	}
	c.Close()
}

// shut interrupts Accept and refuses new connections.
func shut(l *net.UnixListener) {
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	_ = l.SetDeadline(time.Now())
}

// closeListener closes a listener. Before that, it empties the queues of connections that were not accepted:
// with the listener, the kernel would close the descriptors in those queues.
func closeListener(l *net.UnixListener) {
	f, err := l.File()
	l.Close() // nobody else who does has to wait
	if err == nil {
		foreign.Empty(int(f.Fd()))
		f.Close()
	}
}

// closings counts goroutines that close descriptors of clients. Each of these may block for as long as the
// client likes, because a client can send a file of its own file system. The zero value is ready for use.
type closings struct {
	once  sync.Once
	freed *sync.Cond

	mu    sync.Mutex // guards what follows
	under int
	last  bool // begin does not wait
}

func (w *closings) lock() {
	w.once.Do(func() { w.freed = sync.NewCond(&w.mu) })
	w.mu.Lock()
}

// begin runs f on a goroutine. While too many goroutines run, it waits.
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

// hurry stops begin from waiting.
func (w *closings) hurry() {
	w.lock()
	defer w.mu.Unlock()
	w.last = true
	w.freed.Broadcast()
}

// wait waits until all goroutines have ended, but no longer than patience.
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
