// Package rules reads and loads packet filter rules in networks that egressd shares with others: a host whose
// rules lead connections to egressd, and a pod.
package rules

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/netlink"
)

// A Listener is an address to which packet filter rules should lead captured connections.
type Listener struct {
	At     netip.AddrPort
	TProxy bool // else by NAT
}

// ErrUnreadable is for rules of iptables-legacy, which egressd cannot read.
var ErrUnreadable = errors.New("rules of iptables-legacy are in use, which cannot be read")

// A Watch looks repeatedly whether rules lead to the same listeners. It is for one goroutine.
type Watch struct {
	points     []Listener
	generation uint32
	led        []bool
}

// NewWatch returns a watch of listeners.
func NewWatch(points []Listener) *Watch { return &Watch{points: points} }

// Look reports for each listener whether a rule of nftables in this process's network leads to its port. For
// tproxy, packets with a mark have to be routed to this host as well. Look does not evaluate the conditions of
// a rule. On error nothing is known; the error is [unix.EPERM] without CAP_NET_ADMIN over the network.
func (w *Watch) Look() ([]bool, error) {
	now, err := ruleGeneration()
	if err != nil {
		return nil, err
	}
	if w.led == nil || now != w.generation {
		led, err := w.read()
		if err != nil {
			return nil, err
		}
		w.led, w.generation = led, now
	}
	led := slices.Clone(w.led)
	for i, p := range w.points {
		if p.TProxy && led[i] {
			if led[i], err = staysHere(p.At.Addr()); err != nil {
				return nil, err
			}
		}
	}
	if slices.Contains(led, false) && hasLegacyRules() {
		return nil, ErrUnreadable
	}
	return led, nil
}

func (w *Watch) read() ([]bool, error) {
	led := make([]bool, len(w.points))
	rules, err := askFilter(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	if err != nil {
		return nil, err
	}
	for _, message := range rules {
		for _, lead := range leadsOf(message) {
			for i, p := range w.points {
				led[i] = led[i] || lead.to(p)
			}
		}
	}
	return led, nil
}

// askFilter asks the kernel's packet filter.
func askFilter(question uint16, flags uint16) ([][]byte, error) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	return netlink.Ask(unix.NETLINK_NETFILTER, subsystem|question, flags, make([]byte, nfgenmsgSize))
}

// ruleGeneration returns a number that changes with every change of the rules.
func ruleGeneration() (uint32, error) {
	messages, err := askFilter(unix.NFT_MSG_GETGEN, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if id := netlink.Find(netlink.Attributes(m, nfgenmsgSize), unix.NFTA_GEN_ID); len(id) == 4 {
			return binary.BigEndian.Uint32(id), nil
		}
	}
	return 0, errors.New("nftables tells no generation of its rules")
}

// A lead is the destination of one statement of a rule.
type lead struct {
	family byte // of the rule's table or of the statement: unix.NFPROTO_…
	tproxy bool
	port   []byte // in network byte order; nil: one that depends on the packet
	legacy []byte // the whole statement, of iptables: a port is somewhere in it
}

func (l lead) to(p Listener) bool {
	is4 := p.At.Addr().Is4()
	port := binary.BigEndian.AppendUint16(nil, p.At.Port())
	switch {
	case l.tproxy != p.TProxy, l.family == unix.NFPROTO_IPV4 && !is4, l.family == unix.NFPROTO_IPV6 && is4:
		return false
	case l.legacy != nil:
		return bytes.Contains(l.legacy, port)
	}
	return l.port == nil || bytes.Equal(l.port, port)
}

// nfgenmsgSize is the size of struct nfgenmsg, which follows the header of a message.
const nfgenmsgSize = 4

