package sandbox

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A socketKind says what a socket of a jail is for.
type socketKind string

const (
	tcp4Socket       socketKind = "tcp4"
	tcp6Socket       socketKind = "tcp6"
	dns4Socket       socketKind = "dns4"
	dns6Socket       socketKind = "dns6"
	dnsStream4Socket socketKind = "dnsstream4"
	dnsStream6Socket socketKind = "dnsstream6"
	udp4Socket       socketKind = "udp4"
	udp6Socket       socketKind = "udp6"
	raw4Socket       socketKind = "raw4" // comes right behind udp4: answers are sent on it
	raw6Socket       socketKind = "raw6"
	diagSocket       socketKind = "diag" // asks about the others
	dial4Socket      socketKind = "dial4"
	dial6Socket      socketKind = "dial6"
	proxySocket      socketKind = "proxy"
	hostPortSocket   socketKind = "hostport" // with ":" and the port behind it
)

// CapturePort is where captured connections and datagrams are taken in, on the
// jail's loopback. No program in it can have a port below 1024.
const CapturePort = 1

const (
	dnsPort = 53
	backlog = 1024
)

// A socketPlan is one socket to open.
type socketPlan struct {
	kind     socketKind
	family   int
	sort     int // SOCK_…
	protocol int
	port     int
	anywhere bool // bound to all addresses, else to loopback
	inside   bool // only for what is sent to the address that it is bound to
}

// jailSockets are the sockets of a jail.
func jailSockets(plan jailPlan, ipv6, datagrams bool) []socketPlan {
	return slices.Concat(captureSockets(ipv6, datagrams), hostPortSockets(plan.HostPorts, ipv6), dialSockets(plan.Dialers, ipv6))
}

func hostPortSockets(ports []uint16, ipv6 bool) (all []socketPlan) {
	for _, port := range ports {
		kind := hostPortSocket + socketKind(":"+strconv.Itoa(int(port)))
		all = append(all, socketPlan{kind: kind, family: unix.AF_INET, sort: unix.SOCK_STREAM, port: int(port), inside: true})
		if ipv6 {
			all = append(all, socketPlan{kind: kind, family: unix.AF_INET6, sort: unix.SOCK_STREAM, port: int(port), inside: true})
		}
	}
	return all
}

func dialSockets(wanted, ipv6 bool) (all []socketPlan) {
	for range dialersOfFamily {
		if wanted {
			all = append(all, socketPlan{kind: dial4Socket, family: unix.AF_INET, sort: unix.SOCK_STREAM, inside: true})
		}
		if wanted && ipv6 {
			all = append(all, socketPlan{kind: dial6Socket, family: unix.AF_INET6, sort: unix.SOCK_STREAM, inside: true})
		}
	}
	return all
}

// captureSockets take in what is sent anywhere.
func captureSockets(ipv6, datagrams bool) []socketPlan {
	all := []socketPlan{
		{kind: tcp4Socket, family: unix.AF_INET, sort: unix.SOCK_STREAM, port: CapturePort},
		{kind: dns4Socket, family: unix.AF_INET, sort: unix.SOCK_DGRAM, port: dnsPort, anywhere: true},
		{kind: dnsStream4Socket, family: unix.AF_INET, sort: unix.SOCK_STREAM, port: dnsPort, anywhere: true},
		{kind: diagSocket, family: unix.AF_NETLINK, sort: unix.SOCK_RAW, protocol: unix.NETLINK_SOCK_DIAG},
	}
	if ipv6 {
		all = append(all,
			socketPlan{kind: tcp6Socket, family: unix.AF_INET6, sort: unix.SOCK_STREAM, port: CapturePort},
			socketPlan{kind: dns6Socket, family: unix.AF_INET6, sort: unix.SOCK_DGRAM, port: dnsPort, anywhere: true},
			socketPlan{kind: dnsStream6Socket, family: unix.AF_INET6, sort: unix.SOCK_STREAM, port: dnsPort, anywhere: true})
	}
	if !datagrams {
		return all
	}
	all = append(all,
		socketPlan{kind: udp4Socket, family: unix.AF_INET, sort: unix.SOCK_DGRAM, port: CapturePort},
		socketPlan{kind: raw4Socket, family: unix.AF_INET, sort: unix.SOCK_RAW, protocol: unix.IPPROTO_RAW})
	if ipv6 {
		all = append(all,
			socketPlan{kind: udp6Socket, family: unix.AF_INET6, sort: unix.SOCK_DGRAM, port: CapturePort},
			socketPlan{kind: raw6Socket, family: unix.AF_INET6, sort: unix.SOCK_RAW, protocol: unix.IPPROTO_RAW})
	}
	return all
}

