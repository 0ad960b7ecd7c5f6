package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
)

// A judge allows requests to one port of loopback, and keeps what it was asked about. It denies paths below /denied.
type judge struct {
	port  uint16
	says  policy.Verdict // about what it does not deny
	mu    sync.Mutex
	asked map[*policy.HTTPRequest]policy.Request // by a pointer, since a request is decided more than once
}

func (j *judge) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	to := &r.Destination
	switch {
	case to.Port != j.port, to.Addr.IsValid() && to.Addr != loopback, r.HTTP != nil && strings.HasPrefix(r.HTTP.Path, "/denied"):
		return policy.Decision{Class: policy.RuleDeny, Rule: "fuzz"}, nil
	case r.HTTP != nil:
		j.mu.Lock()
		defer j.mu.Unlock()
		if _, again := j.asked[r.HTTP]; !again { // for an address of the name, too
			j.asked[r.HTTP] = *r
		}
	}
	return policy.Decision{Verdict: j.says, Rule: "fuzz"}, nil
}

// allowed returns what was allowed since the last call. A request in a tunnel that names another server than the
// tunnel's is refused behind the judge.
func (j *judge) allowed() (all []policy.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.asked {
		if r.HTTP.Authority == "" || r.HTTP.Authority == r.Destination.String() {
			all = append(all, r)
		}
	}
	j.asked = map[*policy.HTTPRequest]policy.Request{}
	return all
}

// An arrival is the head of a request as the bytes have it that reached the origin.
type arrival struct {
	method, target, host string
	header               map[string][]string // by names in lower case, without Host
	length               int64               // of the body; -1: in chunks, or until the end of the stream
	problem              string              // why a reader who repairs nothing would refuse the bytes
}

// is returns how an arrival differs from what was decided, or "". The default port is the one that no Host names.
func (a *arrival) is(r *policy.Request, defaultPort uint16) (differs string) {
	target := r.HTTP.Path
	if r.HTTP.Query != "" {
		target += "?" + r.HTTP.Query
	}
	switch host := exchange.HostField(r.Destination, defaultPort); {
	case a.problem != "":
		return a.problem
	case a.method != r.HTTP.Method:
		return fmt.Sprintf("the method %q was judged, %q arrived", r.HTTP.Method, a.method)
	case a.target != target && a.target != target+"?":
		return fmt.Sprintf("the target %q was judged, %q arrived", target, a.target)
	case a.host != host:
		return fmt.Sprintf("the host %q was judged, %q arrived", host, a.host)
	case a.length != r.HTTP.BodySize:
		return fmt.Sprintf("a body of %d bytes was judged, one of %d arrived", r.HTTP.BodySize, a.length)
	}
	for name := range maps.Keys(r.HTTP.Header) {
		if judged, arrived := r.HTTP.Header[name], a.header[name]; !slices.Equal(judged, arrived) {
			return fmt.Sprintf("of %s, %q was judged, %q arrived", name, judged, arrived)
		}
	}
	for name, values := range a.header {
		if _, judged := r.HTTP.Header[name]; !judged {
			return fmt.Sprintf("%s: %q arrived, and nobody judged it", name, values)
		}
	}
	return ""
}

// compare returns what is wrong with arrivals that are none of the requests that were decided, each of which may arrive
// once, and the requests that have not arrived.
func compare(decided []policy.Request, arrived []arrival, defaultPort uint16) (wrong []string, missing []policy.Request) {
	for _, a := range arrived {
		why := "nothing was judged"
		same := slices.IndexFunc(decided, func(r policy.Request) bool {
			differs := a.is(&r, defaultPort)
			if differs != "" {
				why = differs
			}
			return differs == ""
		})
		if same < 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %+v", why, a))
			continue
		}
		decided = slices.Delete(decided, same, same+1)
	}
	return wrong, decided
}

// A recorder is an origin that notes each request that arrives, and answers it.
type recorder struct {
	net.Listener

	mu      sync.Mutex // guards what follows
	arrived []arrival
	latest  string // client of the newest connection
	open    int    // connections
}

// newRecorder returns a recorder on loopback, whose connections serve has. It has to be closed.
func newRecorder(t testing.TB, serve func(*recorder, net.Conn)) *recorder {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := &recorder{Listener: l}
	var running sync.WaitGroup
	t.Cleanup(func() { l.Close(); running.Wait() })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			o.count(1, c.RemoteAddr().String())
			running.Go(func() {
				defer o.count(-1, "")
				defer c.Close()
				serve(o, c)
			})
		}
	})
	return o
}

func (o *recorder) port() uint16 { return uint16(o.Addr().(*net.TCPAddr).Port) }

// count counts connections, and notes the client of a new one.
func (o *recorder) count(n int, client string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open += n
	if client != "" {
		o.latest = client
	}
}

func (o *recorder) note(a arrival) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.arrived = append(o.arrived, a)
}

