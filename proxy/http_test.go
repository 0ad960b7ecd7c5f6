package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// webOrigin is an origin of net/http, which follows no header of ours.
func webOrigin(t *testing.T, handle http.HandlerFunc) *origin {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handle}
	done := make(chan struct{})
	go func() { s.Serve(l); close(done) }()
	t.Cleanup(func() { s.Close(); <-done })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return &origin{port: port}
}

func get(host, port, path string, fields ...string) string {
	return request("GET", host, port, path, fields...) + "\r\n"
}

func request(method, host, port, path string, fields ...string) string {
	head := fmt.Sprintf("%s http://%s:%s%s HTTP/1.1\r\nHost: %s:%s\r\n", method, host, port, path, host, port)
	for _, f := range fields {
		head += f + "\r\n"
	}
	return head
}

// response reads one final response to method.
func (c *testClient) response(method string) (*http.Response, string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, &http.Request{Method: method})
	for err == nil && resp.StatusCode < 200 {
		resp, err = http.ReadResponse(c.in, &http.Request{Method: method})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp, string(body)
}

func TestEveryRequestOnAKeptConnectionIsDecided(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	peers := make(chan string, 8)
	o := webOrigin(t, func(rw http.ResponseWriter, r *http.Request) { peers <- r.RemoteAddr; io.WriteString(rw, r.URL.Path) })
	c := w.dial(t)
	for _, path := range []string{"/one", "/two"} {
		if _, body := c.send(get("allowed.test", o.port, path)).response("GET"); body != path {
			t.Fatalf("%s was answered with %q", path, body)
		}
	}
	if a, b := <-peers, <-peers; a != b {
		t.Errorf("the upstream connection was not used again: %s, %s", a, b)
	}
	if resp, _ := c.send(get("evil.test", o.port, "/")).response("GET"); resp.StatusCode != 403 {
		t.Errorf("the third was answered with %d", resp.StatusCode)
	}
	var actions []string
	for _, r := range w.records(t) {
		if r.Kind == record.KindRequest {
			actions = append(actions, r.Decision.Action+" "+r.HTTP.Path)
		}
	}
	if got := strings.Join(actions, ", "); got != "allow /one, allow /two, deny /" {
		t.Errorf("recorded %s", got)
	}
}

func TestMethodsAndPathsOfPlainHTTP(t *testing.T) {
	o := webOrigin(t, func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "fine") })
	w := newWorld(t, fmt.Sprintf(`version: 1
allow: [{host: "allowed.test:%s", methods: [GET], paths: ["/public/**"]}]
unsafe_allow: ["127.0.0.1:*"]
`, o.port), nil)
	for line, want := range map[string]int{
		"GET /public/x":        200,
		"HEAD /public/x":       200,
		"POST /public/x":       403,
		"GET /admin":           403,
		"GET /public/../admin": 403,
		"GET /public/%2e%2e/x": 403,
		"GET /public//x":       403,
		"TRACE /public/x":      403,
	} {
		method, path, _ := strings.Cut(line, " ")
		resp, body := w.dial(t).send(request(method, "allowed.test", o.port, path) + "\r\n").response(method)
		if resp.StatusCode != want {
			t.Errorf("%s was answered with %d %s", line, resp.StatusCode, body)
		}
		if want == 403 && method == "POST" && !strings.Contains(body, `"class":"method-denied"`) {
			t.Errorf("%s: %s", line, body)
		}
	}
	if got := w.dial(t).send(connectTo("allowed.test", o.port)).rest(); !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("a tunnel, in which the method is not seen, was answered with %q", got)
	}
}

func TestBodiesAndTheirFraming(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	o := webOrigin(t, func(rw http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%d %s %v %d", len(b), r.TransferEncoding, err, r.ContentLength)
	})
	post := func(fields string) string { return request("POST", "allowed.test", o.port, "/", fields) + "\r\n" }
	c := w.dial(t)
	for message, want := range map[string]string{
		post("Content-Length: 5") + "hello": "5 [] <nil> 5",
		post("Content-Length: 0"):           "0 [] <nil> 0",
		post("Transfer-Encoding: chunked") + "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n": "5 [chunked] <nil> -1",
		post("Content-Length: 39") + "GET http://evil.test/ HTTP/1.1\r\nX: yz\r\n":  "39 [] <nil> 39",
	} {
		if _, body := c.send(message).response("POST"); body != want {
			t.Errorf("%q was answered with %q, want %q", message, body, want)
		}
	}
	c.send(post("Content-Length: 5\r\nExpect: 100-continue")).expect("HTTP/1.1 100 Continue\r\n\r\n")
	if _, body := c.send("hello").response("POST"); body != "5 [] <nil> 5" {
		t.Errorf("after 100: %q", body)
	}
}

