//go:build linux

package attach

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox"
)

// checkSockets compares each descriptor with its plan. All have to be sockets of one network, and not of
// egressd's own. checkSockets returns the network's number. It reads socket options only, because other calls
// on a client's descriptor may block.
func checkSockets(fds []int, plans []jailinit.Socket, own uint64) (network uint64, err error) {
	if len(fds) != len(plans) {
		return 0, fmt.Errorf("%d descriptors, where %d belong to the message", len(fds), len(plans))
	}
	for i, p := range plans {
		n, err := checkSocket(&p, fds[i])
		switch {
		case err != nil:
			return 0, fmt.Errorf("descriptor %d is not the socket %s: %w", i, p.Kind, err)
		case n == own:
			return 0, fmt.Errorf("descriptor %d is a socket of egressd's own network", i)
		case network != 0 && n != network:
			return 0, errors.New("sockets of two networks")
		}
		network = n
	}
	return network, nil
}

// checkSocket compares one socket with its plan and returns the number of the socket's network.
func checkSocket(p *jailinit.Socket, fd int) (network uint64, err error) {
	listens := 0
	if p.Sort == unix.SOCK_STREAM {
		listens = 1
	}
	for _, o := range [...]struct {
		what         string
		option, want int
	}{
		{"family", unix.SO_DOMAIN, p.Family}, {"type", unix.SO_TYPE, p.Sort},
		{"protocol", unix.SO_PROTOCOL, protocolNumber(p)}, {"listens", unix.SO_ACCEPTCONN, listens},
	} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.option)
		if err != nil {
			return 0, err
		}
		if got != o.want {
			return 0, fmt.Errorf("its %s is %d, not %d", o.what, got, o.want)
		}
	}
	if network, err = sandbox.NetworkOf(fd); err != nil || p.Sort == unix.SOCK_RAW {
		return network, err
	}
	return network, checkPlace(p, fd)
}

// checkPlace refuses a socket that is connected, or bound to another address than the plan says.
func checkPlace(p *jailinit.Socket, fd int) error {
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	at := addressOf(bound)
	right := at.Addr().IsLoopback()
	if p.Anywhere {
		right = at.Addr().IsUnspecified()
	}
	if !right || at.Port() != uint16(p.Port) {
		return fmt.Errorf("it is bound to %s", at)
	}
	if _, err := unix.Getpeername(fd); !errors.Is(err, unix.ENOTCONN) {
		return errors.New("it is connected")
	}
	return nil
}

func protocolNumber(p *jailinit.Socket) int {
	switch {
	case p.Sort == unix.SOCK_STREAM:
		return unix.IPPROTO_TCP
	case p.Sort == unix.SOCK_DGRAM:
		return unix.IPPROTO_UDP
	}
	return p.Protocol
}

func addressOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}
