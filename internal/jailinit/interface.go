package jailinit

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/netlink"
)

const (
	interfaceName  = "eth0"
	interfaceIndex = 100 // ahead of those that kernels make by themselves
)

// interfaceKinds are kinds of interfaces that lead nowhere, in the order in which they are tried.
var interfaceKinds = [...]string{"dummy", "ifb"}

// isOwnInterface reports whether the interface of interfaceIndex is one that leads nowhere, by the name that makeInterface
// gives it.
func isOwnInterface() bool {
	head := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(head[4:], interfaceIndex)
	said, err := netlink.Ask(unix.NETLINK_ROUTE, unix.RTM_GETLINK, 0, head)
	if err != nil || len(said) != 1 || len(said[0]) < unix.SizeofIfInfomsg {
		return false
	}
	all := netlink.Attributes(said[0], unix.SizeofIfInfomsg)
	kind := unix.ByteSliceToString(netlink.Find(netlink.Attributes(netlink.Find(all, unix.IFLA_LINKINFO), 0), unix.IFLA_INFO_KIND))
	return IsOwnInterface(interfaceIndex, unix.ByteSliceToString(netlink.Find(all, unix.IFLA_IFNAME)), kind)
}

// IsOwnInterface reports whether an interface is like that of a jail, which leads nowhere.
func IsOwnInterface(index uint32, name, kind string) bool {
	return index == interfaceIndex && name == interfaceName && slices.Contains(interfaceKinds[:], kind)
}

// makeInterface adds an interface with the sandbox's IPv4 address and a default route. Browsers and others that look for one take
// a network with loopback alone for none (navigator.onLine). Nothing is sent over it: every address is this host's before any
// route counts, and the packet filter refuses packets of sockets that are bound to it. A kernel without such interfaces
// has none.
func makeInterface(plan Plan) {
	for _, kind := range interfaceKinds {
		var r netlink.Batch
		addInterface(&r, kind)
		if said, err := r.Send(unix.NETLINK_ROUTE); err != nil || said.Of(1) != nil {
			continue
		}
		var then netlink.Batch
		addRoute(&then, plan.IPv4)
		_, _ = then.Send(unix.NETLINK_ROUTE)
		return
	}
}

// tooSmall is an MTU that keeps IPv6 off an interface: there it would have a route for multicast that counts before those of
// loopback.
const tooSmall = 1279

// addInterface adds one that is up.
func addInterface(r *netlink.Batch, kind string) {
	head := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(head[4:], interfaceIndex)
	binary.NativeEndian.PutUint32(head[8:], unix.IFF_UP|unix.IFF_NOARP)
	binary.NativeEndian.PutUint32(head[12:], unix.IFF_UP|unix.IFF_NOARP)
	r.Add(unix.RTM_NEWLINK, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, head)
	r.Attribute(unix.IFLA_IFNAME, append([]byte(interfaceName), 0)...)
	r.Attribute(unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, tooSmall)...)
	r.Nested(unix.IFLA_LINKINFO, func() { r.Attribute(unix.IFLA_INFO_KIND, []byte(kind)...) })
}

// addRoute gives it the sandbox's IPv4 address and the default route.
func addRoute(r *netlink.Batch, own []byte) {
	index := binary.NativeEndian.AppendUint32(nil, interfaceIndex)
	create := uint16(unix.NLM_F_ACK | unix.NLM_F_CREATE)
	r.Add(unix.RTM_NEWADDR, create, append([]byte{unix.AF_INET, byte(8 * len(own)), 0, unix.RT_SCOPE_UNIVERSE}, index...))
	r.Attribute(unix.IFA_LOCAL, own...)
	r.Attribute(unix.IFA_ADDRESS, own...)
	r.Add(unix.RTM_NEWROUTE, create, []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0})
	r.Attribute(unix.RTA_OIF, index...)
}