// leadsOf returns the leads of a rule (linux/netfilter/nf_tables.h).
func leadsOf(message []byte) (all []lead) {
	if len(message) < nfgenmsgSize {
		return nil
	}
	registers := map[string][]byte{}
	for _, listed := range netlink.Attributes(netlink.Find(netlink.Attributes(message, nfgenmsgSize), unix.NFTA_RULE_EXPRESSIONS), 0) {
		statement := netlink.Attributes(listed.Value, 0)
		data := netlink.Attributes(netlink.Find(statement, unix.NFTA_EXPR_DATA), 0)
		name := textOf(netlink.Find(statement, unix.NFTA_EXPR_NAME))
		if name == "immediate" {
			value := netlink.Attributes(netlink.Find(data, unix.NFTA_IMMEDIATE_DATA), 0)
			registers[string(netlink.Find(data, unix.NFTA_IMMEDIATE_DREG))] = firstTwo(netlink.Find(value, unix.NFTA_DATA_VALUE))
		}
		if l, ok := leadOf(name, data, registers); ok {
			if l.family == 0 {
				l.family = message[0]
			}
			all = append(all, l)
		}
	}
	return all
}

// leadOf reads one statement. registers holds the constants that earlier statements loaded.
func leadOf(name string, data []netlink.Attribute, registers map[string][]byte) (l lead, ok bool) {
	register := func(kind uint16) []byte { return registers[string(netlink.Find(data, kind))] }
	switch name {
	case "redir":
		return lead{port: register(unix.NFTA_REDIR_REG_PROTO_MIN)}, true
	case "nat":
		const destination = 1 // NFT_NAT_DNAT
		kind := netlink.Find(data, unix.NFTA_NAT_TYPE)
		return lead{port: register(unix.NFTA_NAT_REG_PROTO_MIN)}, len(kind) == 4 && binary.BigEndian.Uint32(kind) == destination
	case "tproxy":
		const family, port = 1, 3 // NFTA_TPROXY_FAMILY, NFTA_TPROXY_REG_PORT
		l = lead{tproxy: true, port: register(port)}
		if f := netlink.Find(data, family); len(f) == 4 {
			l.family = f[3]
		}
		return l, true
	case "target": // of iptables-nft
		target := textOf(netlink.Find(data, unix.NFTA_TARGET_NAME))
		l = lead{tproxy: target == "TPROXY", legacy: netlink.Find(data, unix.NFTA_TARGET_INFO)}
		return l, l.tproxy || target == "REDIRECT" || target == "DNAT"
	}
	return lead{}, false
}

func textOf(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }

func firstTwo(b []byte) []byte {
	if len(b) < 2 {
		return nil
	}
	return b[:2]
}

// routeHeader is the size of struct fib_rule_hdr and of struct rtmsg.
const routeHeader = 12

// staysHere reports whether packets with a mark are routed to this host. Otherwise the kernel would forward
// what tproxy has taken.
func staysHere(addr netip.Addr) (bool, error) {
	head := make([]byte, routeHeader)
	head[0] = unix.AF_INET6
	if addr.Is4() {
		head[0] = unix.AF_INET
	}
	rules, err := netlink.Ask(unix.NETLINK_ROUTE, unix.RTM_GETRULE, unix.NLM_F_DUMP, head)
	if err != nil {
		return false, err
	}
	routes, err := netlink.Ask(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, unix.NLM_F_DUMP, head)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(rules, func(rule []byte) bool {
		const mark, table = 10, 15 // FRA_FWMARK, FRA_TABLE
		all := netlink.Attributes(rule, routeHeader)
		marked := netlink.Find(all, mark)
		if len(marked) != 4 || binary.NativeEndian.Uint32(marked) == 0 {
			return false
		}
		return slices.ContainsFunc(routes, func(route []byte) bool {
			return isLocalDefault(route, head[0]) && bytes.Equal(netlink.Find(netlink.Attributes(route, routeHeader), unix.RTA_TABLE), netlink.Find(all, table))
		})
	}), nil
}

// isLocalDefault reports whether a route makes every address of a family local.
func isLocalDefault(route []byte, family byte) bool {
	return len(route) >= routeHeader && route[0] == family && route[1] == 0 && route[7] == unix.RTN_LOCAL
}

// hasLegacyRules reports whether the kernel has tables that only iptables-legacy can read.
func hasLegacyRules() bool {
	for _, path := range []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"} {
		if text, err := os.ReadFile(path); err == nil && len(bytes.TrimSpace(text)) > 0 {
			return true
		}
	}
	return false
}
