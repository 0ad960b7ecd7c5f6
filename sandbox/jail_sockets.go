package sandbox

import (
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// CapturePort is where captured connections and datagrams are taken in, on the
// jail's loopback. No program in it can have a port below 1024.
const CapturePort = jailinit.CapturePort

// Stand waits until the jail stands. The error is a [*SetupError].
func (j *Jail) Stand() error {
	report, fds, err := j.stands()
	if err != nil {
		return err
	}
	st := &standing{report, fds, Sockets{Redirected: report.Redirected}}
	if i := slices.Index(report.Sockets, jailinit.Diag); i >= 0 { // for which the inside has to be there
		err = st.sockets.add(jailinit.Diag, fds[i], j.pid)
		st.fds[i] = -1
	}
	if err != nil {
		jailinit.CloseAll(st.fds)
		return &SetupError{Step: "sockets", Err: err}
	}
	j.stood = st
	return nil
}

// A standing jail has handed out descriptors.
type standing struct {
	report  jailinit.Report
	fds     []int // those that sockets have are -1
	sockets Sockets
}

// Sockets waits until the jail stands, if Stand did not, and returns what it hands out. The error is
// a [*SetupError].
func (j *Jail) Sockets() (*Sockets, error) {
	if j.stood == nil {
		if err := j.Stand(); err != nil {
			return nil, err
		}
	}
	st := j.stood
	j.stood = nil
	return j.socketsOf(st)
}

func (j *Jail) socketsOf(st *standing) (*Sockets, error) {
	for i, kind := range st.report.Sockets {
		if st.fds[i] < 0 {
			continue
		}
		if err := st.sockets.add(kind, st.fds[i], j.pid); err != nil {
			return nil, &SetupError{Step: "sockets", Err: err}
		}
	}
	return &st.sockets, nil
}

// add takes a socket that came out of the jail of a process.
func (s *Sockets) add(kind jailinit.SocketKind, fd, pid int) (err error) {
	switch kind {
	case jailinit.Diag:
		s.Programs, err = newPrograms(fd, pid)
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
