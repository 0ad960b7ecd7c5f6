package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
)

// handed holds the sockets that the service manager opened for this process (sd_listen_fds(3)). A listener of the policy takes
// the socket with its address, so the policy alone defines the purpose of a socket. An unused socket is an
// error.
type handed struct {
	streams []net.Listener
	packets []net.PacketConn
}

// takeHanded takes what was handed over, for good: programs that this process starts
// do not get it.
func takeHanded() (*handed, error) {
	h := new(handed)
	for _, f := range activation.Files(true) {
		if err := h.add(f); err != nil {
			h.close()
			return nil, hint.Failed(fmt.Errorf("the service manager handed over %s, which is no socket to listen on: %w", f.Name(), err), "ListenStream= and ListenDatagram= alone, in the socket units")
		}
	}
	return h, nil
}

// add takes in a descriptor, and closes it: what is kept is a copy.
func (h *handed) add(f *os.File) error {
	defer f.Close()
	kind, err := syscall.GetsockoptInt(int(f.Fd()), syscall.SOL_SOCKET, syscall.SO_TYPE)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if kind == syscall.SOCK_DGRAM {
		c, err := net.FilePacketConn(f)
		if err == nil {
			h.packets = append(h.packets, c)
		}
		return err
	}
	listens, err := syscall.GetsockoptInt(int(f.Fd()), syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err != nil || listens == 0 {
		return errors.Join(errors.New("it does not listen; leave out Accept=yes"), err)
	}
	l, err := net.FileListener(f)
	if err == nil {
		h.streams = append(h.streams, l)
	}
	return err
}

// stream returns the listener that is at an address by is, or nil, and lets go of it.
func (h *handed) stream(is func(net.Addr) bool) (l net.Listener) {
	if h != nil {
		l, h.streams = taken(h.streams, func(l net.Listener) bool { return is(l.Addr()) })
	}
	return l
}

// packet is stream for datagrams.
func (h *handed) packet(is func(net.Addr) bool) (c net.PacketConn) {
	if h != nil {
		c, h.packets = taken(h.packets, func(c net.PacketConn) bool { return is(c.LocalAddr()) })
	}
	return c
}

// taken returns the first of all that fits, and the others.
func taken[T any](all []T, fits func(T) bool) (one T, others []T) {
	i := slices.IndexFunc(all, fits)
	if i < 0 {
		return one, all
	}
	return all[i], slices.Concat(all[:i], all[i+1:])
}

// close closes what nobody has taken.
func (h *handed) close() {
	if h == nil {
		return
	}
	for _, l := range h.streams {
		l.Close()
	}
	for _, c := range h.packets {
		c.Close()
	}
}

func (h *handed) allTaken(config string) error {
	if h == nil || len(h.streams)+len(h.packets) == 0 {
		return nil
	}
	var names []string
	for _, l := range h.streams {
		names = append(names, l.Addr().String())
	}
	for _, c := range h.packets {
		names = append(names, c.LocalAddr().String()+" (datagrams)")
	}
	return hint.Misused(fmt.Errorf("the service manager handed over sockets that are no listeners of %s: %s", config, strings.Join(names, ", ")),
		"egressd init systemd --yes, which makes the socket units after the policy, then systemctl daemon-reload")
}

// atProxy tells whether a socket is where a listener for the proxy would be. A
// wildcard of one family is as good as that of the other.
func atProxy(name string) func(net.Addr) bool {
	if path, unix := strings.CutPrefix(name, file.UnixListener); unix {
		return func(a net.Addr) bool { u, ok := a.(*net.UnixAddr); return ok && u.Name == path }
	}
	want, err := netip.ParseAddrPort(strings.TrimPrefix(name, file.TLSListener))
	return func(a net.Addr) bool {
		got := addrPortOf(a)
		got = netip.AddrPortFrom(got.Addr().Unmap(), got.Port())
		wild := want.Addr().IsUnspecified() && got.Addr().IsUnspecified() && want.Port() == got.Port()
		return err == nil && (got == want || wild)
	}
}

// atExactly tells whether a socket is at an address, and of its family.
func atExactly(want netip.AddrPort) func(net.Addr) bool {
	return func(a net.Addr) bool { return addrPortOf(a) == want }
}

// addrPortOf is where a socket for TCP or UDP is.
func addrPortOf(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort()
	case *net.UDPAddr:
		return a.AddrPort()
	}
	return netip.AddrPort{}
}

// checkHandedMode refuses a socket file to which more users may connect than to one
// that egressd makes: who connects to it is the sandbox.
func (ls *listeners) checkHandedMode(name, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	allowed := ofGroup
	if ls.daemon.Config.AsksForUsers(name) {
		allowed = ofEveryone
	}
	if info.Mode()&os.ModeSocket == 0 || info.Mode().Perm()&^allowed != 0 {
		return fmt.Errorf("others may connect to it (%s)", info.Mode())
	}
	return nil
}
