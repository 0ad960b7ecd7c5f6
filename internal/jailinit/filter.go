package jailinit

import (
	"cmp"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/netlink"
)

// Capture loads the packet filter: with tproxy where the kernel has it, else, and
// where redirected is set, with NAT. It sets redirected to what was done.
func Capture(plan Plan, ipv6 bool, redirected *bool) error {
	if !*redirected {
		if tproxyRules(plan, ipv6).load() == nil {
			return nil
		}
	}
	*redirected = true
	return redirectRules(plan, ipv6).load()
}

// A ruleset is rules of nftables to be loaded, all or none.
type ruleset struct {
	netlink.Batch
	chain string
}

// Table is the name of the table of nftables that all rules are in.
const Table = "egressd"

// A hook is where a chain looks at packets, and when: of linux/netfilter.h.
type hook struct {
	number   uint32
	priority int32
}

var (
	arriving   = hook{unix.NF_INET_PRE_ROUTING, -150} // NF_IP_PRI_MANGLE
	translated = hook{unix.NF_INET_LOCAL_OUT, -100}   // NF_IP_PRI_NAT_DST
	leaving    = hook{unix.NF_INET_LOCAL_OUT, 0}      // NF_IP_PRI_FILTER
)

// Verdicts of linux/netfilter.h.
const (
	verdictDrop   = 0
	verdictAccept = 1
)

// newRuleset begins rules that, where they are loaded again, replace those before.
func newRuleset(again bool) *ruleset {
	r := new(ruleset)
	r.Add(unix.NFNL_MSG_BATCH_BEGIN, 0, []byte{unix.AF_UNSPEC, 0, 0, unix.NFNL_SUBSYS_NFTABLES})
	r.object(unix.NFT_MSG_NEWTABLE, 0)
	r.Attribute(unix.NFTA_TABLE_NAME, text(Table)...)
	r.Attribute(unix.NFTA_TABLE_FLAGS, number(0)...)
	if again { // the table is there, since a line ago
		r.remove()
		r.object(unix.NFT_MSG_NEWTABLE, 0)
		r.Attribute(unix.NFTA_TABLE_NAME, text(Table)...)
		r.Attribute(unix.NFTA_TABLE_FLAGS, number(0)...)
	}
	return r
}

// object begins the message that makes a table, a chain or a rule.
func (r *ruleset) object(kind, flags uint16) {
	r.Add(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags|unix.NLM_F_CREATE, []byte{unix.NFPROTO_INET, 0, 0, 0})
}

// remove takes away the table with all that is in it.
func (r *ruleset) remove() {
	r.Add(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE, 0, []byte{unix.NFPROTO_INET, 0, 0, 0})
	r.Attribute(unix.NFTA_TABLE_NAME, text(Table)...)
}

// load has the kernel take the rules. It answers for the last one alone, and for
// each that it does not take.
func (r *ruleset) load() error {
	r.Acknowledge()
	last := r.Last()
	r.Add(unix.NFNL_MSG_BATCH_END, 0, []byte{unix.AF_UNSPEC, 0, 0, unix.NFNL_SUBSYS_NFTABLES})
	said, err := r.Send(unix.NETLINK_NETFILTER)
	return cmp.Or(err, said.Any(), said.Of(last))
}

func (r *ruleset) begin(name, kind string, where hook, policy uint32) {
	r.chain = name
	r.object(unix.NFT_MSG_NEWCHAIN, 0)
	r.Attribute(unix.NFTA_CHAIN_TABLE, text(Table)...)
	r.Attribute(unix.NFTA_CHAIN_NAME, text(name)...)
	r.Nested(unix.NLA_F_NESTED|unix.NFTA_CHAIN_HOOK, func() {
		r.Attribute(unix.NFTA_HOOK_HOOKNUM, number(where.number)...)
		r.Attribute(unix.NFTA_HOOK_PRIORITY, number(uint32(where.priority))...)
	})
	r.Attribute(unix.NFTA_CHAIN_POLICY, number(policy)...)
	r.Attribute(unix.NFTA_CHAIN_TYPE, text(kind)...)
}

// An expression is one step of a rule: it is called to append what it consists of.
type expression struct {
	name string
	fill func(r *ruleset)
}

func (r *ruleset) rule(parts ...[]expression) {
	r.object(unix.NFT_MSG_NEWRULE, unix.NLM_F_APPEND)
	r.Attribute(unix.NFTA_RULE_TABLE, text(Table)...)
	r.Attribute(unix.NFTA_RULE_CHAIN, text(r.chain)...)
	r.Nested(unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, func() {
		for _, part := range parts {
			for _, e := range part {
				r.expression(e)
			}
		}
	})
}

