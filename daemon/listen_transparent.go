//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/proxy"
)

// A captureListener is where connections arrive that were going elsewhere.
type captureListener struct {
	net.Listener
	name string // that the file gives it
}

// A captureKind is how the kernel tells where a connection was going.
type captureKind struct {
	name string
	how  proxy.Original
}

// captureAt reads an entry of listen.transparent.
func captureAt(name string) (at netip.AddrPort, kind captureKind, err error) {
	at, tproxy, err := config.CaptureAt(name)
	if tproxy {
		return at, captureKind{"tproxy", proxy.OriginalLocal}, err
	}
	return at, captureKind{"redirect", proxy.OriginalNAT}, err
}

func (cs *capturing) listenForCaptured(own *[]netip.AddrPort) error {
	for _, name := range cs.daemon.Config.File.Listen.Transparent {
		l, err := cs.openCapture(name)
		switch {
		case errors.Is(err, syscall.EPERM):
			return hint.Failed(fmt.Errorf("listen on %s for captured connections: %w", name, err), "give egressd CAP_NET_ADMIN (AmbientCapabilities=CAP_NET_ADMIN in its unit), which tproxy needs, or redirect connections by NAT and leave out tproxy:")
		case err != nil:
			return hint.Failed(fmt.Errorf("listen on %s for captured connections: %w", name, err), "free it, or change listen.transparent in "+cs.daemon.Path)
		}
		cs.captures = append(cs.captures, captureListener{l, name})
		*own = append(*own, l.Addr().(*net.TCPAddr).AddrPort())
	}
	if len(cs.captures) > 0 {
		cs.daemon.Server.Host = cs.daemon.host.Addrs
	}
	return nil
}

// openCapture opens a listener for captured connections, or takes it from the service
// manager.
func (cs *capturing) openCapture(name string) (net.Listener, error) {
	at, kind, err := captureAt(name)
	if err != nil {
		return nil, err
	}
	l := cs.daemon.tailor.handed.stream(atExactly(at))
	if l == nil {
		return openCapture(name)
	}
	if kind.name == "tproxy" && !isTransparent(l) {
		return nil, errors.Join(errors.New("the service manager has opened it without Transparent=yes"), l.Close())
	}
	return l, nil
}

// isTransparent reports whether a listener may be given connections to any address.
func isTransparent(l net.Listener) (on bool) {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	level, option := syscall.SOL_IPV6, ipv6Transparent
	if tcp.Addr().(*net.TCPAddr).AddrPort().Addr().Is4() {
		level, option = syscall.SOL_IP, syscall.IP_TRANSPARENT
	}
	return raw.Control(func(fd uintptr) {
		value, err := syscall.GetsockoptInt(int(fd), level, option)
		on = err == nil && value != 0
	}) == nil && on
}

// openCapture listens with sockets of one family: the kernel tells the original
// destination of an IPv4 connection to IPv4 sockets alone.
func openCapture(name string) (net.Listener, error) {
	at, kind, err := captureAt(name)
	if err != nil {
		return nil, err
	}
	network, level, option := "tcp6", syscall.SOL_IPV6, ipv6Transparent
	if at.Addr().Is4() {
		network, level, option = "tcp4", syscall.SOL_IP, syscall.IP_TRANSPARENT
	}
	lc := net.ListenConfig{KeepAlive: -1} // package proxy sets it once for all connections
	lc.SetMultipathTCP(false)
	if kind.name == "tproxy" {
		lc.Control = func(_, _ string, raw syscall.RawConn) error {
			var refused error
			err := raw.Control(func(fd uintptr) { refused = syscall.SetsockoptInt(int(fd), level, option, 1) })
			return errors.Join(err, refused)
		}
	}
	return lc.Listen(context.Background(), network, at.String())
}

// ipv6Transparent is IPV6_TRANSPARENT of linux/in6.h, which package syscall does not
// have.
const ipv6Transparent = 75

// serveCaptured serves what listenForCaptured opened.
func (cs *capturing) serveCaptured() {
	for _, l := range cs.captures {
		_, kind, _ := captureAt(l.name) // it has been read before
		cs.daemon.Serving.Go(func() {
			if err := cs.daemon.Server.ServeTransparent(l.Listener, l.name, kind.how); !errors.Is(err, proxy.ErrClosed) {
				cs.daemon.admin.isLost(l.name, err)
			}
		})
		fmt.Fprintf(cs.daemon.Talk, "egressd: listening on %s (transparent, %s)\n", l.Addr(), kind.name)
	}
}

func (cs *capturing) closeCaptured() {
	for _, l := range cs.captures {
		l.Close()
	}
}
