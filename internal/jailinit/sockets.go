package jailinit

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// A SocketKind says what a socket of a jail is for.
type SocketKind string

const (
	TCP4       SocketKind = "tcp4"
	TCP6       SocketKind = "tcp6"
	DNS4       SocketKind = "dns4"
	DNS6       SocketKind = "dns6"
	DNSStream4 SocketKind = "dnsstream4"
	DNSStream6 SocketKind = "dnsstream6"
	UDP4       SocketKind = "udp4"
	UDP6       SocketKind = "udp6"
	Raw4       SocketKind = "raw4" // comes right behind udp4: answers are sent on it
	Raw6       SocketKind = "raw6"
	Diag       SocketKind = "diag" // asks about the others
	Dial4      SocketKind = "dial4"
	Dial6      SocketKind = "dial6"
	Proxy      SocketKind = "proxy"
	HostPort   SocketKind = "hostport" // with ":" and the port behind it
)

// DialersOfFamily bounds the open connections to servers on 127.0.0.1, and those to servers on ::1.
const DialersOfFamily = 64

// CapturePort is the loopback port of captured connections and datagrams in a jail. Programs in the jail cannot
// bind ports below 1024.
const CapturePort = 1

// DNSPort is the port of name servers.
const DNSPort = 53

const backlog = 1024

// A Socket describes a socket of a jail before it is opened.
type Socket struct {
	Kind     SocketKind
	Family   int
	Sort     int // SOCK_…
	Protocol int
	Port     int
	Anywhere bool // bound to all addresses, else to loopback
	Local    bool // receives packets to its own address only
}

func jailSockets(plan Plan, ipv6, datagrams bool) []Socket {
	return slices.Concat(CaptureSockets(ipv6, datagrams), hostPortSockets(plan.HostPorts, ipv6), dialSockets(plan.Dialers, ipv6))
}

func hostPortSockets(ports []uint16, ipv6 bool) (all []Socket) {
	for _, port := range ports {
		kind := HostPort + SocketKind(":"+strconv.Itoa(int(port)))
		all = append(all, Socket{Kind: kind, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: int(port), Local: true})
		if ipv6 {
			all = append(all, Socket{Kind: kind, Family: unix.AF_INET6, Sort: unix.SOCK_STREAM, Port: int(port), Local: true})
		}
	}
	return all
}

func dialSockets(wanted, ipv6 bool) (all []Socket) {
	for range DialersOfFamily {
		if wanted {
			all = append(all, Socket{Kind: Dial4, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Local: true})
		}
		if wanted && ipv6 {
			all = append(all, Socket{Kind: Dial6, Family: unix.AF_INET6, Sort: unix.SOCK_STREAM, Local: true})
		}
	}
	return all
}

// CaptureSockets take in what is sent anywhere.
func CaptureSockets(ipv6, datagrams bool) []Socket {
	all := []Socket{
		{Kind: TCP4, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: CapturePort},
		{Kind: DNS4, Family: unix.AF_INET, Sort: unix.SOCK_DGRAM, Port: DNSPort, Anywhere: true},
		{Kind: DNSStream4, Family: unix.AF_INET, Sort: unix.SOCK_STREAM, Port: DNSPort, Anywhere: true},
		{Kind: Diag, Family: unix.AF_NETLINK, Sort: unix.SOCK_RAW, Protocol: unix.NETLINK_SOCK_DIAG},
	}
	if ipv6 {
		all = append(all,
			Socket{Kind: TCP6, Family: unix.AF_INET6, Sort: unix.SOCK_STREAM, Port: CapturePort},
			Socket{Kind: DNS6, Family: unix.AF_INET6, Sort: unix.SOCK_DGRAM, Port: DNSPort, Anywhere: true},
			Socket{Kind: DNSStream6, Family: unix.AF_INET6, Sort: unix.SOCK_STREAM, Port: DNSPort, Anywhere: true})
	}
	if !datagrams {
		return all
	}
	all = append(all,
		Socket{Kind: UDP4, Family: unix.AF_INET, Sort: unix.SOCK_DGRAM, Port: CapturePort},
		Socket{Kind: Raw4, Family: unix.AF_INET, Sort: unix.SOCK_RAW, Protocol: unix.IPPROTO_RAW})
	if ipv6 {
		all = append(all,
			Socket{Kind: UDP6, Family: unix.AF_INET6, Sort: unix.SOCK_DGRAM, Port: CapturePort},
			Socket{Kind: Raw6, Family: unix.AF_INET6, Sort: unix.SOCK_RAW, Protocol: unix.IPPROTO_RAW})
	}
	return all
}

// Open makes the socket, in the namespace of the thread.
func (p *Socket) Open() (int, error) {
	fd, err := unix.Socket(p.Family, p.Sort|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, p.Protocol)
	if err != nil {
		return -1, err
	}
	if err := p.prepare(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (p *Socket) prepare(fd int) error {
	if p.Sort == unix.SOCK_RAW || p.Kind == Dial4 || p.Kind == Dial6 {
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
	if p.Sort == unix.SOCK_STREAM {
		return os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	return nil
}

// options let a socket take what was sent to any address, and tell which that
// was.
func (p *Socket) options() [][2]int {
	six := p.Family == unix.AF_INET6
	all := [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}}
	if p.Local {
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
	switch p.Kind {
	case UDP4:
		all = append(all, [2]int{unix.SOL_IP, unix.IP_RECVORIGDSTADDR})
	case UDP6:
		all = append(all, [2]int{unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR})
	}
	return all
}

func (p *Socket) address() unix.Sockaddr {
	if p.Family == unix.AF_INET6 {
		a := &unix.SockaddrInet6{Port: p.Port}
		if !p.Anywhere {
			a.Addr = loopback6
		}
		return a
	}
	a := &unix.SockaddrInet4{Port: p.Port}
	if !p.Anywhere {
		a.Addr = loopback4
	}
	return a
}
