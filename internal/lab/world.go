package lab

import (
	"errors"
	"fmt"
	"net/netip"
)

// A World is the three namespaces and what is seen in them.
type World struct {
	Sandbox  *Net // 10.99.0.1, fd99::1: reaches the gateway's own addresses only
	Gateway  *Net // 10.99.0.2, fd99::2 towards the sandbox: the program under test runs here
	Internet *Net // every other address

	Wire *Wire // every packet that the gateway sends
	Sink *Sink // every TCP connection that arrives in the internet

	neighbour *Net // or nil
	office    *Net // or nil
}

// Addresses of the gateway towards the sandbox.
const (
	GatewayIPv4 = "10.99.0.2"
	GatewayIPv6 = "fd99::2"
)

// Hosts of the internet that accept no connection.
const (
	RefusingHost    = "93.184.216.99" // resets
	UnreachableHost = "93.184.216.98" // answers that it cannot be reached
	SilentHost      = "93.184.216.97" // answers nothing
)

// Unanswering reports whether no connection to addr reaches the [Sink]: it is
// one of the hosts above, or a host of the lab itself.
func Unanswering(addr netip.Addr) bool {
	switch addr.String() {
	case RefusingHost, UnreachableHost, SilentHost, GatewayIPv4, GatewayIPv6, "10.98.0.1", "fd98::1", "10.99.0.1", "fd99::1", NeighbourIPv4, "10.97.0.2":
		return true
	}
	return addr.IsLoopback() || addr.IsUnspecified()
}

// sinkPort takes every TCP connection in the internet, whatever its port was.
const sinkPort = 4

// catchAll hands every TCP connection to the sink with its original
// destination, except one for the name server.
const catchAll = `
table inet lab {
	chain prerouting {
		type filter hook prerouting priority -150; policy accept;
		iifname != "gw1" accept
		tcp dport 53 ip daddr 9.9.9.53 accept
		ip daddr 93.184.216.99 reject with tcp reset
		ip daddr 93.184.216.98 reject with icmp host-unreachable
		ip daddr 93.184.216.97 drop
		meta nfproto ipv4 meta l4proto tcp tproxy ip to :4 accept
		meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :4 accept
	}
}
`

// New makes a world. It needs a process that [Enter] let in. The caller closes
// it.
func New() (*World, error) {
	w := &World{}
	for _, n := range []struct {
		net  **Net
		name string
	}{{&w.Sandbox, "sandbox"}, {&w.Gateway, "gateway"}, {&w.Internet, "internet"}} {
		made, err := newNet(n.name)
		if err != nil {
			return nil, errors.Join(err, w.Close())
		}
		*n.net = made
	}
	if err := w.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the lab: %w", err), w.Close())
	}
	return w, nil
}

func (w *World) build() (err error) {
	for _, step := range []func() error{w.connect, w.sandbox, w.gateway, w.internet} {
		if err := step(); err != nil {
			return err
		}
	}
	if w.Wire, err = tap(w.Gateway); err != nil {
		return err
	}
	w.Sink, err = sink(w.Internet, sinkPort)
	return err
}

// quiet switches off the packets that a host sends by itself, so that every packet on the wire comes from the program
// under test.
func quiet(n *Net) error {
	return n.set("ipv6/conf/default/accept_ra=0", "ipv6/conf/default/accept_dad=0",
		"ipv4/conf/default/rp_filter=0", "ipv4/conf/all/rp_filter=0")
}

func (w *World) connect() error {
	for _, n := range []*Net{w.Sandbox, w.Gateway, w.Internet} {
		if err := quiet(n); err != nil {
			return err
		}
		if err := n.ip("link set lo up"); err != nil {
			return err
		}
	}
	return w.Gateway.ip(
		"link add name gw0 type veth peer name sbx0 netns "+w.Sandbox.path,
		"link add name gw1 type veth peer name gw1 netns "+w.Internet.path,
	)
}

func (w *World) sandbox() error {
	return w.Sandbox.ip(
		"addr add 10.99.0.1/24 dev sbx0",
		"addr add fd99::1/64 dev sbx0 nodad",
		"link set sbx0 up",
	)
}

// gateway does not forward: a sandbox behind it has the program under test and
// nothing else.
func (w *World) gateway() error {
	return w.Gateway.ip(
		"addr add "+GatewayIPv4+"/24 dev gw0",
		"addr add "+GatewayIPv6+"/64 dev gw0 nodad",
		"addr add 10.98.0.1/30 dev gw1",
		"addr add fd98::1/64 dev gw1 nodad",
		"link set gw0 up",
		"link set gw1 up",
		"route add default via 10.98.0.2",
		"-6 route add default via fd98::2",
	)
}

func (w *World) internet() error {
	err := w.Internet.ip(
		"addr add 10.98.0.2/30 dev gw1",
		"addr add fd98::2/64 dev gw1 nodad",
		"link set gw1 up",
		"route add local 0.0.0.0/0 dev lo table main",
		"-6 route add local ::/0 dev lo table main",
	)
	if err != nil {
		return err
	}
	return w.Internet.nft(catchAll)
}

// Close ends the world. Connections into it end with it.
func (w *World) Close() error {
	var errs []error
	if w.Sink != nil {
		errs = append(errs, w.Sink.Close())
	}
	if w.Wire != nil {
		errs = append(errs, w.Wire.Close())
	}
	for _, n := range []*Net{w.Sandbox, w.Gateway, w.Internet, w.neighbour, w.office} {
		if n != nil {
			n.close()
		}
	}
	return errors.Join(errs...)
}
