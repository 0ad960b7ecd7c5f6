package rules

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/internal/netlink"
)

// A Pod describes the rules of a network that egressd shares with other programs: egressd's user, and its ports
// on loopback.
type Pod struct {
	User    uint32
	Capture uint16 // port for captured connections
	Names   uint16 // port for questions, over UDP and TCP
}

// ErrForeignRules is for a network with rules of another program, such as a host's or a service mesh's.
var ErrForeignRules = errors.New("this network has packet filter rules of others")

// Enforce loads the rules in this process's network and replaces rules that it loaded earlier. DNS questions
// and TCP connections of every other user go to egressd's ports; all other packets are refused. The rules bind
// only programs that cannot become egressd's user nor send raw packets, see [ReadPrivileges]. Enforce needs
// CAP_NET_ADMIN.
func (p Pod) Enforce() error {
	tables, err := askFilter(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP)
	if err != nil {
		return fmt.Errorf("list the tables of nftables: %w", err)
	}
	for _, message := range tables {
		name := textOf(netlink.Find(netlink.Attributes(message, nfgenmsgSize), unix.NFTA_TABLE_NAME))
		if name != jailinit.Table || message[0] != unix.NFPROTO_INET {
			return fmt.Errorf("%w: table %s", ErrForeignRules, name)
		}
	}
	if hasLegacyRules() {
		return fmt.Errorf("%w: those of iptables-legacy", ErrForeignRules)
	}
	if err := jailinit.Shared(p).Enforce(); err != nil {
		return fmt.Errorf("load the rules: %w", err)
	}
	return nil
}

// nowhere is an address that no host has (RFC 5737, TEST-NET-1).
var nowhere = [4]byte{192, 0, 2, 1}

// TryDatagram sends a datagram to an address that no host has, and reports whether it left. Rules refuse it at
// once, and so does a network without a route.
func TryDatagram() (left bool, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("make a socket: %w", err)
	}
	defer unix.Close(fd)
	const discard = 9
	err = unix.Sendto(fd, nil, 0, &unix.SockaddrInet4{Port: discard, Addr: nowhere})
	if slices.Contains([]error{unix.EPERM, unix.EACCES, unix.ECONNREFUSED, unix.ENETUNREACH, unix.EHOSTUNREACH}, err) {
		return false, nil
	}
	return err == nil, err
}
