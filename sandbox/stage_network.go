package sandbox

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// makeNetwork gives the namespace its loopback, the sandbox's own addresses on it,
// and routes that have every address end there. It reports whether there is IPv6.
func makeNetwork(plan jailPlan) (ipv6 bool, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return false, &SetupError{"loopback", err}
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return false, &SetupError{"loopback", err}
	}
	if err := everywhere(lo, plan.IPv4); err != nil {
		return false, &SetupError{"IPv4 network", err}
	}
	if !plan.IPv6.IsValid() {
		return false, nil
	}
	err = everywhere(lo, plan.IPv6)
	if err == nil {
		return true, nil
	}
	if _, missing := os.Stat("/proc/sys/net/ipv6"); errors.Is(missing, os.ErrNotExist) {
		return false, nil // a kernel without it
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return false, nil // it is switched off: nothing can be sent by it
	}
	return false, &SetupError{"IPv6 network", err}
}

// everywhere has all addresses of own's family be this host's.
func everywhere(lo netlink.Link, own netip.Addr) error {
	size := own.BitLen()
	address := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(size, size)}, Flags: unix.IFA_F_NODAD}
	if err := netlink.AddrAdd(lo, address); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index,
		Dst:       &net.IPNet{IP: make(net.IP, size/8), Mask: net.CIDRMask(0, size)},
		Src:       own.AsSlice(),
		Type:      unix.RTN_LOCAL,
		Table:     unix.RT_TABLE_LOCAL,
		Scope:     netlink.SCOPE_HOST,
	})
}
