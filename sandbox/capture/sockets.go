package capture

import (
	"errors"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
	"golang.org/x/sys/unix"
)

// CapturePort is where captured connections and datagrams are taken in, on the
// jail's loopback. No program in it can have a port below 1024.
const CapturePort = jailinit.CapturePort

// Sockets are what a jail hands out: all that its program sends arrives there. The
// caller closes them.
type Sockets struct {
	TCP        []net.Listener   // connections to anywhere
	DNS        []net.PacketConn // datagrams to port 53 of anywhere
	DNSStreams []net.Listener   // connections to port 53 of anywhere
	UDP        []*Datagrams     // datagrams to anywhere else; none where Redirected

	Proxy net.Listener // for those who know of a proxy; nil in a jail

	HostPorts map[uint16][]net.Listener // as in JailOptions
	Dialers   *Dialers                  // nil where JailOptions want none

	// Programs are those behind the connections and datagrams. It may be nil.
	Programs *sandbox.Programs

	// Redirected says that connections are redirected by NAT: the kernel tells
	// where they were going by SO_ORIGINAL_DST. Else their own end has the
	// address.
	Redirected bool

	held []int // of those that came by a door, see Release
}

// Add takes a socket that came out of the jail of a process.
func (s *Sockets) Add(kind jailinit.SocketKind, fd, pid int) (err error) {
	switch kind {
	case jailinit.Diag:
		s.Programs, err = sandbox.NewPrograms(fd, pid)
		if err != nil {
			unix.Close(fd)
		}
		return err
	case jailinit.Dial4:
		s.addDialer(unix.AF_INET, fd)
		return nil
	case jailinit.Dial6:
		s.addDialer(unix.AF_INET6, fd)
		return nil
	}
	f := os.NewFile(uintptr(fd), string(kind))
	switch kind {
	case jailinit.Raw4, jailinit.Raw6:
		s.UDP[len(s.UDP)-1].answers = f
		return nil
	}
	defer f.Close()
	if port, ok := strings.CutPrefix(string(kind), string(jailinit.HostPort)+":"); ok {
		return s.addHostPort(port, f)
	}
	switch kind {
	case jailinit.Proxy:
		s.Proxy, err = net.FileListener(f)
		return err
	case jailinit.TCP4, jailinit.TCP6, jailinit.DNSStream4, jailinit.DNSStream6:
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		if kind == jailinit.TCP4 || kind == jailinit.TCP6 {
			s.TCP = append(s.TCP, l)
		} else {
			s.DNSStreams = append(s.DNSStreams, l)
		}
	default:
		c, err := net.FilePacketConn(f)
		if err != nil {
			return err
		}
		if kind == jailinit.DNS4 || kind == jailinit.DNS6 {
			s.DNS = append(s.DNS, c)
			return nil
		}
		return s.addDatagrams(c)
	}
	return nil
}

func (s *Sockets) addDialer(family, fd int) {
	if s.Dialers == nil {
		s.Dialers = new(Dialers)
	}
	s.Dialers.add(family, fd)
}

func (s *Sockets) addHostPort(text string, f *os.File) error {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	if s.HostPorts == nil {
		s.HostPorts = map[uint16][]net.Listener{}
	}
	s.HostPorts[uint16(port)] = append(s.HostPorts[uint16(port)], l)
	return nil
}

// AddForeign is Add for a socket that another program has as well. Where it cannot be taken, it is discarded.
func (s *Sockets) AddForeign(kind jailinit.SocketKind, fd, pid int) error {
	held, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		foreign.Discard(fd)
		return err
	}
	s.held = append(s.held, held)
	if err = s.Add(kind, fd, pid); errors.Is(err, sandbox.ErrNotSeen) {
		return nil // then nobody knows which program it is
	}
	return err
}
