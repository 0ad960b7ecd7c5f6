package waysin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// leakArgument has this test binary be a proxy that misbehaves in one way.
const leakArgument = "as-a-leaky-proxy"

// TestOracleSeesLeaks runs proxies that refuse a request in every respect but
// one, and expects the oracle to find that one.
func TestOracleSeesLeaks(t *testing.T) {
	deny := &world.Vector{ID: "oracle", Says: "a refusal", Policy: "P0", Expect: world.Expectation{Deny: []policy.Class{policy.DefaultDeny}}}
	allow := &world.Vector{ID: "oracle", Says: "an allowance", Policy: "P0", Expect: world.Expectation{Allow: []string{world.AllowedIPv4}}}
	cut := &world.Vector{ID: "oracle", Says: "a cut", Policy: "P0", Hello: "base-evil.bin", Expect: world.Expectation{Cut: []policy.Class{policy.NameMismatch}}}
	for _, row := range []struct {
		kind string
		v    *world.Vector
		to   string
		sees []string // each in one of the problems; none: there is none
	}{
		{"honest", deny, "evil.test:443", nil},
		{"honest", allow, "a.allowed.test:443", nil},
		{"honest", cut, "a.allowed.test:443", nil},
		{"asks-name-server", deny, "evil.test:443", []string{"a packet was sent: udp", `the name server was asked for ["evil.test"]`}},
		{"asks-another-server", deny, "evil.test:443", []string{"a packet was sent: udp"}},
		{"dials-and-refuses", deny, "evil.test:443", []string{"a packet was sent: tcp", "a connection reached " + world.EvilIPv4}},
		{"dials-loopback", deny, "evil.test:443", []string{"a packet was sent: tcp 127.0.0.1"}},
		{"other-class", deny, "evil.test:443", []string{`the record's class is "rule-deny"`}},
		{"other-id", deny, "evil.test:443", []string{"the record's flow is"}},
		{"other-host", deny, "evil.test:443", []string{"dst.host is"}},
		{"other-sandbox", deny, "evil.test:443", []string{"the record's sandbox is"}},
		{"other-policy", deny, "evil.test:443", []string{"the record's policy is"}},
		{"no-record", deny, "evil.test:443", []string{"0 decisions are recorded"}},
		{"two-records", deny, "evil.test:443", []string{"2 decisions are recorded"}},
		{"stays-open", deny, "evil.test:443", []string{"the connection stayed open", "egressd still holds"}},
		{"slow", deny, "evil.test:443", []string{"the answer took"}},
		{"dies", deny, "evil.test:443", []string{"egressd is no longer running"}},
		{"allows", deny, "evil.test:443", []string{"want one of"}},
		{"only-accepts", allow, "a.allowed.test:443", []string{"no data came"}},
		{"dials-elsewhere", allow, "a.allowed.test:443", []string{"a packet was sent: tcp"}},
		{"records-elsewhere", allow, "a.allowed.test:443", []string{`the records say "10.0.0.5" was dialled`}},
		{"lets-hello-pass", cut, "a.allowed.test:443", []string{"received"}},
	} {
		t.Run(row.kind+" "+row.v.Says, func(t *testing.T) {
			d := world.NewDaemon(t, world.PolicyText(t, "P0"))
			d.Foreign = true
			cmd := exec.Command("/proc/self/exe", leakArgument, row.kind)
			cmd.Args[0] = os.Args[0]
			d.Run(t, cmd)
			t.Cleanup(d.Kill)
			s := d.Observe(t, row.v, world.WayConnect, row.to)
			if row.kind == "dies" { // which takes it a moment
				world.Eventually(world.Settling, func() bool { return !d.Alive() })
				s.Alive = d.Alive()
			}
			s.Took *= 2 // so that what is slow takes half as long
			problems := world.Judge(&row.v.Expect, s)
			if found := strings.Join(problems, "\n"); !containsAll(found, row.sees) || row.sees == nil && found != "" {
				t.Errorf("the oracle found %q, want %q", problems, row.sees)
			}
		})
	}
}

func containsAll(s string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(s, part) })
}

// A leaky is a proxy for CONNECT under P0 that misbehaves in the way that kind
// names. It runs as a process of its own, where egressd would.
type leaky struct {
	kind string
	log  *os.File
	seq  int64
	kept []net.Conn
}

const leakyDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func leakyProxy(args []string) int {
	l := &leaky{kind: args[0]}
	if err := l.serve(); err != nil {
		fmt.Fprintf(os.Stderr, "leaky proxy: %v\n", err)
		return 1
	}
	return 0
}

