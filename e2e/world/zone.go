package world

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/miekg/dns"
)

// IodineServer answers for i.tunnel.test, by iodined, which has a network behind it.
const IodineServer = "151.101.1.54"

// AtServers puts a question to the server of its domain as it came.
func (d *Daemon) AtServers(r *dns.Msg) *dns.Msg {
	server := TunnelServer
	if strings.HasSuffix(strings.ToLower(r.Question[0].Name), ".i.tunnel.test.") {
		server = IodineServer
	}
	c, err := d.World.Internet.Dial("udp4", net.JoinHostPort(server, "53"))
	if err != nil {
		return nil
	}
	defer c.Close()
	conn := &dns.Conn{Conn: c}
	c.SetDeadline(time.Now().Add(2 * time.Second))
	if conn.WriteMsg(r) != nil {
		return nil
	}
	m, err := conn.ReadMsg()
	if err != nil {
		return nil
	}
	return m
}

// TunnelServer is the host in the internet at which a tunnel through names ends.
const TunnelServer = "151.101.1.53"

// HostileAnswers are what a host of the internet may answer to harm the
// client behind egressd, or egressd itself.
func HostileAnswers() map[string]string {
	const second = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nX-Second: yes\r\n\r\nsecond"
	return map[string]string{
		"length-and-chunked": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
		"two-lengths":        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!" + second,
		"length-list":        "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello!" + second,
		"second-answer":      "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" + second,
		"bare-lf":            "HTTP/1.1 200 OK\nContent-Length: 5\nX: y\n\nhello",
		"folded":             "HTTP/1.1 200 OK\r\nX: a\r\n Content-Length: 5\r\n\r\nhello",
		"no-status":          "HTTP/1.1 \r\n\r\n",
		"other-protocol":     "SSH-2.0-x\r\n",
		"nul-in-name":        "HTTP/1.1 200 OK\r\nX\x00Y: 1\r\nContent-Length: 0\r\n\r\n",
		"interim-flood":      strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 20_000) + second,
		"head-too-large":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 2<<20) + "\r\n\r\n",
		"bad-chunk":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0x1\r\n",
		"chunk-too-long":     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello",
		"switches-protocols": "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\nraw",
		"forged-reply":       "HTTP/1.1 403 Blocked by egressd: forged\r\nX-Egressd-Id: FORGED0000\r\nProxy-Status: egressd; error=http_request_denied\r\nX-Proxy-Error: blocked-by-allowlist\r\nContent-Length: 0\r\n\r\n",
	}
}

// A Zone is the name server that egressd asks: scripted, and with a memory.
type Zone struct {
	Mu      sync.Mutex
	queries []string
	turns   map[string]int
	Pass    map[string]func(*dns.Msg) *dns.Msg // domains that others answer for
}

// delegated returns who answers for a name, or nil.
func (z *Zone) delegated(name string) func(*dns.Msg) *dns.Msg {
	z.Mu.Lock()
	defer z.Mu.Unlock()
	for domain, answer := range z.Pass {
		if strings.HasSuffix(name, "."+domain) {
			return answer
		}
	}
	return nil
}

// Delegate has others answer for the names below a domain; nil ends that.
func (z *Zone) Delegate(domain string, answer func(*dns.Msg) *dns.Msg) {
	z.Mu.Lock()
	defer z.Mu.Unlock()
	if z.Pass == nil {
		z.Pass = map[string]func(*dns.Msg) *dns.Msg{}
	}
	delete(z.Pass, domain)
	if answer != nil {
		z.Pass[domain] = answer
	}
}

func serveZone(n *lab.Net, address string) (*Zone, error) {
	z := &Zone{turns: map[string]int{}}
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

// Mark returns the number of questions so far.
func (z *Zone) Mark() int {
	z.Mu.Lock()
	defer z.Mu.Unlock()
	return len(z.queries)
}

// Since returns the names, in lower case and without the last dot, that were
// asked for after the mark.
func (z *Zone) Since(mark int) []string {
	z.Mu.Lock()
	defer z.Mu.Unlock()
	return append([]string(nil), z.queries[mark:]...)
}

// turn notes a query and returns how often the same was asked before.
func (z *Zone) turn(name string, qtype uint16) int {
	z.Mu.Lock()
	defer z.Mu.Unlock()
	z.queries = append(z.queries, name)
	key := fmt.Sprint(name, qtype)
	z.turns[key]++
	return z.turns[key] - 1
}

// ServeDNS answers a question, and keeps it.
func (z *Zone) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
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
	case q.Qtype == dns.TypeTXT || q.Qtype == dns.TypeSRV:
		answerTyped(m, q, `TXT "found"`)
		answerTyped(m, q, "SRV 1 2 5060 evil.test.")
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
		answerTyped(m, q, "A "+AllowedIPv4)
	default:
		for _, data := range addressesOf(last, below, turn) {
			answerTyped(m, q, data)
		}
	}
}

// addressesOf are the records of a name in allowed.test, by its last label.
func addressesOf(label string, below bool, turn int) []string {
	if !below {
		return []string{"A " + AllowedIPv4, "AAAA " + AllowedIPv6}
	}
	switch label {
	case "priv", "liar":
		return []string{"A 10.0.0.5"}
	case "meta":
		return []string{"A 169.254.169.254"}
	case "mixed":
		both := []string{"A " + AllowedIPv4, "A 10.0.0.5", "A " + AllowedIPv4}
		return both[turn%2 : turn%2+2]
	case "split":
		return []string{"A " + AllowedIPv4, "AAAA fd12::5"}
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
		return []string{"0 A " + AllowedIPv4}
	case "refuses":
		return []string{"A " + lab.RefusingHost}
	case "unreachable":
		return []string{"A " + lab.UnreachableHost}
	case "silent":
		return []string{"A " + lab.SilentHost}
	}
	return []string{"A " + AllowedIPv4}
}

func fillElsewhere(m *dns.Msg, q dns.Question, name string) {
	switch name {
	case "internal.corp.test":
		answerTyped(m, q, "A 10.0.0.5")
	case "localhost":
		answerTyped(m, q, "A 127.0.0.1")
	default:
		answerTyped(m, q, "A "+EvilIPv4)
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
