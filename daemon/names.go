package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/internal/hint"
)

// A dnsListener is where names are asked for: one address, over UDP and TCP.
type dnsListener struct {
	udp  *net.UDPConn
	tcp  net.Listener
	name string // that the file gives it
}

// nameListeners are where sandboxes ask for names.
type nameListeners struct {
	daemon *Daemon
	dnsAt  []dnsListener
}

// listenForNames opens what listen.dns names, and adds to own what can be
// connected to.
func (ns *nameListeners) listenForNames(own *[]netip.AddrPort) error {
	for _, name := range ns.daemon.Config.File.Listen.DNS {
		l, err := ns.openNames(name)
		if err != nil {
			return hint.Failed(fmt.Errorf("listen on %s for names: %w", name, err), "free it, or change listen.dns in "+ns.daemon.Path+"; ports below 1024 need CAP_NET_BIND_SERVICE")
		}
		ns.daemon.giveRoom()
		ns.dnsAt = append(ns.dnsAt, l)
		*own = append(*own, l.tcp.Addr().(*net.TCPAddr).AddrPort())
	}
	return nil
}

// openNames opens an address for both protocols, or takes what the service manager
// has opened of it.
func (ns *nameListeners) openNames(name string) (l dnsListener, err error) {
	at, err := netip.ParseAddrPort(name)
	if err != nil {
		return dnsListener{}, err
	}
	tcp, udp := ns.daemon.tailor.handed.stream(atExactly(at)), ns.daemon.tailor.handed.packet(atExactly(at))
	switch conn, isUDP := udp.(*net.UDPConn); {
	case tcp == nil && udp == nil:
		return openNames(name)
	case tcp != nil && isUDP:
		return dnsListener{conn, tcp, name}, nil
	case tcp != nil:
		tcp.Close()
	case udp != nil:
		udp.Close()
	}
	return dnsListener{}, errors.New("the service manager has opened it for one of UDP and TCP; ListenStream= and ListenDatagram= are both needed")
}

// openNames opens an address for both protocols, at one port also where the
// kernel is to choose it.
func openNames(name string) (l dnsListener, err error) {
	at, err := netip.ParseAddrPort(name)
	if err != nil {
		return dnsListener{}, err
	}
	version := "6"
	if at.Addr().Is4() {
		version = "4"
	}
	for range 8 {
		tcp, err := net.Listen("tcp"+version, at.String())
		if err != nil {
			return dnsListener{}, err
		}
		var udp *net.UDPConn
		if udp, err = net.ListenUDP("udp"+version, net.UDPAddrFromAddrPort(tcp.Addr().(*net.TCPAddr).AddrPort())); err == nil {
			return dnsListener{udp, tcp, name}, nil
		}
		tcp.Close()
		if at.Port() != 0 {
			return dnsListener{}, err
		}
	}
	return dnsListener{}, errors.New("no port is free for both UDP and TCP")
}

// serveNames answers on what listenForNames opened.
func (ns *nameListeners) serveNames() {
	for _, l := range ns.dnsAt {
		ns.daemon.Serving.Go(func() { ns.lost(l.name, ns.daemon.nameServer.ServeUDP(l.udp, l.name)) })
		ns.daemon.Serving.Go(func() { ns.lost(l.name, ns.daemon.nameServer.ServeTCP(l.tcp, l.name)) })
		fmt.Fprintf(ns.daemon.Talk, "egressd: listening on %s (dns)\n", l.tcp.Addr())
	}
}

// lost tells the operator that a listener is no longer served.
func (ns *nameListeners) lost(name string, err error) {
	if !errors.Is(err, dns.ErrServerClosed) {
		ns.daemon.admin.isLost(name, err)
	}
}

func (ns *nameListeners) closeNames() {
	for _, l := range ns.dnsAt {
		l.udp.Close()
		l.tcp.Close()
	}
}

// asksItself refuses name servers of which one is this configuration's own
// listener: a host whose resolv.conf points at egressd needs another upstream.
func asksItself(c *config.Config, upstreams []netip.AddrPort) error {
	if len(c.File.Listen.DNS) == 0 {
		return nil
	}
	own, err := config.HostAddresses()
	if err != nil {
		return fmt.Errorf("list this host's addresses: %w", err)
	}
	for _, name := range c.File.Listen.DNS {
		at, err := netip.ParseAddrPort(name)
		if err != nil {
			return err
		}
		for _, up := range upstreams {
			local := up.Addr().IsLoopback() || up.Addr().IsUnspecified() || slices.Contains(own, up.Addr())
			if up.Port() == at.Port() && (up.Addr() == at.Addr() || at.Addr().IsUnspecified() && local) {
				return fmt.Errorf("the name server %s is egressd itself, by listen.dns", up)
			}
		}
	}
	return nil
}
