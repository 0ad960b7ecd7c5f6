package e2e

import (
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/internal/lab"
)

// A zone is the name server that egressd asks: scripted, and with a memory.
type zone struct {
	mu      sync.Mutex
	queries []string
	turns   map[string]int
	pass    map[string]func(*dns.Msg) *dns.Msg // domains that others answer for
}

// delegate has somebody else answer for a domain, and all below it.
func (z *zone) delegate(domain string, answer func(*dns.Msg) *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.pass == nil {
		z.pass = map[string]func(*dns.Msg) *dns.Msg{}
	}
	z.pass[domain] = answer
}

// delegated returns who answers for a name, or nil.
func (z *zone) delegated(name string) func(*dns.Msg) *dns.Msg {
	z.mu.Lock()
	defer z.mu.Unlock()
	for domain, answer := range z.pass {
		if strings.HasSuffix(name, "."+domain) {
			return answer
		}
	}
	return nil
}

func serveZone(n *lab.Net, address string) (*zone, error) {
	z := &zone{turns: map[string]int{}}
	udp, err := n.ListenPacket("udp4", address)
	if err != nil {
		return nil, err
	}
	tcp, err := n.Listen("tcp4", address)
	if err != nil {
		return nil, err
	}
	go (&dns.Server{PacketConn: udp, Handler: z}).ActivateAndServe()
	go (&dns.Server{Listener: tcp, Handler: z}).ActivateAndServe()
	return z, nil
}

func (z *zone) mark() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return len(z.queries)
}

// since returns the names, in lower case and without the last dot, that were
// asked for after the mark.
func (z *zone) since(mark int) []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return append([]string(nil), z.queries[mark:]...)
}

// turn notes a query and returns how often the same was asked before.
func (z *zone) turn(name string, qtype uint16) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.queries = append(z.queries, name)
	key := fmt.Sprint(name, qtype)
	z.turns[key]++
	return z.turns[key] - 1
}

func (z *zone) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg).SetReply(r)
	if len(r.Question) == 1 {
		q := r.Question[0]
		name := strings.TrimSuffix(strings.ToLower(q.Name), ".")
		_, tcp := w.RemoteAddr().(*net.TCPAddr)
		turn := z.turn(name, q.Qtype)
		if answer := z.delegated(name); answer != nil {
			if m := answer(r); m != nil {
				w.WriteMsg(m)
			}
			return
		}
		fill(m, q, name, turn, tcp)
	}
	w.WriteMsg(m)
}

// fill answers one question. A name that nothing is scripted for is at
// evil.test's address, so that a query that should not have been sent leads
// somewhere.
func fill(m *dns.Msg, q dns.Question, name string, turn int, tcp bool) {
	host, below := strings.CutSuffix(name, ".allowed.test")
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch {
	case !below && name != "allowed.test":
		fillElsewhere(m, q, name)
	case below && last == "cname":
		addRecord(m, q.Name, "CNAME internal.corp.test.")
		addRecord(m, "internal.corp.test.", "A 10.0.0.5")
	case below && last == "loc":
		addRecord(m, q.Name, "CNAME localhost.")
	case below && last == "localhost-at":
		addRecord(m, q.Name, "CNAME localhost.")
		addRecord(m, "localhost.", "A 127.0.0.1")
	case below && last == "loop":
		addRecord(m, q.Name, "CNAME loop2.allowed.test.")
		addRecord(m, "loop2.allowed.test.", "CNAME "+q.Name)
	case below && last == "loop2":
		addRecord(m, q.Name, "CNAME loop.allowed.test.")
	case below && last == "nx":
		m.Rcode = dns.RcodeNameError
	case below && last == "truncated" && !tcp:
		m.Truncated = true
	case below && last == "liar" && !tcp:
		m.Truncated = true
		answerTyped(m, q, "A "+allowedIPv4)
	default:
		for _, data := range addressesOf(last, below, turn) {
			answerTyped(m, q, data)
		}
	}
}

// addressesOf are the records of a name in allowed.test, by its last label.
func addressesOf(label string, below bool, turn int) []string {
	if !below {
		return []string{"A " + allowedIPv4, "AAAA " + allowedIPv6}
	}
	switch label {
	case "priv", "liar":
		return []string{"A 10.0.0.5"}
	case "meta":
		return []string{"A 169.254.169.254"}
	case "mixed":
		both := []string{"A " + allowedIPv4, "A 10.0.0.5", "A " + allowedIPv4}
		return both[turn%2 : turn%2+2]
	case "split":
		return []string{"A " + allowedIPv4, "AAAA fd12::5"}
	case "mapped":
		return []string{"AAAA ::ffff:10.0.0.5"}
	case "translated":
		return []string{"AAAA 64:ff9b::a9fe:a9fe"}
	case "self":
		return []string{"A " + lab.GatewayIPv4}
	case "home":
		return []string{"A 127.0.0.1", "AAAA ::1"}
	case "zero":
		return []string{"A 0.0.0.0"}
	case "rebind":
		if turn > 0 {
			return []string{"0 A 127.0.0.1"}
		}
		return []string{"0 A " + allowedIPv4}
	case "refuses":
		return []string{"A " + lab.RefusingHost}
	case "unreachable":
		return []string{"A " + lab.UnreachableHost}
	case "silent":
		return []string{"A " + lab.SilentHost}
	}
	return []string{"A " + allowedIPv4}
}

func fillElsewhere(m *dns.Msg, q dns.Question, name string) {
	switch name {
	case "internal.corp.test":
		answerTyped(m, q, "A 10.0.0.5")
	case "localhost":
		answerTyped(m, q, "A 127.0.0.1")
	default:
		answerTyped(m, q, "A "+evilIPv4)
	}
}

// answerTyped adds a record if the question is for its type.
func answerTyped(m *dns.Msg, q dns.Question, data string) {
	for _, field := range strings.Fields(data) {
		if dns.StringToType[field] == q.Qtype {
			addRecord(m, q.Name, data)
		}
	}
}

func addRecord(m *dns.Msg, name, data string) {
	if !strings.HasPrefix(data, "0 ") {
		data = "60 " + data
	}
	if rr, err := dns.NewRR(name + " " + data); err == nil {
		m.Answer = append(m.Answer, rr)
	}
}