func (r *ruleset) expression(e expression) {
	r.Nested(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, func() {
		r.Attribute(unix.NFTA_EXPR_NAME, text(e.name)...)
		r.Nested(unix.NLA_F_NESTED|unix.NFTA_EXPR_DATA, func() { e.fill(r) })
	})
}

// value appends data as an attribute of an expression.
func (r *ruleset) value(kind uint16, data []byte) {
	r.Nested(unix.NLA_F_NESTED|kind, func() { r.Attribute(unix.NFTA_DATA_VALUE, data...) })
}

func text(s string) []byte   { return append([]byte(s), 0) }
func number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// tproxyRules hand what is sent anywhere to the sockets on CapturePort, as it
// is. Only what stays in the sandbox passes.
func tproxyRules(plan Plan, ipv6 bool) *ruleset {
	r := newRuleset(plan.Again)
	r.begin("capture", "filter", arriving, verdictAccept)
	r.passInside(plan, ipv6)
	r.passNames()
	for _, family := range families(ipv6) {
		for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			r.rule(ofFamily(family), ofProtocol(protocol), toSocket(family), accept())
		}
	}
	r.begin("leave", "filter", leaving, verdictDrop)
	r.rule(notOverLoopback(), reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED))
	r.passInside(plan, ipv6)
	r.rule(ofProtocol(unix.IPPROTO_TCP), accept())
	r.rule(ofProtocol(unix.IPPROTO_UDP), accept())
	r.rule(reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED))
	return r
}

// redirectRules have NAT send connections to the sockets on CapturePort. There is
// no such way for datagrams that tells where they went: they are refused.
func redirectRules(plan Plan, ipv6 bool) *ruleset {
	r := newRuleset(plan.Again)
	r.begin("capture", "nat", translated, verdictAccept)
	r.passInside(plan, ipv6)
	r.passNames()
	r.rule(ofProtocol(unix.IPPROTO_TCP), redirect())
	r.begin("leave", "filter", leaving, verdictDrop)
	r.rule(notOverLoopback(), reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED))
	r.passInside(plan, ipv6)
	r.passNames()
	r.rule(ofProtocol(unix.IPPROTO_UDP), reject(unix.NFT_REJECT_ICMPX_PORT_UNREACH))
	r.rule(reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED))
	return r
}

// notOverLoopback is what a socket sends that is bound to the other interface.
func notOverLoopback() []expression {
	return []expression{meta(unix.NFT_META_OIF), {"cmp", func(r *ruleset) {
		r.Attribute(unix.NFTA_CMP_SREG, number(register1)...)
		r.Attribute(unix.NFTA_CMP_OP, number(unix.NFT_CMP_NEQ)...)
		r.value(unix.NFTA_CMP_DATA, binary.NativeEndian.AppendUint32(nil, loopback))
	}}}
}

// passInside lets what the sandbox sends to itself be.
func (r *ruleset) passInside(plan Plan, ipv6 bool) {
	r.rule(ofFamily(unix.NFPROTO_IPV4), toPrefix(loopback4[:], 8), accept())
	r.rule(ofFamily(unix.NFPROTO_IPV4), toPrefix(plan.IPv4, 32), accept())
	if ipv6 {
		r.rule(ofFamily(unix.NFPROTO_IPV6), toPrefix(loopback6[:], 128), accept())
		r.rule(ofFamily(unix.NFPROTO_IPV6), toPrefix(plan.IPv6, 128), accept())
	}
}

// passNames lets questions for names reach the sockets that wait for them on
// every address.
func (r *ruleset) passNames() {
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		r.rule(ofProtocol(protocol), toPort(DNSPort), accept())
	}
}

func families(ipv6 bool) []byte {
	if ipv6 {
		return []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}
	}
	return []byte{unix.NFPROTO_IPV4}
}

const (
	register1 = unix.NFT_REG_1
	register2 = unix.NFT_REG_2
)

func ofFamily(family byte) []expression     { return fieldIs(unix.NFT_META_NFPROTO, family) }
func ofProtocol(protocol byte) []expression { return fieldIs(unix.NFT_META_L4PROTO, protocol) }

