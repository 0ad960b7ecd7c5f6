package rules

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// A Pod is what rules for a network that egressd shares with other programs say:
// who egressd is there, and where it listens, on loopback.
type Pod struct {
	User    uint32
	Capture uint16 // port for captured connections
	Names   uint16 // port for questions, over UDP and TCP
}

// ErrForeignRules means that a network has rules of others: it is that of a host or of
// a service mesh, or has been set up already by somebody else.
var ErrForeignRules = errors.New("this network has packet filter rules of others")

// Enforce loads the rules in the network of this process, in place of those that it
// may have loaded there before: names and connections of everybody but the user go to
// its ports, whatever else they send is refused. They hold for programs that can neither
// become that user nor send past the rules, see [ReadPrivileges]. Needs CAP_NET_ADMIN.
func (p Pod) Enforce() error {
	tables, err := askFilter(unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP)
	if err != nil {
		return fmt.Errorf("list the tables of nftables: %w", err)
	}
	for _, message := range tables {
		name := textOf(attribute(attributes(message, nfgenmsgSize), unix.NFTA_TABLE_NAME))
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

// nowhere is an address that nobody has (RFC 5737, TEST-NET-1).
var nowhere = [4]byte{192, 0, 2, 1}

// TryDatagram tries to send a datagram to an address that nobody has, and reports
// whether it left. Rules refuse it at once; a network without a route does as well.
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
