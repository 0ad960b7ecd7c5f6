package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A rawWay is a connection over which a raw client speaks HTTP/1 to an origin.
type rawWay struct {
	*testClient
	request func(method, path string, fields ...string) string // a head
}

// eachRawWay runs test over HTTP/1 in clear, in a tunnel in clear, and inside TLS. Each has an origin that serves
// connections with serve.
func eachRawWay(t *testing.T, w *inspectWorld, serve func(net.Conn), test func(t *testing.T, dial func() rawWay)) {
	clear, secure := newOrigin(t, serve), w.pki.rawOrigin(t, serve)
	in := func(host, port string) func(string, string, ...string) string {
		return func(method, path string, fields ...string) string {
			return insideRequest(method, host, port, path, fields...)
		}
	}
	t.Run("in clear", func(t *testing.T) {
		test(t, func() rawWay {
			return rawWay{w.dial(t), func(method, path string, fields ...string) string {
				return request(method, "opaque.test", clear.port, path, fields...) + "\r\n"
			}}
		})
	})
	t.Run("in a tunnel", func(t *testing.T) {
		test(t, func() rawWay {
			return rawWay{w.dial(t).send(connectTo("opaque.test", clear.port)).expect(established), in("opaque.test", clear.port)}
		})
	})
	t.Run("inside TLS", func(t *testing.T) {
		test(t, func() rawWay {
			return rawWay{w.inside(t, "allowed.test", secure.port), in("allowed.test", secure.port)}
		})
	})
}

// answers is an origin that answers each request by its path, which names one of the texts.
func answers(texts map[string]string) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close() // by close_notify, inside TLS
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			io.Copy(io.Discard, r.Body)
			text := texts[strings.TrimPrefix(r.URL.Path, "/public/")]
			io.WriteString(c, text)
			if !strings.HasPrefix(text, "HTTP/1.1 ") {
				return
			}
		}
	}
}

