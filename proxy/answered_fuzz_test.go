package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
)

// Pieces that hostile responses are made of. MARK stands for the number of the request that is answered.
var (
	statusLines = []string{
		"HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.0 200 OK", "HTTP/1.1 204 No", "HTTP/1.1 304 Not", "HTTP/1.1 206", "HTTP/1.1 100 Continue", "HTTP/1.1 103 Early", "HTTP/1.1 101 Switching", "HTTP/1.1 199 X",
		"HTTP/1.1 404 Not", "HTTP/1.1 500 No", "HTTP/1.2 200 OK", "HTTP/2 200", "HTTP/1.1  200 OK", "HTTP/1.1 0200 OK", "HTTP/1.1 20", "http/1.1 200 OK", "ICY 200 OK", "HTTP/1.1 999 Z", "HTTP/1.1 099 Z", "", "HTTP/1.1 200 O\x00K", "\r\nHTTP/1.1 200 OK",
	}
	responseLines = []string{
		"X-Mark: MARK", "Connection: close", "Connection: keep-alive", "Connection: Content-Length", "Connection: Transfer-Encoding", "Content-Length: 6", "Content-Length: 6, 6", "Content-Length: 6\r\nContent-Length: 6", "Content-Length: 7", "Content-Length: 0", "Content-Length: 06",
		"Content-Length: +6", "Content-Length : 6", "Content-Length:\t6", "Content-Length: 6\r\n 0", "Transfer-Encoding: chunked", "Transfer-Encoding : chunked", "Transfer-Encoding: chunked, chunked", "Transfer-Encoding: identity", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
		"Transfer-Encoding:\r\n chunked", "Transfer-Encoding: CHUNKED", "Transfer-Encoding: xchunked", "Trailer: X-Mark", "Upgrade: websocket", " folded", "X-Nul: a\x00b", "X-Cr: a\rContent-Length: 0", "NoColon", ": empty", "X Y: z", "Keep-Alive: max=1", "X-Long: " + strings.Repeat("r", 70000),
	}
	contents = []string{
		"mMARKm\r\n", "6\r\nmMARKm\r\n\r\n0\r\n\r\n", "6;e=\"x\"\r\nmMARKm\n\r\n0\r\nX-Mark: mMARKm\r\n\r\n", "6 \r\nmMARKm\r\n\r\n0\r\n\r\n", "006\r\nmMARKm\r\n\r\n000\r\n\r\n", "6\nmMARKm\n\n0\n\n", "-6\r\nmMARKm", "0\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\n", "",
		"mMARKm", "fffffffffffffffff\r\nmMARKm", "6\r\nmMARKmXX\r\n0\r\n\r\n", "0\r\n\r\nHTTP/1.1 200 OK\r\nX-Late: mMARKm\r\nContent-Length: 0\r\n\r\n", "mMARKm\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\nX-Late: mMARKm\r\n\r\nmMARKm",
	}
)

// hostileAnswer returns what an origin sends for one request.
func hostileAnswer(r *rand.Rand) string {
	odds := 2 << r.IntN(5)
	rarely := func(likely string, from []string) string {
		if r.IntN(odds) > 0 {
			return likely
		}
		return from[r.IntN(len(from))]
	}
	end := func() string { return rarely("\r\n", []string{"\n", "\r", "\r\r\n"}) }
	var s strings.Builder
	for r.IntN(6) == 0 {
		s.WriteString(rarely("HTTP/1.1 103 Early", statusLines) + end() + "X-Mark: mMARKm" + end() + rarely("", responseLines) + end())
	}
	s.WriteString(rarely("HTTP/1.1 200 OK", statusLines) + end() + "X-Mark: mMARKm" + end())
	for range r.IntN(3) {
		s.WriteString(rarely("X-A: 1", responseLines) + end())
	}
	if r.IntN(2) == 0 {
		s.WriteString("Content-Length: 8" + end() + end() + rarely(contents[0], contents))
	} else {
		s.WriteString("Transfer-Encoding: chunked" + end() + end() + rarely(contents[1], contents))
	}
	s.WriteString(rarely("", contents))
	return s.String()
}

