package rules

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// attr is an attribute of netlink as the kernel writes it.
func attr(kind uint16, parts ...[]byte) []byte {
	value := bytes.Join(parts, nil)
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func be32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func statement(name string, data ...[]byte) []byte {
	return attr(1|unix.NLA_F_NESTED, attr(unix.NFTA_EXPR_NAME, []byte(name+"\x00")), attr(unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, data...))
}

func rule(family byte, statements ...[]byte) []byte {
	return append([]byte{family, 0, 0, 0}, attr(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, statements...)...)
}

// loads puts a port into a register.
func loads(register uint32, port uint16) []byte {
	value := attr(unix.NFTA_DATA_VALUE, binary.BigEndian.AppendUint16(nil, port))
	return statement("immediate", attr(unix.NFTA_IMMEDIATE_DREG, be32(register)), attr(unix.NFTA_IMMEDIATE_DATA|unix.NLA_F_NESTED, value))
}

func TestWhereRulesLead(t *testing.T) {
	const inet, ip, ip6 = unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6
	redirect := func(register uint32) []byte {
		return statement("redir", attr(unix.NFTA_REDIR_REG_PROTO_MIN, be32(register)))
	}
	tproxy := func(family uint32) []byte { return statement("tproxy", attr(1, be32(family)), attr(3, be32(1))) }
	dnat := func(kind uint32) []byte {
		return statement("nat", attr(unix.NFTA_NAT_TYPE, be32(kind)), attr(unix.NFTA_NAT_REG_PROTO_MIN, be32(1)))
	}
	target := func(name string) []byte {
		return statement("target", attr(unix.NFTA_TARGET_NAME, []byte(name+"\x00")), attr(unix.NFTA_TARGET_INFO, []byte{0, 0, 0, 1, 0x0c, 0x39, 0x0c, 0x39}))
	}
	nat4 := Listener{At: netip.MustParseAddrPort("10.99.0.2:3129")}
	nat6 := Listener{At: netip.MustParseAddrPort("[fd99::2]:3129")}
	tproxy4 := Listener{At: nat4.At, TProxy: true}
	tproxy6 := Listener{At: nat6.At, TProxy: true}
	for _, row := range []struct {
		says    string
		message []byte
		to      []Listener
	}{
		{"redirect", rule(inet, loads(1, 3129), redirect(1)), []Listener{nat4, nat6}},
		{"redirect in a table of one family", rule(ip6, loads(1, 3129), redirect(1)), []Listener{nat6}},
		{"redirect to another port", rule(inet, loads(1, 3130), redirect(1)), nil},
		{"another register", rule(inet, loads(2, 3129), loads(1, 3130), redirect(1)), nil},
		{"redirect to a port that is computed", rule(inet, redirect(9)), []Listener{nat4, nat6}},
		{"dnat", rule(ip, loads(1, 3129), dnat(1)), []Listener{nat4}},
		{"snat", rule(ip, loads(1, 3129), dnat(0)), nil},
		{"tproxy", rule(inet, loads(1, 3129), tproxy(ip)), []Listener{tproxy4}},
		{"tproxy of both families", rule(inet, loads(1, 3129), tproxy(0)), []Listener{tproxy4, tproxy6}},
		{"iptables", rule(ip, target("REDIRECT")), []Listener{nat4}},
		{"iptables and tproxy", rule(ip6, target("TPROXY")), []Listener{tproxy6}},
		{"iptables and something else", rule(ip, target("LOG")), nil},
		{"a port that is only loaded", rule(inet, loads(1, 3129)), nil},
		{"half a message", rule(inet, loads(1, 3129), redirect(1))[:40], nil},
		{"nothing", nil, nil},
	} {
		var got []Listener
		for _, p := range []Listener{nat4, nat6, tproxy4, tproxy6} {
			for _, l := range leadsOf(row.message) {
				if l.to(p) {
					got = append(got, p)
				}
			}
		}
		if len(got) != len(row.to) {
			t.Errorf("%s leads to %v, want %v", row.says, got, row.to)
			continue
		}
		for i := range got {
			if got[i] != row.to[i] {
				t.Errorf("%s leads to %v, want %v", row.says, got, row.to)
			}
		}
	}
}