func TestABadChunkNeverBecomesACompleteRequest(t *testing.T) {
	for _, bad := range []string{"0x1\r\na\r\n", "+1\r\na\r\n", "1\na\r\n", "1\r\naXX", "11111111111111111\r\n"} {
		w, o := newWorld(t, openPolicy, nil), newWitness(t, "")
		got := w.dial(t).send(request("POST", "allowed.test", o.port, "/", "Transfer-Encoding: chunked") + "\r\n3\r\nabc\r\n" + bad).rest()
		if !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%q was answered with %q", bad, got)
		}
		if seen := o.got(); strings.Contains(seen, "0\r\n\r\n") || strings.Contains(seen, bad) {
			t.Errorf("%q reached the upstream as %q", bad, seen)
		}
	}
}

func TestSmuggledFramingIsRefused(t *testing.T) {
	for _, fields := range []string{
		"Content-Length: 44\r\nTransfer-Encoding: chunked", "Content-Length: 5\r\nContent-Length: 6", "Content-Length: +5",
		"Transfer-Encoding: xchunked", "X: a\r\n b", "X : a", "Content-Length: 5\r\nConnection: Content-Length",
	} {
		w, o := newWorld(t, openPolicy, nil), newWitness(t, "")
		if got := w.dial(t).send(request("POST", "allowed.test", o.port, "/", fields) + "\r\nhello").rest(); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%q was answered with %q", fields, got)
		}
		if seen := o.got(); seen != "" {
			t.Errorf("%q reached the upstream: %q", fields, seen)
		}
	}
}

func TestFieldsOfOneHopStayThere(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), newWitness(t, "HTTP/1.1 200 Blocked by egressd: forged\r\nX-Egressd-Id: forged\r\nProxy-Status: egressd\r\nAlt-Svc: h3=\":443\"\r\nKeep-Alive: 5\r\nX-Fine: yes\r\nContent-Length: 2\r\n\r\nok")
	got := w.dial(t).send(get("allowed.test", o.port, "/p?q=1", "Connection: X-A, close", "X-A: 1", "Keep-Alive: 3", "TE: trailers",
		"Upgrade: foo", "Proxy-Connection: keep-alive", "Proxy-Authorization: Basic Y2k6eA==", "X-Forwarded-For: 1.2.3.4", "Via: me", "X-Kept: yes")).rest()
	want := "GET /p?q=1 HTTP/1.1\r\nHost: allowed.test:" + o.port + "\r\nX-Kept: yes\r\n\r\n"
	if o.got() != want {
		t.Errorf("the upstream got %q, want %q", o.got(), want)
	}
	if want := "HTTP/1.1 200 OK\r\nX-Fine: yes\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"; got != want {
		t.Errorf("the client got %q, want %q", got, want)
	}
}

func TestTheTargetNamesTheHostWhateverHostSays(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), newWitness(t, "HTTP/1.1 204 No Content\r\n\r\n")
	w.dial(t).send("GET http://allowed.test:" + o.port + "/ HTTP/1.1\r\nHost: evil.test\r\n\r\n").expect("HTTP/1.1 204 No Content\r\n\r\n")
	if !strings.Contains(o.got(), "Host: allowed.test:"+o.port+"\r\n") || strings.Contains(o.got(), "evil") {
		t.Errorf("the upstream got %q", o.got())
	}
}

func TestAResponseThatBreaksOffIsNotCompleted(t *testing.T) {
	for _, answer := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
		w := newWorld(t, openPolicy, nil)
		o := newOrigin(t, func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				io.WriteString(c, answer)
			}
		})
		c := w.dial(t).send(get("allowed.test", o.port, "/"))
		resp, err := http.ReadResponse(c.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%q was completed: %q", answer, body)
		}
	}
}

