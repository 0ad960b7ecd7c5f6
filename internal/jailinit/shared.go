package jailinit

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

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
