package sandbox

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// capture loads the packet filter: with tproxy where the kernel has it, else, and
// where redirected is set, with NAT. It sets redirected to what was done.
func capture(plan jailPlan, ipv6 bool, redirected *bool) error {
	if !*redirected {
		if tproxyRules(plan, ipv6).Flush() == nil {
			return nil
		}
	}
	*redirected = true
	return redirectRules(plan, ipv6).Flush()
}

// A ruleset is rules to be loaded, all or none.
type ruleset struct {
	nftables.Conn
	table *nftables.Table
	chain *nftables.Chain
}

func newRuleset() *ruleset {
	r := &ruleset{table: &nftables.Table{Family: nftables.TableFamilyINet, Name: "egressd"}}
	r.AddTable(r.table)
	return r
}

func (r *ruleset) begin(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, policy nftables.ChainPolicy) {
	r.chain = r.AddChain(&nftables.Chain{Name: name, Table: r.table, Type: kind, Hooknum: hook, Priority: priority, Policy: &policy})
}

func (r *ruleset) rule(parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	r.AddRule(&nftables.Rule{Table: r.table, Chain: r.chain, Exprs: all})
}

// tproxyRules hand what is sent anywhere to the sockets on CapturePort, as it
// is. Only what stays in the sandbox passes.
func tproxyRules(plan jailPlan, ipv6 bool) *ruleset {
	r := newRuleset()
	r.begin("capture", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle, nftables.ChainPolicyAccept)
	r.passInside(plan, ipv6)
	r.passNames()
	for _, family := range families(ipv6) {
		for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			r.rule(ofFamily(family), ofProtocol(protocol), toSocket(family), accept())
		}
	}
	r.begin("leave", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop)
	r.passInside(plan, ipv6)
	r.rule(ofProtocol(unix.IPPROTO_TCP), accept())
	r.rule(ofProtocol(unix.IPPROTO_UDP), accept())
	r.rule(reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED))
	return r
}

// redirectRules have NAT send connections to the sockets on CapturePort. There is
// no such way for datagrams that tells where they went: they are refused.
func redirectRules(plan jailPlan, ipv6 bool) *ruleset {
	r := newRuleset()
	r.begin("capture", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, nftables.ChainPolicyAccept)
	r.passInside(plan, ipv6)
	r.passNames()
	r.rule(ofProtocol(unix.IPPROTO_TCP), redirect())
	r.begin("leave", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, nftables.ChainPolicyDrop)
	r.passInside(plan, ipv6)
	r.passNames()
	r.rule(ofProtocol(unix.IPPROTO_UDP), reject(unix.NFT_REJECT_ICMPX_PORT_UNREACH))
	r.rule(reject(unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED))
	return r
}

// passInside lets what the sandbox sends to itself be.
func (r *ruleset) passInside(plan jailPlan, ipv6 bool) {
	r.rule(ofFamily(unix.NFPROTO_IPV4), toPrefix(netip.MustParsePrefix("127.0.0.0/8")), accept())
	r.rule(ofFamily(unix.NFPROTO_IPV4), toPrefix(netip.PrefixFrom(plan.IPv4, 32)), accept())
	if ipv6 {
		r.rule(ofFamily(unix.NFPROTO_IPV6), toPrefix(netip.MustParsePrefix("::1/128")), accept())
		r.rule(ofFamily(unix.NFPROTO_IPV6), toPrefix(netip.PrefixFrom(plan.IPv6, 128)), accept())
	}
}

// passNames lets questions for names reach the sockets that wait for them on
// every address.
func (r *ruleset) passNames() {
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		r.rule(ofProtocol(protocol), toPort(dnsPort), accept())
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

func ofFamily(family byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register1}, equals([]byte{family})}
}

func ofProtocol(protocol byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register1}, equals([]byte{protocol})}
}

func toPort(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: register1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equals(binary.BigEndian.AppendUint16(nil, port)),
	}
}

func toPrefix(p netip.Prefix) []expr.Any {
	offset, size := uint32(16), uint32(4)
	if p.Addr().Is6() {
		offset, size = 24, 16
	}
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: register1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: register1, DestRegister: register1, Len: size, Mask: mask, Xor: make([]byte, size)},
		equals(p.Masked().Addr().AsSlice()),
	}
}

// toSocket hands packets to what is bound to CapturePort of loopback.
func toSocket(family byte) []expr.Any {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if family == unix.NFPROTO_IPV6 {
		loopback = netip.IPv6Loopback()
	}
	return []expr.Any{
		&expr.Immediate{Register: register1, Data: loopback.AsSlice()},
		&expr.Immediate{Register: register2, Data: binary.BigEndian.AppendUint16(nil, CapturePort)},
		&expr.TProxy{Family: family, TableFamily: byte(nftables.TableFamilyINet), RegAddr: register1, RegPort: register2},
	}
}

func redirect() []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: register1, Data: binary.BigEndian.AppendUint16(nil, CapturePort)},
		&expr.Redir{RegisterProtoMin: register1},
	}
}

func reject(code uint8) []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: code}}
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

func equals(value []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register1, Data: value}
}