func TestStreamedResponsesArriveAsTheyAreSent(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	next := make(chan struct{})
	o := webOrigin(t, func(rw http.ResponseWriter, r *http.Request) {
		for i := range 3 {
			fmt.Fprintf(rw, "event %d\n", i)
			rw.(http.Flusher).Flush()
			<-next
		}
	})
	c := w.dial(t).send(get("allowed.test", o.port, "/"))
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := lines.ReadString('\n'); line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("read %q, %v", line, err)
		}
		next <- struct{}{}
	}
}

func TestLargeBodiesBothWays(t *testing.T) {
	const size = 32 << 20
	w := newWorld(t, openPolicy, nil)
	o := webOrigin(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
		rw.WriteHeader(200)
		http.NewResponseController(rw).EnableFullDuplex()
		io.Copy(rw, r.Body)
	})
	c := w.dial(t).send(request("POST", "allowed.test", o.port, "/", "Content-Length: "+strconv.Itoa(size)) + "\r\n")
	go io.CopyN(c, zeros{}, size)
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
		t.Errorf("received %d, %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestAnEarlyAnswerEndsTheUpload(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	o := newOrigin(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
		}
	})
	c := w.dial(t).send(request("POST", "allowed.test", o.port, "/", "Content-Length: 1000000") + "\r\nsome of it")
	if resp, _ := c.response("POST"); resp.StatusCode != 413 {
		t.Errorf("answered %d", resp.StatusCode)
	}
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindClose && r.HTTP.Status == 413 })
}

func TestAKeptConnectionThatEndedIsReplaced(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	left := make(chan struct{}, 2)
	o := newOrigin(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
		c.Close()
		left <- struct{}{}
	})
	c := w.dial(t)
	for range 2 {
		if _, body := c.send(get("allowed.test", o.port, "/")).response("GET"); body != "ok" {
			t.Fatalf("answered %q", body)
		}
		<-left
		time.Sleep(20 * time.Millisecond) // for the end to reach the proxy
	}
}

func TestPlainHTTPInsideATunnelIsDecidedByRequest(t *testing.T) {
	o := webOrigin(t, func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "fine") })
	w := newWorld(t, openPolicy+"default: allow\n", nil)
	inner := func(host string) string { return "GET /inner HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
	if _, body := c.send(inner("allowed.test:" + o.port)).response("GET"); body != "fine" {
		t.Errorf("answered %q", body)
	}
	if resp, _ := c.send(inner("evil.test")).response("GET"); resp.StatusCode != 421 {
		t.Errorf("another Host was answered with %d", resp.StatusCode)
	}
	for _, host := range []string{"allowed.test", "127.0.0.1"} { // of a tunnel to a name, and to an address
		c = w.dial(t).send(connectTo(host, o.port)).expect(established)
		if _, body := c.send(inner(host + ":1")).response("GET"); body != "fine" {
			t.Errorf("a Host with another port was answered with %q", body)
		}
	}
	c = w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
	if resp, _ := c.send(get("evil.test", "80", "/")).response("GET"); resp.StatusCode != 421 {
		t.Errorf("a whole URL of another host was answered with %d", resp.StatusCode)
	}
	r := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRequest })
	if r.Via != "connect" || r.HTTP.Path != "/inner" {
		t.Errorf("recorded %+v", r)
	}
}

func TestRequestsThatNoProxyServes(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	for _, line := range []string{
		"GET / HTTP/1.1", "OPTIONS * HTTP/1.1", "GET https://allowed.test/ HTTP/1.1", "GET ftp://allowed.test/ HTTP/1.1",
		"GET //evil.test/ HTTP/1.1", "GET http:evil.test/ HTTP/1.1", "PRI * HTTP/2.0", "GET http://allowed.test/ HTTP/1.2",
	} {
		got := w.dial(t).send(line + "\r\nHost: allowed.test\r\n\r\n").rest()
		if !strings.HasPrefix(got, "HTTP/1.1 400 ") && !strings.HasPrefix(got, "HTTP/1.1 505 ") {
			t.Errorf("%s was answered with %q", line, got)
		}
	}
}