// open makes the socket, in the namespace of the thread.
func (p *socketPlan) open() (int, error) {
	fd, err := unix.Socket(p.family, p.sort|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, p.protocol)
	if err != nil {
		return -1, err
	}
	if err := p.prepare(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (p *socketPlan) prepare(fd int) error {
	if p.sort == unix.SOCK_RAW || p.kind == dial4Socket || p.kind == dial6Socket {
		return nil
	}
	for _, o := range p.options() {
		if err := unix.SetsockoptInt(fd, o[0], o[1], 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Bind(fd, p.address()); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if p.sort == unix.SOCK_STREAM {
		return os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	return nil
}

// options let a socket take what was sent to any address, and tell which that
// was.
func (p *socketPlan) options() [][2]int {
	six := p.family == unix.AF_INET6
	all := [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}}
	if p.inside {
		if six {
			all = append(all, [2]int{unix.SOL_IPV6, unix.IPV6_V6ONLY})
		}
		return all
	}
	if six {
		all = append(all, [2]int{unix.SOL_IPV6, unix.IPV6_V6ONLY}, [2]int{unix.SOL_IPV6, unix.IPV6_TRANSPARENT})
	} else {
		all = append(all, [2]int{unix.SOL_IP, unix.IP_TRANSPARENT})
	}
	switch p.kind {
	case udp4Socket:
		all = append(all, [2]int{unix.SOL_IP, unix.IP_RECVORIGDSTADDR})
	case udp6Socket:
		all = append(all, [2]int{unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR})
	}
	return all
}

func (p *socketPlan) address() unix.Sockaddr {
	if p.family == unix.AF_INET6 {
		a := &unix.SockaddrInet6{Port: p.port}
		if !p.anywhere {
			a.Addr = netip.IPv6Loopback().As16()
		}
		return a
	}
	a := &unix.SockaddrInet4{Port: p.port}
	if !p.anywhere {
		a.Addr = [4]byte{127, 0, 0, 1}
	}
	return a
}

// add takes a socket that came out of the jail of a process.
func (s *Sockets) add(kind socketKind, fd, pid int) (err error) {
	switch kind {
	case diagSocket:
		s.Programs, err = newPrograms(fd, pid)
		if err != nil {
			unix.Close(fd)
		}
		return err
	case dial4Socket:
		s.addDialer(unix.AF_INET, fd)
		return nil
	case dial6Socket:
		s.addDialer(unix.AF_INET6, fd)
		return nil
	}
	f := os.NewFile(uintptr(fd), string(kind))
	switch kind {
	case raw4Socket, raw6Socket:
		s.UDP[len(s.UDP)-1].answers = f
		return nil
	}
	defer f.Close()
	if port, ok := strings.CutPrefix(string(kind), string(hostPortSocket)+":"); ok {
		return s.addHostPort(port, f)
	}
	switch kind {
	case proxySocket:
		s.Proxy, err = net.FileListener(f)
		return err
	case tcp4Socket, tcp6Socket, dnsStream4Socket, dnsStream6Socket:
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		if kind == tcp4Socket || kind == tcp6Socket {
			s.TCP = append(s.TCP, l)
		} else {
			s.DNSStreams = append(s.DNSStreams, l)
		}
	default:
		c, err := net.FilePacketConn(f)
		if err != nil {
			return err
		}
		if kind == dns4Socket || kind == dns6Socket {
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
