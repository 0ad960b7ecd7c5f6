//go:build linux

package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A looker is a proxy that answers every tunnel itself, with a leaf of its own
// for the host of CONNECT or the server name.
type looker struct {
	ca     *authority
	answer string
	ends   bool // the connection, after one answer

	conns atomic.Int64

	mu   sync.Mutex
	seen []string // guarded by mu: CONNECT's host, server name, Host, of each request
}

// newLooker returns a job for inspected scenarios through a looker.
func newLooker(t *testing.T, answer string, ends bool) (*looker, *job) {
	t.Helper()
	ca, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	l := &looker{ca: ca, answer: answer, ends: ends}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go l.serve(c)
		}
	}()
	j := &job{Host: originName, Proxy: listener.Addr().(*net.TCPAddr).Port, Roots: ca.pem(), Serial: 7, Workers: 2, Length: briefly}
	j.Origins.Inspected = 4443
	return l, j
}

func (l *looker) serve(c net.Conn) {
	defer c.Close()
	l.conns.Add(1)
	connect, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	t := tls.Server(c, &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		leaf, err := l.ca.issue(hello.ServerName)
		return &leaf, err
	}})
	for in := bufio.NewReader(t); ; {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		l.note(fmt.Sprint(connect.Host, " ", t.ConnectionState().ServerName, " ", r.Host, " ", r.Close))
		io.WriteString(t, l.answer)
		if l.ends {
			return
		}
	}
}

func (l *looker) note(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, s)
}

func (l *looker) requests() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

func inspectedStarters() map[string]starter {
	return map[string]starter{
		"new":   startInspectedNew,
		"kept":  startInspectedKept,
		"names": startInspectedNames(new(atomic.Int64)),
	}
}

// once does one operation and closes.
func once(t *testing.T, j *job, start starter) error {
	t.Helper()
	o, err := start(j, &tally{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	return o.do()
}

func TestCONNECTServerNameAndHostNameTheSameHost(t *testing.T) {
	for kind, want := range map[string]string{
		"new":   "bench.test:4443 bench.test bench.test:4443 true",
		"kept":  "bench.test:4443 bench.test bench.test:4443 false",
		"names": "n7-1.bench.test:4443 n7-1.bench.test n7-1.bench.test:4443 true",
	} {
		l, j := newLooker(t, page, false)
		err := once(t, j, inspectedStarters()[kind])
		if seen := l.requests(); err != nil || !slices.Equal(seen, []string{want}) {
			t.Errorf("%s: the proxy saw %q, want %q; %v", kind, seen, want, err)
		}
	}
}

func TestAProxyThatResolvesNothingIsAskedForTheAddress(t *testing.T) {
	for kind, want := range map[string]string{
		"new":   "127.0.0.1:4443 bench.test bench.test:4443 true",
		"names": "127.0.0.1:4443 n7-1.bench.test n7-1.bench.test:4443 true",
	} {
		l, j := newLooker(t, page, false)
		j.Host = "127.0.0.1"
		err := once(t, j, inspectedStarters()[kind])
		if seen := l.requests(); err != nil || !slices.Equal(seen, []string{want}) {
			t.Errorf("%s: the proxy saw %q, want %q; %v", kind, seen, want, err)
		}
	}
}

func TestNoNameIsAskedForTwice(t *testing.T) {
	l, j := newLooker(t, page, false)
	r := j.work(startInspectedNames(new(atomic.Int64)))
	seen := l.requests()
	if r.Errors != 0 || r.Ops == 0 || int(r.Ops) != len(seen) {
		t.Fatalf("%+v, %d requests seen", r, len(seen))
	}
	slices.Sort(seen)
	if names := slices.Compact(slices.Clone(seen)); len(names) != len(seen) {
		t.Errorf("%d names in %d requests", len(names), len(seen))
	}
}

func TestNoJobAsksForTheNamesOfAnother(t *testing.T) {
	b := newTestBench(t)
	l, j := newLooker(t, page, false)
	j.Kind, j.Length = inspectedNamesJob, 20*briefly // a busy machine needs longer for one handshake
	for range 2 {
		if r, err := b.order(*j); err != nil || r.Errors != 0 || r.Ops == 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	seen := l.requests()
	slices.Sort(seen)
	if names := slices.Compact(slices.Clone(seen)); len(names) != len(seen) {
		t.Errorf("%d names in %d requests", len(names), len(seen))
	}
}

func TestARequestInsideIsCountedOnlyWithTheRightAnswer(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"of another page":    {strings.Replace(page, "abc", "xyz", 1), "wrong answer"},
		"a refusal":          {"HTTP/1.1 403 Blocked\r\nContent-Length: 1\r\n\r\nx", "status 403"},
		"without its length": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", errFraming.Error()},
		"cut short":          {page[:60], errEnded.Error()},
	} {
		for kind, start := range inspectedStarters() {
			_, j := newLooker(t, c.answer, true)
			if err := once(t, j, start); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v, want %q", kind, name, err, c.want)
			}
		}
	}
}

func TestOnlyTheCertificateOfTheProxyIsTrusted(t *testing.T) {
	stranger, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	for kind, start := range inspectedStarters() {
		_, j := newLooker(t, page, false)
		j.Roots = stranger.pem()
		if err := once(t, j, start); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("%s: %v", kind, err)
		}
		j.Roots = nil
		if _, err := start(j, &tally{}); err == nil {
			t.Errorf("%s begins without a certificate", kind)
		}
	}
}

func TestAKeptConnectionIsKept(t *testing.T) {
	l, j := newLooker(t, page, false)
	var counted tally
	o, err := startInspectedKept(j, &counted)
	if err != nil {
		t.Fatal(err)
	}
	first, second := o.do(), o.do()
	o.close()
	if first != nil || second != nil || counted.reopened != 0 || l.conns.Load() != 1 {
		t.Errorf("%v, then %v; %d reopened, %d connections", first, second, counted.reopened, l.conns.Load())
	}
}

func TestAKeptConnectionThatEndsIsOpenedAgain(t *testing.T) {
	_, j := newLooker(t, strings.Replace(page, "\r\n", "\r\nConnection: close\r\n", 1), true)
	r := j.work(startInspectedKept)
	if r.Errors != 0 || r.Ops == 0 || r.Reopened != r.Ops {
		t.Errorf("%+v", r)
	}
}

func TestAKeptConnectionThatFailsIsOpenedAgain(t *testing.T) {
	l, j := newLooker(t, page, true)
	var counted tally
	o, err := startInspectedKept(j, &counted)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	for i, failed := range []bool{false, true, false} {
		if err := o.do(); (err != nil) != failed {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if got := l.conns.Load(); got != 2 {
		t.Errorf("%d connections", got)
	}
}
