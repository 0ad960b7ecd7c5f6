//go:build linux

package foreign

import (
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// CloseConn closes a client's connection. Descriptors may wait in its queue, and closing those may block.
func CloseConn(c *net.UnixConn) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { Empty(int(fd)) })
	}
	c.Close()
}

// Shut interrupts Accept and refuses new connections.
func Shut(l *net.UnixListener) {
	if raw, err := l.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	_ = l.SetDeadline(time.Now())
}

// CloseListener closes a listener, except for the queues of connections that were not accepted: with the listener,
// the kernel would close the descriptors in those queues. The caller has rest called, which empties them and may block.
func CloseListener(l *net.UnixListener) (rest func()) {
	f, err := l.File()
	if err != nil {
		return func() { l.Close() }
	}
	l.Close() // nobody else who does has to wait
	return func() {
		Empty(int(f.Fd()))
		f.Close()
	}
}

// closingMost is how many goroutines of one Closings may close descriptors at a time.
const closingMost = 64

// Closings counts goroutines that close descriptors of clients. Each of these may block for as long as the
// client likes, because a client can send a file of its own file system. The zero value is ready for use.
type Closings struct {
	once  sync.Once
	freed *sync.Cond

	mu    sync.Mutex // guards what follows
	under int
	last  bool // Begin does not wait
}

func (w *Closings) lock() {
	w.once.Do(func() { w.freed = sync.NewCond(&w.mu) })
	w.mu.Lock()
}

// Begin runs f on a goroutine. While too many goroutines run, it waits.
func (w *Closings) Begin(f func()) {
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

// Hurry stops Begin from waiting.
func (w *Closings) Hurry() {
	w.lock()
	defer w.mu.Unlock()
	w.last = true
	w.freed.Broadcast()
}

// Wait waits until all goroutines have ended, but no longer than patience. It returns how many are left.
func (w *Closings) Wait(patience time.Duration) (left int) {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		w.lock()
		left = w.under
		w.mu.Unlock()
		if left == 0 || time.Now().After(end) {
			return left
		}
	}
}
