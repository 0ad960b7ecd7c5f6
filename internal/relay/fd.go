package relay

import (
	"cmp"
	"errors"
	"syscall"
)

// Reset makes closing fd send a reset instead of an orderly end.
func Reset(fd int) {
	syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}

// Read reads the available bytes into b. n is 0 at the end of the stream; again is true if no byte is
// available yet.
func Read(fd int, b []byte) (n int, again bool, err error) {
	n, errno := readFD(fd, b)
	switch errno {
	case 0:
		return n, false, nil
	case syscall.EAGAIN:
		return 0, true, nil
	default:
		return 0, false, errno
	}
}

// Write writes as much of b as goes without waiting.
func Write(fd int, b []byte) (n int, err error) {
	n, errno := writeFD(fd, b)
	switch errno {
	case 0:
		return n, nil
	case syscall.EAGAIN:
		return 0, nil
	default:
		return 0, errno
	}
}

// WriteLast writes as much of b as goes without waiting, and ends fd's sending half: what
// is short goes out in one packet with the end.
func WriteLast(fd int, b []byte) {
	writeMore(fd, b)
	shutdownWrite(fd)
}

// ShutdownWrite ends fd's sending half.
func ShutdownWrite(fd int) { shutdownWrite(fd) }

// A pipe is a kernel buffer for splice(2); held counts the bytes inside.
type pipe struct {
	r, w int
	held int
}

const (
	pipeSize  = 1 << 20
	pipesIdle = 16 // kept for the next busy tunnels
	pipesMost = 48 // an ordinary user's quota is 64 MiB of pipes; beyond it they shrink to a page
)

// borrow returns a pipe, or nil where a tunnel has to do with the buffer.
func (l *Loop) borrow() *pipe {
	if n := len(l.pipes); n > 0 {
		p := l.pipes[n-1]
		l.pipes = l.pipes[:n-1]
		l.pipesOut++
		return p
	}
	if l.pipesOut >= cmp.Or(l.Pipes, pipesMost) {
		return nil
	}
	p := newPipe()
	if p != nil {
		l.pipesOut++
	}
	return p
}

// giveBack returns a borrowed pipe; one that still holds bytes is closed, so
// that they can never reach another tunnel.
func (l *Loop) giveBack(p *pipe) {
	l.pipesOut--
	if p.held > 0 || len(l.pipes) >= pipesIdle {
		p.close()
		return
	}
	l.pipes = append(l.pipes, p)
}

func (p *pipe) close() {
	closeFD(p.r)
	closeFD(p.w)
}

// Duplicate returns a descriptor of its own for what c stands for.
func Duplicate(c any) (int, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return -1, errors.New("not a socket of the system")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(p uintptr) {
		n, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, p, syscall.F_DUPFD_CLOEXEC, 0)
		if errno != 0 {
			dupErr = errno
			return
		}
		fd = int(n)
	})
	return fd, errors.Join(err, dupErr)
}
