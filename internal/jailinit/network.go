package jailinit

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/netlink"
)

// loopback is the index of the first interface of every network namespace.
const loopback = 1

var (
	loopback4 = [4]byte{127, 0, 0, 1}
	loopback6 = [16]byte{15: 1}
)

// MakeNetwork gives the namespace its loopback, the sandbox's own addresses on it,
// and routes that have every address end there. It reports whether there is IPv6.
func MakeNetwork(plan Plan) (ipv6 bool, err error) {
	var r netlink.Batch
	loopbackUp(&r)
	everywhere(&r, plan.IPv4, plan.Again)
	if plan.IPv6 != nil {
		everywhere(&r, plan.IPv6, plan.Again)
	}
	said, err := r.Send(unix.NETLINK_ROUTE)
	if err == nil {
		err = said.Of(1)
	}
	if err != nil {
		return false, &SetupError{"loopback", err}
	}
	if err := said.Of(2, 3); err != nil {
		return false, &SetupError{"IPv4 network", err}
	}
	if plan.IPv6 == nil {
		return false, nil
	}
	if err = said.Of(4, 5); err == nil {
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

// LoopbackUp sets up the loopback interface of this thread's network, which takes
// CAP_NET_ADMIN over it.
func LoopbackUp() error {
	var r netlink.Batch
	loopbackUp(&r)
	said, err := r.Send(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	return said.Of(1)
}

func loopbackUp(r *netlink.Batch) {
	head := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(head[4:], loopback)
	binary.NativeEndian.PutUint32(head[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(head[12:], unix.IFF_UP) // what is to change
	r.Add(unix.RTM_NEWLINK, unix.NLM_F_ACK, head)
}

// everywhere has all addresses of own's family be this host's. Where it is done again,
// what is there already is no error.
func everywhere(r *netlink.Batch, own []byte, again bool) {
	family := byte(unix.AF_INET)
	if len(own) == 16 {
		family = unix.AF_INET6
	}
	create := uint16(unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL)
	if again {
		create = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	}
	r.Add(unix.RTM_NEWADDR, create, binary.NativeEndian.AppendUint32([]byte{family, byte(8 * len(own)), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}, loopback))
	r.Attribute(unix.IFA_LOCAL, own...)
	r.Attribute(unix.IFA_ADDRESS, own...)

	r.Add(unix.RTM_NEWROUTE, create, []byte{family, 0, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0})
	r.Attribute(unix.RTA_PREFSRC, own...)
	r.Attribute(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, loopback)...)
}
