// Package capture holds the sockets of a captured network: everything that a program in the network sends
// arrives at them.
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

// CapturePort is the loopback port of captured connections and datagrams in a jail. Programs in the jail cannot
// bind ports below 1024.
const CapturePort = jailinit.CapturePort

// Sockets are those of a captured network. The caller closes them.
type Sockets struct {
	TCP        []net.Listener   // connections to anywhere
	DNS        []net.PacketConn // datagrams to port 53 of anywhere
	DNSStreams []net.Listener   // connections to port 53 of anywhere
	UDP        []*Datagrams     // datagrams to anywhere else; none where Redirected

	Proxy net.Listener // for those who know of a proxy; nil in a jail

	HostPorts map[uint16][]net.Listener // as in jail.Options
	Dialers   *Dialers                  // nil without ports in the jail

	// Programs finds the programs of connections and datagrams. It may be nil.
	Programs *sandbox.Programs

	// Redirected says that connections are captured by NAT: SO_ORIGINAL_DST returns the destination. Otherwise the
	// local address of a connection is the destination.
	Redirected bool

	held []int // duplicates of foreign sockets, see Release
}

// Add takes over a socket of the network of process pid.
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

// AddForeign is Add for a socket that another program holds, too. It discards a socket that it cannot take.
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
