package relay

import (
	"errors"
	"syscall"
	"unsafe"
)

// The calls below never block: their descriptors are non-blocking. They are
// made without telling the scheduler, which saves a tenth of a short tunnel.

func readFD(fd int, b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

// writeFD writes as much of b as goes; MSG_NOSIGNAL keeps a broken
// connection from raising SIGPIPE.
func writeFD(fd int, b []byte) (int, syscall.Errno) { return sendFD(fd, b, 0) }

func sendFD(fd int, b []byte, flags uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), syscall.MSG_NOSIGNAL|flags, 0, 0)
		if errno != syscall.EINTR {
			return int(n), errno
		}
	}
}

const (
	spliceMove     = 1
	spliceNonblock = 2
)

func splice(from, to, n int) (int, syscall.Errno) {
	for {
		moved, _, errno := syscall.RawSyscall6(syscall.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), spliceMove|spliceNonblock)
		if errno != syscall.EINTR {
			return int(moved), errno
		}
	}
}

func shutdownWrite(fd int) {
	syscall.RawSyscall(syscall.SYS_SHUTDOWN, uintptr(fd), syscall.SHUT_WR, 0)
}

func closeFD(fd int) {
	syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0)
}

// Reset makes closing fd send a reset instead of an orderly end.
func Reset(fd int) {
	syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}

// isReset reports whether the other end of fd has broken its connection off, or the
// connection has ended both ways.
func isReset(fd int) bool {
	const tcpClose = 7 // TCP_CLOSE
	var info [8]byte
	size := uint32(len(info))
	_, _, errno := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	return errno == 0 && info[0] == tcpClose
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
	const more = 0x8000 // MSG_MORE
	sendFD(fd, b, more)
	shutdownWrite(fd)
}

// Unread reports whether bytes wait in fd that nobody has read.
func Unread(fd int) bool {
	const fionread = 0x541b
	var n int32
	_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(fd), fionread, uintptr(unsafe.Pointer(&n)))
	return errno == 0 && n > 0
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
	if l.pipesOut >= pipesMost {
		return nil
	}
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return nil
	}
	const setPipeSize = 1031 // F_SETPIPE_SZ
	syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fds[1]), setPipeSize, pipeSize)
	l.pipesOut++
	return &pipe{r: fds[0], w: fds[1]}
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
		const dupCloexec = 1030 // F_DUPFD_CLOEXEC
		n, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, p, dupCloexec, 0)
		if errno != 0 {
			dupErr = errno
			return
		}
		fd = int(n)
	})
	return fd, errors.Join(err, dupErr)
}