// take returns the requests that have arrived since the last call, which are at most n. If fewer have, some were broken
// off, and their bytes may be on the way: take waits until all connections have ended.
func (o *recorder) take(n int) (all []arrival) {
	o.mu.Lock()
	enough := len(o.arrived) >= n
	o.mu.Unlock()
	if !enough {
		o.drain()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	all, o.arrived = o.arrived, nil
	return all
}

// drain waits for the end of every connection that was begun before.
func (o *recorder) drain() {
	last, err := net.Dial("tcp", o.Addr().String())
	if err != nil {
		return
	}
	for came, ended := false, false; !ended; time.Sleep(20 * time.Microsecond) { // connections are accepted in their order
		o.mu.Lock()
		if !came && o.latest == last.LocalAddr().String() {
			came = true
			last.Close()
		}
		ended = came && o.open == 0
		o.mu.Unlock()
	}
}

// serveH1 answers requests of HTTP/1 until the bytes are none.
func (o *recorder) serveH1(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		a, err := readHead(in)
		if err != nil {
			return
		}
		o.note(a)
		if a.problem != "" {
			return
		}
		early := strings.HasPrefix(a.target, "/early")
		if early {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		} else if len(a.header["expect"]) > 0 {
			io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		if problem, err := skipBody(in, a.length); err != nil {
			return
		} else if problem != "" {
			o.note(arrival{problem: problem})
			return
		}
		if !early {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	}
}

// readHead reads a head as it has to be written: any byte too many is a problem. The error is that of a head that is not
// complete.
func readHead(in *bufio.Reader) (a arrival, err error) {
	line, err := readLine(in, &a)
	if err != nil {
		return a, err
	}
	first := strings.Split(line, " ")
	if len(first) != 3 || first[2] != "HTTP/1.1" {
		a.problem = fmt.Sprintf("the request line %q", line)
		return a, nil
	}
	a.method, a.target = first[0], first[1]
	a.header = map[string][]string{}
	for {
		line, err := readLine(in, &a)
		if err != nil || line == "" || a.problem != "" {
			a.frame()
			return a, err
		}
		name, value, ok := strings.Cut(line, ": ")
		if !ok || name == "" || strings.ContainsAny(name, " \t:\"(),/;<=>?@[\\]{}") || strings.Trim(value, " \t") != value {
			a.problem = fmt.Sprintf("the field line %q", line)
			return a, nil
		}
		name = strings.ToLower(name)
		a.header[name] = append(a.header[name], value)
	}
}

func readLine(in *bufio.Reader, a *arrival) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	text, ended := strings.CutSuffix(line, "\r\n")
	if !ended || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		a.problem = fmt.Sprintf("the line %q", line)
	}
	return text, nil
}

// frame takes Host and the length of the body out of the fields.
func (a *arrival) frame() {
	hosts, lengths, codings := a.header["host"], a.header["content-length"], a.header["transfer-encoding"]
	delete(a.header, "host")
	switch {
	case a.problem != "":
		return
	case len(hosts) != 1 || len(lengths)+len(codings) > 1:
		a.problem = fmt.Sprintf("the hosts %q, the lengths %q, the codings %q", hosts, lengths, codings)
		return
	case len(codings) == 1 && codings[0] != "chunked":
		a.problem = fmt.Sprintf("the coding %q", codings[0])
		return
	case len(codings) == 1:
		a.length = -1
	case len(lengths) == 1:
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		if err != nil || strconv.FormatUint(n, 10) != lengths[0] {
			a.problem = fmt.Sprintf("the length %q", lengths[0])
			return
		}
		a.length = int64(n)
	}
	a.host = hosts[0]
}

// skipBody reads a body as it has to be written: chunks have no extensions, and no fields follow them.
func skipBody(in *bufio.Reader, length int64) (problem string, err error) {
	if length >= 0 {
		_, err := io.CopyN(io.Discard, in, length)
		return "", err
	}
	for {
		line, err := in.ReadString('\n')
		if line == "" {
			return "", err
		}
		size, bad := strconv.ParseUint(strings.TrimSuffix(line, "\r\n"), 16, 31)
		if bad != nil || err != nil { // a chunk goes up in one piece, or not at all
			return fmt.Sprintf("the chunk %q", line), nil
		}
		data := make([]byte, size+2)
		if _, err := io.ReadFull(in, data); err != nil {
			return "", err
		}
		if string(data[size:]) != "\r\n" {
			return fmt.Sprintf("a chunk of %d bytes that ends in %q", size, data[size:]), nil
		}
		if size == 0 {
			return "", nil
		}
	}
}

// A teller is a client that has sent all it will, and takes every answer.
type teller struct {
	mu     sync.Mutex
	said   []byte
	closed bool
}

func (c *teller) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case len(c.said) == 0:
		return 0, io.EOF
	}
	n := copy(b, c.said)
	c.said = c.said[n:]
	return n, nil
}

func (c *teller) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	return len(b), nil
}

func (c *teller) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

func (c *teller) SetDeadline(time.Time) error      { return nil }
func (c *teller) SetReadDeadline(time.Time) error  { return nil }
func (c *teller) SetWriteDeadline(time.Time) error { return nil }
func (c *teller) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *teller) LocalAddr() net.Addr              { return &net.TCPAddr{} }
