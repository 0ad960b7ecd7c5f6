package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
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
		if name != table || message[0] != unix.NFPROTO_INET {
			return fmt.Errorf("%w: table %s", ErrForeignRules, name)
		}
	}
	if hasLegacyRules() {
		return fmt.Errorf("%w: those of iptables-legacy", ErrForeignRules)
	}
	if err := p.rules().load(); err != nil {
		return fmt.Errorf("load the rules: %w", err)
	}
	return nil
}

// rules are those that the manual has for a network that egressd shares.
func (p Pod) rules() *ruleset {
	const again = true
	r := newRuleset(again)

	r.begin("capture", "nat", translated, verdictAccept)
	r.rule(ofUser(p.User), accept())
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		r.rule(ofProtocol(protocol), toPort(dnsPort), redirectTo(p.Names))
	}
	r.rule(overLoopback(), accept())
	r.rule(ofProtocol(unix.IPPROTO_TCP), redirectTo(p.Capture))

	r.begin("only", "filter", leaving, verdictDrop)
	r.rule(ofUser(p.User), accept())
	r.rule(overLoopback(), accept())
	r.rule(translatedHere(), accept())
	r.rule(isReply(), accept())
	for _, kind := range []byte{133, 135, 136} { // router solicitation, neighbour solicitation and advertisement
		r.rule(ofFamily(unix.NFPROTO_IPV6), ofProtocol(unix.IPPROTO_ICMPV6), icmpType(kind), accept())
	}
	r.rule(reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED))
	return r
}

func redirectTo(port uint16) []expression {
	return []expression{constant(register1, binary.BigEndian.AppendUint16(nil, port)), {"redir", func(r *ruleset) {
		r.attribute(unix.NFTA_REDIR_REG_PROTO_MIN, number(register1)...)
	}}}
}

func meta(key uint32) expression {
	return expression{"meta", func(r *ruleset) {
		r.attribute(unix.NFTA_META_DREG, number(register1)...)
		r.attribute(unix.NFTA_META_KEY, number(key)...)
	}}
}

func ofUser(uid uint32) []expression {
	return []expression{meta(unix.NFT_META_SKUID), equals(binary.NativeEndian.AppendUint32(nil, uid))}
}

func overLoopback() []expression {
	return []expression{meta(unix.NFT_META_OIF), equals(binary.NativeEndian.AppendUint32(nil, loopback))}
}

func icmpType(kind byte) []expression {
	return []expression{payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1), equals([]byte{kind})}
}

// conntrack loads what the kernel remembers of a packet's connection.
func conntrack(key uint32) expression {
	return expression{"ct", func(r *ruleset) {
		r.attribute(unix.NFTA_CT_DREG, number(register1)...)
		r.attribute(unix.NFTA_CT_KEY, number(key)...)
	}}
}

func isReply() []expression {
	const reply = 1 // IP_CT_DIR_REPLY
	return []expression{conntrack(unix.NFT_CT_DIRECTION), equals([]byte{reply})}
}

// translatedHere is what NAT has given another destination.
func translatedHere() []expression {
	dnat := binary.NativeEndian.AppendUint32(nil, 1<<5) // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	masked := expression{"bitwise", func(r *ruleset) {
		r.attribute(unix.NFTA_BITWISE_SREG, number(register1)...)
		r.attribute(unix.NFTA_BITWISE_DREG, number(register1)...)
		r.attribute(unix.NFTA_BITWISE_LEN, number(4)...)
		r.value(unix.NFTA_BITWISE_MASK, dnat)
		r.value(unix.NFTA_BITWISE_XOR, make([]byte, 4))
	}}
	return []expression{conntrack(unix.NFT_CT_STATUS), masked, equals(dnat)}
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
