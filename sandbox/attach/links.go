//go:build linux

package attach

import (
	"encoding/binary"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// An OpenNetworkError lists the ways out of a network. egressd cannot confine a program in such a network.
type OpenNetworkError struct{ Ways []string }

func (e *OpenNetworkError) Error() string {
	return "this is no boundary: the network has " + strings.Join(e.Ways, ", ") + ", by which a program gets out past egressd"
}

// closedNetwork refuses a network with an interface that could lead out.
func closedNetwork() error {
	list, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("list the interfaces: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(list)
	if err != nil {
		return fmt.Errorf("list the interfaces: %w", err)
	}
	var ways []string
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		if l := linkIn(&m); !l.leadsNowhere() {
			ways = append(ways, "the interface "+l.name)
		}
	}
	if len(ways) > 0 {
		return &OpenNetworkError{ways}
	}
	return nil
}

// A link is a network interface.
type link struct {
	name, kind string // kind is empty for one that no module has made
	sort       uint16 // ARPHRD_…
	flags      uint32
	index      uint32
}

// linkIn reads a message of RTM_NEWLINK. An unreadable message counts as an interface that leads out.
func linkIn(m *syscall.NetlinkMessage) (l link) {
	l.sort, l.flags = binary.NativeEndian.Uint16(m.Data[2:]), binary.NativeEndian.Uint32(m.Data[8:])
	l.index = binary.NativeEndian.Uint32(m.Data[4:])
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return link{name: "that cannot be read", flags: unix.IFF_UP}
	}
	for _, a := range attributes {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			l.name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_LINKINFO:
			l.kind = kindIn(a.Value)
		}
	}
	return l
}

// kindIn reads the interface's kind, which is the first attribute of IFLA_LINKINFO.
func kindIn(info []byte) string {
	if len(info) < unix.SizeofRtAttr || binary.NativeEndian.Uint16(info[2:]) != unix.IFLA_INFO_KIND {
		return "unknown"
	}
	size := int(binary.NativeEndian.Uint16(info))
	return unix.ByteSliceToString(info[unix.SizeofRtAttr:min(max(size, unix.SizeofRtAttr), len(info))])
}

// leadsNowhere reports whether an interface is the loopback, that of a jail, or a tunnel interface that the kernel creates in
// each network namespace and that is down.
func (l *link) leadsNowhere() bool {
	switch l.kind {
	case "":
		return l.sort == unix.ARPHRD_LOOPBACK && l.flags&unix.IFF_LOOPBACK != 0
	case "ipip", "gre", "gretap", "erspan", "sit", "ip6tnl", "ip6gre", "ip6gretap", "ip6erspan", "vti", "vti6":
		return l.flags&unix.IFF_UP == 0
	}
	return jailinit.IsOwnInterface(l.index, l.name, l.kind)
}
