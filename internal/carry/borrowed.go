package carry

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

const (
	bufferSize  = 32 << 10
	buffersKept = 64
)

type buffer [bufferSize]byte

// buffers are kept for the next reads. Unlike those of a sync.Pool they outlast a collection. The zero value has none.
type buffers struct {
	mu   sync.Mutex
	free []*buffer
}

func (p *buffers) borrow() *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return new(buffer)
}

func (p *buffers) giveBack(b *buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < buffersKept {
		p.free = append(p.free, b)
	}
}

// A pipe is a kernel buffer for splice(2); held counts the bytes inside.
type pipe struct {
	r, w int
	held int
}

const (
	pipeSize  = 1 << 20
	pipesKept = 16 // for the next busy streams
	pipesMost = 48 // an ordinary user's quota is 64 MiB of pipes; beyond it they shrink to a page
)

// pipes are those of all busy streams. The zero value has none.
type pipes struct {
	mu   sync.Mutex
	free []*pipe
	out  int
}

// borrow returns a pipe, or nil where a stream has to do with a buffer.
func (p *pipes) borrow() *pipe {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		pipe := p.free[n-1]
		p.free = p.free[:n-1]
		p.out++
		return pipe
	}
	if p.out >= pipesMost {
		return nil
	}
	pipe := newPipe()
	if pipe != nil {
		p.out++
	}
	return pipe
}

// giveBack returns a borrowed pipe. One that still holds bytes is closed: they must not reach another tunnel.
func (p *pipes) giveBack(pipe *pipe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	if pipe.held > 0 || len(p.free) >= pipesKept {
		pipe.close()
		return
	}
	p.free = append(p.free, pipe)
}

// Close frees what is kept. Nothing may be carried any more.
func (s *Set) Close() {
	s.pipes.mu.Lock()
	defer s.pipes.mu.Unlock()
	for _, p := range s.pipes.free {
		p.close()
	}
	s.pipes.free = nil
}

// socket returns c for calls to the system, or nil if it is no plain socket.
func socket(c net.Conn) syscall.RawConn {
	var raw syscall.RawConn
	var err error
	switch c := c.(type) {
	case *net.TCPConn:
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	}
	if err != nil {
		return nil
	}
	return raw
}

// Read appends what a connection brings next to b, and waits for it with no buffer of its own where c is a plain socket.
func (s *Set) Read(c net.Conn, b []byte) ([]byte, error) {
	raw := socket(c)
	if raw == nil {
		return s.readAny(c, b)
	}
	var failed error
	err := raw.Read(func(fd uintptr) bool {
		space := s.buffers.borrow()
		defer s.buffers.giveBack(space)
		n, err := readFD(int(fd), space[:])
		if errors.Is(err, syscall.EAGAIN) {
			return false
		}
		if failed = err; err == nil && n == 0 {
			failed = io.EOF
		}
		b = append(b, space[:max(n, 0)]...)
		return true
	})
	if err == nil {
		err = failed
	}
	return b, err
}

func (s *Set) readAny(c net.Conn, b []byte) ([]byte, error) {
	space := s.buffers.borrow()
	defer s.buffers.giveBack(space)
	n, err := c.Read(space[:])
	return append(b, space[:n]...), err
}

// ReadNow reads from a socket what is there already. The error is [os.ErrDeadlineExceeded] if that is nothing.
func ReadNow(c net.Conn, b []byte) (n int, err error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.New("not a socket of the system")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, failed = readFD(int(fd), b)
		return true
	})
	switch {
	case err != nil:
		return 0, err
	case errors.Is(failed, syscall.EAGAIN):
		return 0, os.ErrDeadlineExceeded
	case failed != nil:
		return 0, failed
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// readFD reads what is there. The error is EAGAIN if that is nothing.
func readFD(fd int, b []byte) (n int, err error) {
	for {
		if n, err = syscall.Read(fd, b); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

// writeFD writes as much of b as goes. The runtime ignores the SIGPIPE of a broken connection.
func writeFD(fd int, b []byte) (n int, err error) {
	for {
		if n, err = syscall.Write(fd, b); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