// TestResponsesAreReadAsTheRFCSays, and written canonically.
func TestResponsesAreReadAsTheRFCSays(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	rows := map[string][2]string{ // what the origin says, and what the client reads
		"204-chunked":  {"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
		"204-length":   {"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
		"304-length":   {"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"},
		"304-chunked":  {"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 304 Not Modified\r\n\r\n"},
		"blank-colon":  {ok + "Content-Type : text/plain\r\nContent-Length: 1\r\n\r\na", ok + "Content-Type: text/plain\r\nContent-Length: 1\r\n\r\na"},
		"folded":       {ok + "X: a\r\n b\r\nContent-Length: 1\r\n\r\na", ok + "X: a b\r\nContent-Length: 1\r\n\r\na"},
		"two-lengths":  {ok + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", ok + "Content-Length: 1\r\n\r\na"},
		"list":         {ok + "Content-Length: 1, 1\r\n\r\na", ok + "Content-Length: 1\r\n\r\na"},
		"chunk-blanks": {ok + "Transfer-Encoding: chunked\r\n\r\n1  \r\na\r\n0 \r\n\r\n", ok + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"},
		"both":         {ok + "Content-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", ok + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"},
		"line-feeds":   {"HTTP/1.1 200 OK\nX: y\nContent-Length: 1\n\na", ok + "X: y\r\nContent-Length: 1\r\n\r\na"},
		"later":        {"HTTP/1.2 200 OK\r\nContent-Length: 1\r\n\r\na", ok + "Content-Length: 1\r\n\r\na"},
		"until-close":  {"HTTP/1.0 200 OK\r\n\r\nuntil", ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nuntil\r\n0\r\n\r\n"},
		"redirect":     {"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.5/\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.5/\r\nContent-Length: 0\r\n\r\n"},
		"nominated":    {ok + "Connection: Content-Length, X\r\nX: y\r\nContent-Length: 1\r\n\r\na", ok + "Content-Length: 1\r\n\r\na"},
		"many-fields":  {ok + strings.Repeat("X: y\r\n", 105) + "Content-Length: 1\r\n\r\na", ok + strings.Repeat("X: y\r\n", 105) + "Content-Length: 1\r\n\r\na"},
		"a-long-field": {ok + "X: " + strings.Repeat("y", 70_000) + "\r\nContent-Length: 1\r\n\r\na", ok + "X: " + strings.Repeat("y", 70_000) + "\r\nContent-Length: 1\r\n\r\na"},
	}
	texts := map[string]string{}
	for name, row := range rows {
		texts[name] = row[0]
	}
	w := newInspectWorld(t, inspectPolicy, nil)
	eachRawWay(t, w, answers(texts), func(t *testing.T, dial func() rawWay) {
		c := dial()
		for name, row := range rows { // one behind the other: nothing is left over
			c.send(c.request("GET", "/public/"+name)).expect(row[1])
		}
		c.Close()
	})
	w.settled(t)
}

// TestResponsesThatCannotBePassedOn have a class and a cause of their own.
func TestResponsesThatCannotBePassedOn(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	rows := map[string][2]string{ // what the origin says, and what the reason says
		"fields":  {ok + strings.Repeat("X: y\r\n", 1001) + "\r\n", "more than 1000 header fields"},
		"bytes":   {ok + "Big-One: " + strings.Repeat("y", 256<<10) + "\r\n\r\n", "Big-One"},
		"lengths": {ok + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "differ"},
		"coding":  {ok + "Transfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding"},
		"ssh":     {"SSH-2.0-x\r\n\r\n", "status line"},
		"hints":   {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 33) + ok + "\r\n", "interim"},
	}
	texts := map[string]string{}
	for name, row := range rows {
		texts[name] = row[0]
	}
	w := newInspectWorld(t, inspectPolicy, nil)
	eachRawWay(t, w, answers(texts), func(t *testing.T, dial func() rawWay) {
		for name, row := range rows {
			c := dial()
			resp, err := http.ReadResponse(c.send(c.request("GET", "/public/"+name)).in, nil)
			for err == nil && resp.StatusCode < 200 {
				resp, err = http.ReadResponse(c.in, nil)
			}
			if err != nil {
				t.Fatal(name, err)
			}
			body, _ := io.ReadAll(resp.Body)
			reply{resp, string(body)}.refused(t, 502, policy.MalformedResponse)
			if !strings.Contains(string(body), row[1]) || !strings.Contains(string(body), `"retryable":false`) {
				t.Errorf("%s: %s", name, body)
			}
			end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/"+name))))
			if end.Outcome != record.Outcome(policy.MalformedResponse) || !strings.Contains(end.Note, row[1]) {
				t.Errorf("%s: ended %s, %q", name, end.Outcome, end.Note)
			}
			c.Close()
		}
	})
	w.settled(t)
}

// TestABodyThatCannotBeReadIsBrokenOff behind a head that is out.
func TestABodyThatCannotBeReadIsBrokenOff(t *testing.T) {
	serve := answers(map[string]string{"x": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nxyz\r\n"})
	w := newInspectWorld(t, inspectPolicy, nil)
	eachRawWay(t, w, serve, func(t *testing.T, dial func() rawWay) {
		c := dial()
		if got, err := io.ReadAll(c.send(c.request("GET", "/public/x")).in); err == nil || !strings.HasSuffix(string(got), "a\r\n") {
			t.Errorf("read %q, %v", got, err)
		}
		w.recorded(t, ended(string(policy.MalformedResponse)))
	})
}

// TestHTTP2ResponsesHaveTheirOwnLimits, as those of HTTP/1.
func TestHTTP2ResponsesHaveTheirOwnLimits(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, r *http.Request) {
		var fields, size int
		fmt.Sscanf(r.URL.Path, "/public/%d/%d", &fields, &size)
		for range fields {
			rw.Header().Add("X", strings.Repeat("y", size))
		}
		io.WriteString(rw, "fine")
	}, nil)
	rt := w.visitor(t, true, "allowed.test", o.port)
	for path, refused := range map[string]string{"105/1": "", "1/70000": "", "1001/1": "response_fields", "1/300000": "response_head_bytes"} {
		r := ask(t, rt, "GET", o.url("allowed.test", "/public/"+path), nil)
		if refused == "" {
			if r.body != "fine" || len(strings.Join(r.Header["X"], "")) < 105 {
				t.Errorf("%s: %s %d", path, r.Status, len(r.Header["X"]))
			}
			continue
		}
		r.refused(t, 502, policy.MalformedResponse)
		end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/"+path))))
		if !strings.Contains(r.body, refused) || end.Outcome != record.Outcome(policy.MalformedResponse) || !strings.Contains(end.Note, refused) {
			t.Errorf("%s: %s; ended %s, %q", path, r.body, end.Outcome, end.Note)
		}
	}
}

// TestAnAbortedResponseEndsByAReset towards clients of both versions, however its end would have been told: nobody
// may take a part for the whole.
func TestAnAbortedResponseEndsByAReset(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	w := newInspectWorld(t, inspectPolicy, nil)
	serve := func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		io.WriteString(c, map[string]string{
			"/public/length": ok + "Content-Length: 99\r\n\r\nhalf", "/public/chunked": ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "/public/close": ok + "\r\nhalf",
		}[r.URL.Path])
		c.Read(make([]byte, 1)) // until the client has read it
		socketOf(c).SetLinger(0)
		socketOf(c).Close()
	}
	eachRawWay(t, w, serve, func(t *testing.T, dial func() rawWay) {
		for _, path := range []string{"length", "chunked", "close"} {
			for _, version := range []string{"HTTP/1.0", "HTTP/1.1"} {
				c := dial()
				c.send(strings.Replace(c.request("POST", "/public/"+path, "Content-Length: 2"), "HTTP/1.1", version, 1) + "x")
				got := make([]byte, 1024)
				n := 0
				for !strings.Contains(string(got[:n]), "half") {
					more, err := c.in.Read(got[n:])
					if n += more; err != nil {
						t.Fatalf("%s, %s: %q, %v", path, version, got[:n], err)
					}
				}
				c.send("x")
				if _, err := io.ReadAll(c.in); err == nil {
					t.Errorf("%s, %s: took %q for the whole", path, version, got[:n])
				}
				c.Close()
			}
		}
	})
	w.settled(t)
}