// answerHostile is an origin that answers the n-th request of a seed, /n?seed, in its own way.
func answerHostile(_ *recorder, c net.Conn) {
	in := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		mark := strings.TrimPrefix(req.URL.Path, "/")
		n, _ := strconv.ParseUint(mark, 10, 64)
		seed, _ := strconv.ParseUint(req.URL.RawQuery, 10, 64)
		r := rand.New(rand.NewPCG(seed, n))
		text := strings.ReplaceAll(hostileAnswer(r), "MARK", mark)
		if r.IntN(8) == 0 { // in two pieces
			at := r.IntN(len(text) + 1)
			io.WriteString(c, text[:at])
			time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
			text = text[at:]
		}
		io.WriteString(c, text)
		if r.IntN(4) == 0 {
			return
		}
	}
}

// A hearer is a teller that keeps what it is answered.
type hearer struct {
	teller
	heard bytes.Buffer
}

func (c *hearer) Write(b []byte) (int, error) {
	n, err := c.teller.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard.Write(b[:n])
	return n, err
}

var marks = regexp.MustCompile(`m(\d+)m`)

// misheard returns what is wrong with what a client has heard, read by net/http: an answer that belongs to another request, or
// bytes that are none.
func misheard(heard []byte, methods []string) string {
	in := bufio.NewReader(bytes.NewReader(heard))
	for n, method := range methods {
		for {
			resp, err := http.ReadResponse(in, &http.Request{Method: method})
			if err != nil {
				if rest, _ := io.ReadAll(in); len(rest) == 0 && err == io.ErrUnexpectedEOF {
					return "" // broken off
				}
				return fmt.Sprintf("answer %d: %v", n, err)
			}
			all, err := httputil.DumpResponse(resp, true)
			for _, m := range marks.FindAllSubmatch(append(all, fmt.Sprint(resp.Trailer)...), -1) {
				if string(m[1]) != strconv.Itoa(n) {
					return fmt.Sprintf("the answer to request %d is of request %s: %q", n, m[1], all)
				}
			}
			if err != nil {
				return ""
			}
			if resp.StatusCode >= 200 || resp.StatusCode == 101 {
				if resp.Close || resp.StatusCode == 101 {
					return ""
				}
				break
			}
		}
		if _, err := in.Peek(1); err != nil {
			return ""
		}
	}
	rest, _ := io.ReadAll(in)
	if len(rest) > 0 {
		return fmt.Sprintf("%q behind the last answer", rest)
	}
	return ""
}

// TestHostileAnswersStayTheirOwn: whatever an origin answers, a client reads each answer as that to its own request. The
// client's reader is net/http. EGRESSD_REQUESTS compares more.
func TestHostileAnswersStayTheirOwn(t *testing.T) {
	inBulk(t, 300, func() func(uint64) (int, string) {
		w := newJudgedWorld(t, answerHostile, policy.Allow, func(j *judge) *policy.Policy { return policy.New(j) })
		w.forwarder.Prepare(w.Gate, w.Sandboxes, Limits{Idle: 60 * time.Millisecond})
		to := policy.Destination{Host: "allowed.test", Port: w.origin.port()}
		flow, err := w.Gate.Open(context.Background(), someone, policy.Request{Via: policy.ViaConnect, Destination: to})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { flow.Close(egress.End{Outcome: "closed"}) })
		return func(seed uint64) (int, string) {
			r := rand.New(rand.NewPCG(seed, 3))
			var methods []string
			var text strings.Builder
			for n := range 4 {
				method := []string{"GET", "GET", "GET", "HEAD", "DELETE"}[r.IntN(5)]
				methods = append(methods, method)
				fmt.Fprintf(&text, "%s /%d?%d HTTP/1.1\r\nHost: %s\r\n\r\n", method, n, seed, to.String())
			}
			c := &hearer{teller: teller{said: []byte(text.String())}}
			h := &exchange.Client{
				Forwarder: &w.forwarder, Raw: c, Conn: c, Peer: someone, Via: policy.ViaConnect, TunnelTo: &to,
				Assign: func(string, string) *egress.Refusal { return nil },
			}
			if seed%2 == 0 {
				h.ServeH1()
			} else {
				h.ServeInside(openTunnel{flow}, nil, false)
			}
			w.judge.allowed()
			heard := c.heard.Bytes()
			if wrong := misheard(heard, methods); wrong != "" {
				return 0, fmt.Sprintf("%s\nof %q", wrong, heard)
			}
			return bytes.Count(heard, []byte("HTTP/1.1 200 OK\r\n")), ""
		}
	})
}
