package jailinit

import (
	"encoding/binary"
	"errors"
	"os"

	"github.com/egressd/egressd/internal/netlink"
	"golang.org/x/sys/unix"
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

// Shared is what rules for a network that egressd shares with other programs say: who
// egressd is there, and where it listens, on loopback.
type Shared struct {
	User    uint32
	Capture uint16 // port for captured connections
	Names   uint16 // port for questions, over UDP and TCP
}

// Enforce loads the rules that docs/how-to/gateway.md shows for such a network, and replaces rules that it loaded there
// earlier. It needs CAP_NET_ADMIN.
func (p Shared) Enforce() error { return p.rules().load() }

func (p Shared) rules() *ruleset {
	const again = true
	r := newRuleset(again)

	r.begin("capture", "nat", translated, verdictAccept)
	r.rule(ofUser(p.User), accept())
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		r.rule(ofProtocol(protocol), toPort(DNSPort), redirectTo(p.Names))
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
		r.Attribute(unix.NFTA_REDIR_REG_PROTO_MIN, number(register1)...)
	}}}
}

func meta(key uint32) expression {
	return expression{"meta", func(r *ruleset) {
		r.Attribute(unix.NFTA_META_DREG, number(register1)...)
		r.Attribute(unix.NFTA_META_KEY, number(key)...)
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
		r.Attribute(unix.NFTA_CT_DREG, number(register1)...)
		r.Attribute(unix.NFTA_CT_KEY, number(key)...)
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
		r.Attribute(unix.NFTA_BITWISE_SREG, number(register1)...)
		r.Attribute(unix.NFTA_BITWISE_DREG, number(register1)...)
		r.Attribute(unix.NFTA_BITWISE_LEN, number(4)...)
		r.value(unix.NFTA_BITWISE_MASK, dnat)
		r.value(unix.NFTA_BITWISE_XOR, make([]byte, 4))
	}}
	return []expression{conntrack(unix.NFT_CT_STATUS), masked, equals(dnat)}
}