// fieldIs compares what the kernel knows of a packet beside its bytes.
func fieldIs(field uint32, value byte) []expression {
	return []expression{{"meta", func(r *ruleset) {
		r.Attribute(unix.NFTA_META_DREG, number(register1)...)
		r.Attribute(unix.NFTA_META_KEY, number(field)...)
	}}, equals([]byte{value})}
}

// payload loads bytes of a packet's header.
func payload(base, offset, size uint32) expression {
	return expression{"payload", func(r *ruleset) {
		r.Attribute(unix.NFTA_PAYLOAD_DREG, number(register1)...)
		r.Attribute(unix.NFTA_PAYLOAD_BASE, number(base)...)
		r.Attribute(unix.NFTA_PAYLOAD_OFFSET, number(offset)...)
		r.Attribute(unix.NFTA_PAYLOAD_LEN, number(size)...)
	}}
}

func toPort(port uint16) []expression {
	return []expression{payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2), equals(binary.BigEndian.AppendUint16(nil, port))}
}

// toPrefix compares the first bits of where a packet goes with those of an address.
func toPrefix(address []byte, bits int) []expression {
	offset, size := uint32(16), uint32(4)
	if len(address) == 16 {
		offset, size = 24, 16
	}
	mask, prefix := make([]byte, size), make([]byte, size)
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
		prefix[i/8] = address[i/8] & mask[i/8]
	}
	masked := expression{"bitwise", func(r *ruleset) {
		r.Attribute(unix.NFTA_BITWISE_SREG, number(register1)...)
		r.Attribute(unix.NFTA_BITWISE_DREG, number(register1)...)
		r.Attribute(unix.NFTA_BITWISE_LEN, number(size)...)
		r.value(unix.NFTA_BITWISE_MASK, mask)
		r.value(unix.NFTA_BITWISE_XOR, make([]byte, size))
	}}
	return []expression{payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size), masked, equals(prefix)}
}

// toSocket hands packets to what is bound to CapturePort of loopback.
func toSocket(family byte) []expression {
	to := loopback4[:]
	if family == unix.NFPROTO_IPV6 {
		to = loopback6[:]
	}
	return []expression{constant(register1, to), capturePort(register2), {"tproxy", func(r *ruleset) {
		r.Attribute(nftaTproxyFamily, number(uint32(family))...)
		r.Attribute(nftaTproxyAddress, number(register1)...)
		r.Attribute(nftaTproxyPort, number(register2)...)
	}}}
}

// Of linux/netfilter/nf_tables.h.
const (
	nftaTproxyFamily  = 1 // NFTA_TPROXY_FAMILY
	nftaTproxyAddress = 2 // NFTA_TPROXY_REG_ADDR
	nftaTproxyPort    = 3 // NFTA_TPROXY_REG_PORT
)

func redirect() []expression {
	return []expression{capturePort(register1), {"redir", func(r *ruleset) {
		r.Attribute(unix.NFTA_REDIR_REG_PROTO_MIN, number(register1)...)
	}}}
}

func capturePort(register uint32) expression {
	return constant(register, binary.BigEndian.AppendUint16(nil, CapturePort))
}

func constant(register uint32, data []byte) expression {
	return expression{"immediate", func(r *ruleset) {
		r.Attribute(unix.NFTA_IMMEDIATE_DREG, number(register)...)
		r.value(unix.NFTA_IMMEDIATE_DATA, data)
	}}
}

func reject(code uint8) []expression {
	return []expression{{"reject", func(r *ruleset) {
		r.Attribute(unix.NFTA_REJECT_TYPE, number(unix.NFT_REJECT_ICMPX_UNREACH)...)
		r.Attribute(unix.NFTA_REJECT_ICMP_CODE, code)
	}}}
}

func accept() []expression {
	return []expression{{"immediate", func(r *ruleset) {
		r.Attribute(unix.NFTA_IMMEDIATE_DREG, number(unix.NFT_REG_VERDICT)...)
		r.Nested(unix.NLA_F_NESTED|unix.NFTA_IMMEDIATE_DATA, func() {
			r.Nested(unix.NLA_F_NESTED|unix.NFTA_DATA_VERDICT, func() {
				r.Attribute(unix.NFTA_VERDICT_CODE, number(verdictAccept)...)
			})
		})
	}}}
}

func equals(value []byte) expression {
	return expression{"cmp", func(r *ruleset) {
		r.Attribute(unix.NFTA_CMP_SREG, number(register1)...)
		r.Attribute(unix.NFTA_CMP_OP, number(unix.NFT_CMP_EQ)...)
		r.value(unix.NFTA_CMP_DATA, value)
	}}
}