func (l *leaky) serve() (err error) {
	if err := os.MkdirAll("audit", 0o700); err != nil {
		return err
	}
	if l.log, err = os.Create(filepath.Join("audit", "00000001.log")); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(lab.GatewayIPv4, fmt.Sprint(world.ProxyPort)))
	if err != nil {
		return err
	}
	l.record(record.Record{Kind: record.KindPolicy, Decision: &record.Decision{Policy: leakyDigest}})
	fmt.Fprintln(os.Stderr, "egressd: listening on "+listener.Addr().String()+" (proxy)")
	fmt.Fprintln(os.Stderr, "egressd: listening on nothing (proxy)")
	for {
		c, err := listener.Accept()
		if err != nil {
			return err
		}
		l.handle(c)
	}
}

func (l *leaky) record(r record.Record) {
	r.V, r.Seq, r.Time = 1, l.seq, time.Now().UTC()
	l.seq++
	line, _ := json.Marshal(r)
	l.log.Write(append(line, '\n'))
}

func (l *leaky) handle(c net.Conn) {
	if l.kind != "stays-open" {
		defer c.Close()
	}
	l.kept = append(l.kept, c)
	in := bufio.NewReader(c)
	request, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	r := record.Record{
		Kind: record.KindOpen, Flow: "0123456789", Sandbox: "default", Via: "connect", Src: c.RemoteAddr().String(),
		Dst:      &record.Destination{Host: request.URL.Hostname(), Port: 443},
		Decision: &record.Decision{Action: "allow", Policy: leakyDigest},
	}
	if strings.HasSuffix(request.URL.Hostname(), "allowed.test") || l.kind == "allows" {
		l.tunnel(c, in, r)
		return
	}
	l.refuse(c, r)
}

func (l *leaky) refuse(c net.Conn, r record.Record) {
	r.Decision.Action, r.Decision.Class = "deny", "default-deny"
	l.misbehave(&r)
	switch l.kind {
	case "no-record":
	case "two-records":
		l.record(r)
		l.record(r)
	default:
		l.record(r)
	}
	const body = `{"error":"egress_denied","class":"default-deny","id":"0123456789","message":"no"}`
	fmt.Fprintf(c, "HTTP/1.1 403 Blocked by egressd: evil.test:443 default-deny (0123456789)\r\nContent-Type: application/problem+json\r\n"+
		"Proxy-Status: egressd; error=http_request_denied; details=\"default-deny; 0123456789\"\r\nX-Proxy-Error: blocked-by-allowlist\r\n"+
		"X-Egressd-Id: 0123456789\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if l.kind == "dies" {
		os.Exit(3)
	}
}

// misbehave does what shows before the answer.
func (l *leaky) misbehave(r *record.Record) {
	switch l.kind {
	case "asks-name-server":
		l.say("udp", world.Resolver, "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04evil\x04test\x00\x00\x01\x00\x01")
	case "asks-another-server":
		l.say("udp", "1.1.1.1:53", "query")
	case "dials-and-refuses":
		l.say("tcp", world.EvilIPv4+":443", "")
	case "dials-loopback":
		l.say("tcp", "127.0.0.1:8080", "")
	case "other-class":
		r.Decision.Class = "rule-deny"
	case "other-id":
		r.Flow = "9999999999"
	case "other-host":
		r.Dst.Host = "elsewhere.test"
	case "other-sandbox":
		r.Sandbox = "somebody"
	case "other-policy":
		r.Decision.Policy = "sha256:1"
	case "slow":
		time.Sleep(world.Promptly/2 + 100*time.Millisecond)
	}
}

func (l *leaky) say(network, address, text string) {
	c, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return
	}
	defer c.Close()
	c.Write([]byte(text))
	if network == "udp" {
		c.SetDeadline(time.Now().Add(time.Second))
		c.Read(make([]byte, 512)) // so that the query is answered before this is
	}
}

// tunnel carries one hello and what is answered, unless the hello is for
// evil.test.
func (l *leaky) tunnel(c net.Conn, in *bufio.Reader, r record.Record) {
	r.Dst.Addr = world.AllowedIPv4
	l.record(r)
	fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
	r.Kind, r.Outcome = record.KindClose, "closed"
	defer func() { l.record(r) }()
	if l.kind == "only-accepts" {
		return
	}
	to := world.AllowedIPv4
	switch l.kind {
	case "dials-elsewhere":
		to, r.Dst.Addr = world.EvilIPv4, world.EvilIPv4
	case "records-elsewhere":
		r.Dst.Addr = "10.0.0.5"
	}
	up, err := net.Dial("tcp", net.JoinHostPort(to, "443"))
	if err != nil {
		return
	}
	defer up.Close()
	first := make([]byte, 4096)
	n, err := in.Read(first)
	if err != nil {
		return
	}
	if strings.Contains(string(first[:n]), "evil.test") {
		r.Decision = &record.Decision{Action: "deny", Class: "name-mismatch", Policy: leakyDigest}
		if l.kind == "lets-hello-pass" {
			up.Write(first[:n])
			time.Sleep(50 * time.Millisecond)
		}
		return
	}
	up.Write(first[:n])
	go func() {
		in.WriteTo(up)
		up.(*net.TCPConn).CloseWrite()
	}()
	bufio.NewReader(up).WriteTo(c)
}
