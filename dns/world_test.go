package dns

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// a filterWorld is a filtering server with all that is behind it: a gate, its log, a forwarder, and
// a name server that remembers what it was asked.
type filterWorld struct {
	*Server
	gate     *egress.Gate
	log      *audit.Log
	dir      string
	up       *upstream
	udp, tcp string
}

// A setting is what tests of a filtering server differ in.
type setting struct {
	policy    string
	sandboxes []sandbox.Entry
	limits    Limits
	questions names.Limits
	at        string // the address that it listens on; 127.0.0.1 by default
	script    func(*asked)
	patience  time.Duration // with the name server; that of forwarder by default
	types     []string      // that are asked for beside addresses
}

const onlyAllowed = "version: 1\nallow: [allowed.test, '*.allowed.test']\n"

// scripted answers with what a name in allowed.test is called.
func scripted(q *asked) {
	name := q.msg.Question[0].Name
	label, _, _ := strings.Cut(strings.ToLower(name), ".")
	rr := func(format string) string { return strings.ReplaceAll(format, "@", name) }
	switch label {
	case "priv":
		q.answer(rr("@ 60 A 10.0.0.5"))
	case "mixed":
		q.answer(rr("@ 60 A 93.184.216.34"), rr("@ 60 A 10.0.0.5"))
	case "split":
		q.answer(rr("@ 60 A 93.184.216.34"), rr("@ 60 AAAA fd12::5"))
	case "cname":
		q.answer(rr("@ 60 CNAME internal.corp."), "internal.corp. 60 A 93.184.216.34")
	case "evil":
		q.answer(rr("@ 60 CNAME denied.test."), "denied.test. 60 A 93.184.216.34")
	case "good":
		q.answer(rr("@ 60 CNAME www.allowed.test."), "www.allowed.test. 60 A 93.184.216.34")
	case "forever":
		q.answer(rr("@ 2147483647 A 93.184.216.34"))
	case "moment":
		q.answer(rr("@ 0 A 93.184.216.34"))
	case "nx":
		q.send(q.reply(dns.RcodeNameError, "ns:allowed.test. 60 SOA ns.allowed.test. root.allowed.test. 1 1 1 1 60"))
	case "nodata":
		q.send(q.reply(dns.RcodeSuccess, "ns:allowed.test. 60 SOA ns.allowed.test. root.allowed.test. 1 1 1 1 60"))
	case "broken":
		q.send(q.reply(dns.RcodeServerFailure))
	case "many":
		var all []string
		for i := range 40 {
			all = append(all, rr(fmt.Sprintf("@ 60 AAAA 2606:2800:220:1::%x", i+1)))
		}
		q.answer(all...)
	default:
		q.answer(rr("@ 60 A 93.184.216.34"), rr("@ 60 AAAA 2606:2800:220:1::1"), "extra:more.test. 60 A 1.2.3.4")
	}
}

func newFilterWorld(t testing.TB, s setting) *filterWorld {
	t.Helper()
	if s.policy == "" {
		s.policy = onlyAllowed
	}
	if s.script == nil {
		s.script = scripted
	}
	d := &filterWorld{dir: filepath.Join(t.TempDir(), "audit"), up: startUpstream(t, s.script)}
	var err error
	if d.log, err = audit.Create(d.dir, audit.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.log.Close() })
	who, err := sandbox.NewDirectory(s.sandboxes)
	if err != nil {
		t.Fatal(err)
	}
	f := forwarder(d.up)
	f.RecordTypes = s.types
	if s.patience > 0 {
		f.Timeout, f.TotalTimeout = s.patience, s.patience
	}
	d.gate = egress.New(egress.Config{Log: d.log, Sandboxes: who, Resolver: f, Life: f.Life, NameLimits: s.questions})
	d.enforce(t, s.policy)
	d.Server = &Server{Gate: d.gate, Limits: s.limits}
	d.listen(t, s.at)
	return d
}

func (d *filterWorld) enforce(t testing.TB, text string) {
	t.Helper()
	parsed, err := file.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.gate.SetPolicy(t.Context(), p, "test"); err != nil {
		t.Fatal(err)
	}
}

func (d *filterWorld) listen(t testing.TB, at string) {
	t.Helper()
	if at == "" {
		at = "127.0.0.1"
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(at)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", at+":0")
	if err != nil {
		t.Fatal(err)
	}
	port := func(a net.Addr) string {
		_, port, _ := net.SplitHostPort(a.String())
		return port
	}
	d.udp, d.tcp = "127.0.0.1:"+port(c.LocalAddr()), "127.0.0.1:"+port(l.Addr())
	ended := make(chan error, 2)
	go func() { ended <- d.ServeUDP(c, "test") }()
	go func() { ended <- d.ServeTCP(l, "test") }()
	t.Cleanup(func() {
		d.Shutdown()
		for range 2 {
			if err := <-ended; err != ErrServerClosed {
				t.Errorf("ended with %v", err)
			}
		}
	})
}

func (d *filterWorld) ask(t testing.TB, network string, q *dns.Msg) *dns.Msg {
	t.Helper()
	to := d.udp
	if network == "tcp" {
		to = d.tcp
	}
	c := dns.Client{Net: network, Timeout: 30 * time.Second}
	m, _, err := c.Exchange(q, to)
	if err != nil {
		t.Fatalf("%v over %s: %v", q.Question, network, err)
	}
	return m
}

// records returns the records of questions and of what was none.
func (d *filterWorld) records(t testing.TB) (found []record.Record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		var r record.Record
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Kind == record.KindDNS || r.Kind == record.KindRefused {
			found = append(found, r)
		}
	}
	return found
}

// summary puts a response into a line.
func summary(m *dns.Msg) string {
	var parts []string
	for _, rr := range m.Answer {
		for _, whole := range []uint32{60, 300} { // some time may have gone by
			if ttl := rr.Header().Ttl; whole-20 < ttl && ttl <= whole {
				rr.Header().Ttl = whole
			}
		}
		parts = append(parts, strings.Join(strings.Fields(rr.String()), " "))
	}
	code, _ := extended(m)
	if code != 0 {
		parts = append(parts, fmt.Sprintf("EDE %d", code))
	}
	return strings.TrimSpace(dns.RcodeToString[m.Rcode] + " " + strings.Join(parts, ", "))
}
