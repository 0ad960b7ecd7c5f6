package rules

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Listener is a listener to which the packet filter is to bring connections
// that were going elsewhere.
type Listener struct {
	At     netip.AddrPort
	TProxy bool // else by NAT
}

// ErrUnreadable means that connections may be led by rules that cannot be read.
var ErrUnreadable = errors.New("rules of iptables-legacy are in use, which cannot be read")

// A Watch looks again and again whether rules lead to the same points. It is for
// one goroutine.
type Watch struct {
	points     []Listener
	generation uint32
	led        []bool
}

// NewWatch returns a watch of points.
func NewWatch(points []Listener) *Watch { return &Watch{points: points} }

// Look reports for each point whether there is a rule of nftables in the network of
// this process that leads to its port, and for tproxy also a route by which what it
// has taken stays here. What the rule is asked about is not looked at. The error is
// [unix.EPERM] where the process has no CAP_NET_ADMIN over the network; then, as with
// others, nothing is known.
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

// read reads all rules.
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
	return ask(unix.NETLINK_NETFILTER, subsystem|question, flags, make([]byte, nfgenmsgSize))
}

// ask asks the kernel one question and returns what the messages of its answer hold.
// A list that changed while it was read is an error, [unix.EINTR].
func ask(protocol int, kind, flags uint16, head []byte) (all [][]byte, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	q := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(head)))
	q = binary.NativeEndian.AppendUint16(q, kind)
	q = binary.NativeEndian.AppendUint16(q, flags|unix.NLM_F_REQUEST)
	q = append(append(q, make([]byte, 8)...), head...)
	if err := unix.Sendto(fd, q, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch {
			case m.Header.Flags&unix.NLM_F_DUMP_INTR != 0:
				return nil, unix.EINTR
			case m.Header.Type == unix.NLMSG_ERROR:
				return all, errorIn(m.Data)
			case m.Header.Type == unix.NLMSG_DONE:
				return all, nil
			}
			all = append(all, bytes.Clone(m.Data))
		}
		if flags&unix.NLM_F_DUMP == 0 {
			return all, nil
		}
	}
}

// errorIn reads a struct nlmsgerr.
func errorIn(b []byte) error {
	if len(b) < 4 {
		return errors.New("half an error")
	}
	if code := int32(binary.NativeEndian.Uint32(b)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// ruleGeneration is the number of the rules as they are: each change has another.
func ruleGeneration() (uint32, error) {
	messages, err := askFilter(unix.NFT_MSG_GETGEN, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if id := attribute(attributes(m, nfgenmsgSize), unix.NFTA_GEN_ID); len(id) == 4 {
			return binary.BigEndian.Uint32(id), nil
		}
	}
	return 0, errors.New("nftables tells no generation of its rules")
}

// A lead is where one statement of a rule brings connections.
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

// nfgenmsgSize is that of the header behind a message's own (struct nfgenmsg).
const nfgenmsgSize = 4

// leadsOf reads what a rule does with connections (linux/netfilter/nf_tables.h).
func leadsOf(message []byte) (all []lead) {
	if len(message) < nfgenmsgSize {
		return nil
	}
	registers := map[string][]byte{}
	for _, listed := range attributes(attribute(attributes(message, nfgenmsgSize), unix.NFTA_RULE_EXPRESSIONS), 0) {
		statement := attributes(listed.value, 0)
		data := attributes(attribute(statement, unix.NFTA_EXPR_DATA), 0)
		name := textOf(attribute(statement, unix.NFTA_EXPR_NAME))
		if name == "immediate" {
			value := attributes(attribute(data, unix.NFTA_IMMEDIATE_DATA), 0)
			registers[string(attribute(data, unix.NFTA_IMMEDIATE_DREG))] = firstTwo(attribute(value, unix.NFTA_DATA_VALUE))
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

// leadOf reads one statement. registers are what is in them by then.
func leadOf(name string, data []element, registers map[string][]byte) (l lead, ok bool) {
	register := func(kind uint16) []byte { return registers[string(attribute(data, kind))] }
	switch name {
	case "redir":
		return lead{port: register(unix.NFTA_REDIR_REG_PROTO_MIN)}, true
	case "nat":
		const destination = 1 // NFT_NAT_DNAT
		kind := attribute(data, unix.NFTA_NAT_TYPE)
		return lead{port: register(unix.NFTA_NAT_REG_PROTO_MIN)}, len(kind) == 4 && binary.BigEndian.Uint32(kind) == destination
	case "tproxy":
		const family, port = 1, 3 // NFTA_TPROXY_FAMILY, NFTA_TPROXY_REG_PORT
		l = lead{tproxy: true, port: register(port)}
		if f := attribute(data, family); len(f) == 4 {
			l.family = f[3]
		}
		return l, true
	case "target": // of iptables-nft
		target := textOf(attribute(data, unix.NFTA_TARGET_NAME))
		l = lead{tproxy: target == "TPROXY", legacy: attribute(data, unix.NFTA_TARGET_INFO)}
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

// An element is an attribute of netlink.
type element struct {
	kind  uint16
	value []byte
}

// attributes are those behind the first bytes of b, as far as they are sound.
func attributes(b []byte, behind int) []element {
	if len(b) < behind {
		return nil
	}
	var all []element
	for b = b[behind:]; len(b) >= unix.SizeofNlAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
		all = append(all, element{kind: binary.NativeEndian.Uint16(b[2:]) &^ flags, value: b[unix.SizeofNlAttr:size]})
		b = b[min((size+3)&^3, len(b)):]
	}
	return all
}

func attribute(all []element, kind uint16) []byte {
	for _, a := range all {
		if a.kind == kind {
			return a.value
		}
	}
	return nil
}

// Sizes of struct fib_rule_hdr and struct rtmsg.
const routeHeader = 12

// staysHere reports whether what has a mark is routed to this host: else what tproxy
// has taken would be forwarded.
func staysHere(addr netip.Addr) (bool, error) {
	head := make([]byte, routeHeader)
	head[0] = unix.AF_INET6
	if addr.Is4() {
		head[0] = unix.AF_INET
	}
	rules, err := ask(unix.NETLINK_ROUTE, unix.RTM_GETRULE, unix.NLM_F_DUMP, head)
	if err != nil {
		return false, err
	}
	routes, err := ask(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, unix.NLM_F_DUMP, head)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(rules, func(rule []byte) bool {
		const mark, table = 10, 15 // FRA_FWMARK, FRA_TABLE
		all := attributes(rule, routeHeader)
		marked := attribute(all, mark)
		if len(marked) != 4 || binary.NativeEndian.Uint32(marked) == 0 {
			return false
		}
		return slices.ContainsFunc(routes, func(route []byte) bool {
			return isLocalDefault(route, head[0]) && bytes.Equal(attribute(attributes(route, routeHeader), unix.RTA_TABLE), attribute(all, table))
		})
	}), nil
}

// isLocalDefault reports whether a route has every address of a family be this host.
func isLocalDefault(route []byte, family byte) bool {
	return len(route) >= routeHeader && route[0] == family && route[1] == 0 && route[7] == unix.RTN_LOCAL
}

// hasLegacyRules reports whether the kernel has tables that only iptables-legacy
// reads.
func hasLegacyRules() bool {
	for _, path := range []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"} {
		if text, err := os.ReadFile(path); err == nil && len(bytes.TrimSpace(text)) > 0 {
			return true
		}
	}
	return false
}
