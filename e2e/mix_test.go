package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
	"github.com/miekg/dns"
)

// mixVariable says how many requests TestEveryRequestHasOneDecision makes, instead of a
// few hundred.
const mixVariable = "EGRESSD_E2E_MIX"

// The ways in of the mix, each with its way to name what is asked for, so that a record
// can be told from all others.
var mixWays = []struct {
	name  string
	ask   func(m *mix, key string, deny bool) (allowed bool, err error)
	keyOf func(r *record.Record) string // of a record that decides, "" for others
}{
	{"connect", (*mix).connect, destinationOf("connect", record.KindOpen)},
	{"socks5", (*mix).socks, destinationOf("socks5", record.KindOpen)},
	{"http", (*mix).clear, destinationOf("http", record.KindRequest)},
	{"dns", (*mix).question, func(r *record.Record) string {
		if r.Via != "dns" || r.Kind != record.KindDNS || r.DNS == nil {
			return ""
		}
		return firstLabel(r.DNS.Name)
	}},
	{"h2", (*mix).inside, func(r *record.Record) string {
		if r.Kind != record.KindRequest || r.HTTP == nil || r.Dst == nil || r.Dst.Host != "allowed.test" {
			return ""
		}
		return strings.TrimPrefix(r.HTTP.Path, "/")
	}},
}

func destinationOf(via string, kind record.Kind) func(*record.Record) string {
	return func(r *record.Record) string {
		if r.Via != via || r.Kind != kind || r.Dst == nil || r.Dst.Host == "allowed.test" {
			return ""
		}
		return firstLabel(r.Dst.Host)
	}
}

func firstLabel(name string) string {
	label, _, _ := strings.Cut(name, ".")
	return label
}

// A mix is what one worker asks with.
type mix struct {
	*daemon
	h2    *http.Client
	names net.Conn
	plain struct {
		net.Conn
		r *bufio.Reader
	}
}

