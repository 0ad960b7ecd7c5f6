package doctor

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/egressd/egressd/daemon/confine"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/sandbox/capture"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/egressd/egressd/sandbox/jail"
)

// Selftest makes a sandbox without a policy, behind which nobody dials, and says
// whether NAT captures there.
func Selftest(redirect bool) (tried []jail.WayOut, redirected bool, err error) {
	own4, own6 := names.Own()
	j, err := jail.New(jail.Options{IPv4: own4, IPv6: own6, Redirect: redirect})
	if err != nil {
		return nil, false, exits.NoSandbox(err)
	}
	defer j.Close()
	if err := confine.Memory(); err != nil {
		return nil, false, err
	}
	sockets, err := j.Sockets()
	if err != nil {
		return nil, false, exits.NoSandbox(err)
	}
	defer closeSockets(sockets)
	p := jail.Program{Argv: []string{"/proc/self/exe"}, HostSockets: hostpaths.HostSockets(nil), Fixed: hostpaths.OwnProgram(), Packets: true}
	tried, err = j.Prepare(p)
	if err != nil {
		return nil, false, exits.NoSandbox(err)
	}
	return append(tried, arrivals(sockets)...), sockets.Redirected, nil
}

func closeSockets(s *capture.Sockets) {
	for _, l := range append(s.TCP, s.DNSStreams...) {
		l.Close()
	}
	for _, c := range s.DNS {
		c.Close()
	}
	for _, d := range s.UDP {
		d.Close()
	}
}

// arriveWithin is how long what was sent in the same machine may take.
const arriveWithin = 2 * time.Second

// arrivals looks that what was sent in the sandbox came to its sockets.
func arrivals(s *capture.Sockets) (all []jail.WayOut) {
	for _, l := range s.TCP {
		all = append(all, arrived("a connection", l, func() (netip.AddrPort, error) {
			c, err := l.Accept()
			if err != nil {
				return netip.AddrPort{}, err
			}
			defer c.Close()
			return netip.ParseAddrPort(c.LocalAddr().String())
		}, !s.Redirected))
	}
	for _, d := range s.UDP {
		all = append(all, arrived("a datagram", d, func() (netip.AddrPort, error) {
			g, err := d.Next()
			return g.To, err
		}, true))
	}
	return all
}

// arrived waits for one. Its address is known there unless NAT has changed it.
func arrived(what string, from io.Closer, next func() (netip.AddrPort, error), known bool) jail.WayOut {
	late := time.AfterFunc(arriveWithin, func() { from.Close() })
	defer late.Stop()
	to, err := next()
	switch {
	case errors.Is(err, net.ErrClosed):
		return jail.WayOut{Name: what, Escaped: "it did not arrive at egressd"}
	case err != nil:
		return jail.WayOut{Name: what, Escaped: err.Error()}
	}
	a := jail.WayOut{Name: what + " over " + familyOf(to.Addr())}
	if known && !jail.IsAttempted(to) {
		a.Escaped = "one to " + to.String() + " arrived instead"
	}
	return a
}

func familyOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "IPv4"
	}
	return "IPv6"
}