// TestEveryRequestHasOneDecision asks for many things through every listener at once, each
// thing once, half of them denied. Each has one record that decides, and that is what its
// client was told.
func TestEveryRequestHasOneDecision(t *testing.T) {
	covers(t, "AU-02")
	total := 1000
	if text := os.Getenv(mixVariable); text != "" {
		var err error
		if total, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	d := start(t, withNames("version: 1\nallow:\n  - \"*.allowed.test\"\n  - {host: allowed.test, methods: [GET], paths: [\"/**\"]}\n"+
		"tls: {ca_dir: ca, extra_roots: [lab.pem]}\nlimits: {dns_queries_per_second: 1048576, dns_name_bytes: 1073741824}\n"))
	var next atomic.Int64
	told := make([]bool, total)
	var workers sync.WaitGroup
	for range 8 {
		m := &mix{daemon: d, h2: d.h2Client(t)}
		workers.Go(func() {
			defer m.close()
			for i := int(next.Add(1)) - 1; i < total; i = int(next.Add(1)) - 1 {
				way, deny := mixWays[i%len(mixWays)], i/len(mixWays)%2 == 1
				allowed, err := way.ask(m, "m"+strconv.Itoa(i), deny)
				if err != nil || allowed == deny {
					t.Errorf("%s %d: allowed %v, to be denied %v: %v", way.name, i, allowed, deny, err)
				}
				told[i] = allowed
			}
		})
	}
	workers.Wait()
	d.expectOneEach(t, told)
	for _, p := range d.log.flawed() {
		t.Errorf("the audit log: %s", p)
	}
}

// expectOneEach compares what was told with what is recorded.
func (d *daemon) expectOneEach(t *testing.T, told []bool) {
	t.Helper()
	records, err := d.log.since(0)
	if err != nil {
		t.Fatal(err)
	}
	decisions := make([]int64, len(told))
	flows := map[string]bool{}
	for i := range records {
		r := &records[i]
		for k, way := range mixWays {
			n, err := strconv.Atoi(strings.TrimPrefix(way.keyOf(r), "m"))
			if err != nil || n%len(mixWays) != k {
				continue
			}
			decisions[n] += r.Times()
			if (r.Decision.Action == "allow") != told[n] {
				t.Errorf("%s %d: the client was told %v, and recorded is %+v", way.name, n, told[n], r.Decision)
			}
			if flows[r.Flow] {
				t.Errorf("%s %d: another decision has the flow %s", way.name, n, r.Flow)
			}
			flows[r.Flow] = true
		}
	}
	for n, times := range decisions {
		if times != 1 {
			t.Errorf("%s %d has %d decisions", mixWays[n%len(mixWays)].name, n, times)
		}
	}
}

func (m *mix) close() {
	m.h2.CloseIdleConnections()
	for _, c := range []net.Conn{m.names, m.plain.Conn} {
		if c != nil {
			c.Close()
		}
	}
}

func mixHost(key string, deny bool) string {
	if deny {
		return key + ".evil.test"
	}
	return key + ".allowed.test"
}

// abandon ends a connection with a reset, so that its port is free at once.
func abandon(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}

func (m *mix) connect(key string, deny bool) (bool, error) {
	c, status, err := m.open(mixHost(key, deny)+":443", "")
	if err != nil {
		return false, err
	}
	abandon(c.Conn)
	if status != http.StatusOK && status != http.StatusForbidden {
		return false, fmt.Errorf("status %d", status)
	}
	return status == http.StatusOK, nil
}

func (m *mix) socks(key string, deny bool) (bool, error) {
	c, err := m.dial()
	if err != nil {
		return false, err
	}
	defer abandon(c)
	c.SetDeadline(time.Now().Add(patience))
	request, _ := socksRequest(waySOCKS, mixHost(key, deny)+":443")
	if _, err := c.Write(append([]byte{5, 1, 0}, request...)); err != nil {
		return false, err
	}
	var answer [12]byte
	_, err = io.ReadFull(c, answer[:])
	return answer[3] == 0, err
}

// plainRequest asks in one connection as long as that is kept.
func (m *mix) plainRequest(host string) (status int, err error) {
	if m.plain.Conn == nil {
		if m.plain.Conn, err = m.dial(); err != nil {
			return 0, err
		}
		m.plain.r = bufio.NewReader(m.plain.Conn)
	}
	m.plain.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(m.plain, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", host, host); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(m.plain.r, nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	if response.Close || response.StatusCode != http.StatusOK {
		abandon(m.plain.Conn)
		m.plain.Conn = nil
	}
	return response.StatusCode, err
}

func (m *mix) clear(key string, deny bool) (bool, error) {
	status, err := m.plainRequest(mixHost(key, deny))
	if status != http.StatusOK && status != http.StatusForbidden && err == nil {
		err = fmt.Errorf("status %d", status)
	}
	return status == http.StatusOK, err
}

func (m *mix) question(key string, deny bool) (bool, error) {
	if m.names == nil {
		var err error
		if m.names, err = m.world.Sandbox.Dial("udp", net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(namesPort))); err != nil {
			return false, err
		}
	}
	q := new(dns.Msg).SetQuestion(dns.Fqdn(mixHost(key, deny)), dns.TypeA)
	wire, err := q.Pack()
	if err != nil {
		return false, err
	}
	m.names.SetDeadline(time.Now().Add(patience))
	if _, err := m.names.Write(wire); err != nil {
		return false, err
	}
	b := make([]byte, 512)
	n, err := m.names.Read(b)
	if err != nil {
		return false, err
	}
	answer := new(dns.Msg)
	if err := answer.Unpack(b[:n]); err != nil || answer.Id != q.Id {
		return false, fmt.Errorf("answered %x: %v", b[:n], err)
	}
	return len(answer.Answer) > 0, nil
}

// inside makes a request of HTTP/2 in an inspected tunnel, which is kept.
func (m *mix) inside(key string, deny bool) (bool, error) {
	method := http.MethodGet
	if deny {
		method = http.MethodDelete
	}
	request, err := http.NewRequest(method, "https://allowed.test/"+key, nil)
	if err != nil {
		return false, err
	}
	response, err := m.h2.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return false, err
	}
	if response.ProtoMajor != 2 || response.StatusCode != http.StatusOK && response.StatusCode != http.StatusForbidden {
		return false, fmt.Errorf("%s %s", response.Proto, response.Status)
	}
	return response.StatusCode == http.StatusOK, nil
}
