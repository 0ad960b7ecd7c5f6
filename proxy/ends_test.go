package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// TestAnEarlyAnswerReachesAClientThatGoesOn is a large answer to an upload that nobody reads any more: the end of the
// connection must not be a reset, which takes the answer away.
func TestAnEarlyAnswerReachesAClientThatGoesOn(t *testing.T) {
	const size = 4 << 20
	w := newWorld(t, openPolicy, nil)
	answered, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	o := newOrigin(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 4194304\r\n\r\n"+strings.Repeat("x", size))
			close(answered)
			<-over
		}
	})
	c := w.dial(t).send(request("POST", "allowed.test", o.port, "/", "Content-Length: 1000000000") + "\r\n")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		io.Copy(c.Conn, io.LimitReader(zeros{}, 12<<20))
	}()
	<-answered
	time.Sleep(100 * time.Millisecond) // a client that looks late
	resp, body := c.response("POST")
	if resp.StatusCode != 413 || len(body) != size {
		t.Errorf("answered %d with %d bytes", resp.StatusCode, len(body))
	}
	<-sent
}

// TestARequestInClearIsCut before it is answered: by another policy, whose refusal it gets, or by an operator.
func TestARequestInClearIsCut(t *testing.T) {
	for says, row := range map[string]struct {
		cut    func(*testing.T, *world)
		answer string
	}{
		"another policy": {func(t *testing.T, w *world) {
			parsed, err := file.Parse("test.yaml", []byte(strings.Replace(openPolicy, "allow:", "deny:", 1)))
			if err != nil {
				t.Fatal(err)
			}
			p, err := parsed.Compile(file.Environment{})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Gate.SetPolicy(context.Background(), p, "stricter"); err != nil {
				t.Error(err)
			}
		}, "HTTP/1.1 403 "},
		"an operator": {func(_ *testing.T, w *world) {
			open, _ := w.Gate.Flows.Page(0, 10)
			for _, f := range open {
				id, _ := record.ParseID(f.ID)
				w.Gate.Flows.Cut(id)
			}
		}, ""},
	} {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t, openPolicy, nil)
			reached, over := make(chan struct{}), make(chan struct{})
			defer close(over)
			o := newOrigin(t, func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					close(reached)
					<-over
				}
			})
			c := w.dial(t).send(get("allowed.test", o.port, "/"))
			<-reached
			row.cut(t, w)
			if got := c.rest(); !strings.HasPrefix(got, row.answer) || row.answer == "" && got != "" {
				t.Errorf("answered %q", got)
			}
			w.recorded(t, ended("cut"))
		})
	}
}

// TestSilentTLSClientsThatGiveWayAreTold once their handshakes are made. Only a busy log has one reset.
func TestSilentTLSClientsThatGiveWayAreTold(t *testing.T) {
	const most = 8
	w := newTLSWorld(t, false, func(s *Server) { s.Limits.Connections = most })
	var silent []*testTLSClient
	for range 3 * most {
		c := w.enter(t)
		c.tls.Handshake()
		silent = append(silent, c)
	}
	told := 0
	for _, c := range silent[:most] {
		if got, orderly := c.end(); strings.HasPrefix(got, "HTTP/1.1 429 ") && orderly {
			told++
		}
	}
	if told < most/2 {
		t.Errorf("%d of %d were told", told, most)
	}
}

// TestABodyThatNobodyAskedForStays: the upstream answers a request with Expect at last, and takes longer over the answer than
// a body waits for its word.
func TestABodyThatNobodyAskedForStays(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	came := make(chan string, 1)
	o := newOrigin(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
		c.SetReadDeadline(time.Now().Add(1500 * time.Millisecond))
		b, _ := io.ReadAll(in)
		came <- string(b)
		io.WriteString(c, "k")
	})
	c := w.dial(t).send(request("POST", "allowed.test", o.port, "/", "Content-Length: 5", "Expect: 100-continue") + "\r\nhello")
	if resp, body := c.response("POST"); resp.StatusCode != 200 || body != "ok" {
		t.Errorf("answered %d %q", resp.StatusCode, body)
	}
	if got := <-came; got != "" {
		t.Errorf("%q went up behind the answer", got)
	}
}

// TestWhatIsSilentIsRecordedAsThat, over HTTP/1 as over HTTP/2 and in tunnels.
func TestWhatIsSilentIsRecordedAsThat(t *testing.T) {
	soon := Limits{Idle: 300 * time.Millisecond, Hello: 300 * time.Millisecond}
	hang := func(answer string) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				io.WriteString(c, answer)
				io.Copy(io.Discard, c)
			}
		}
	}
	for says, row := range map[string]struct {
		answer, request string
		outcome         record.Outcome
	}{
		"half a response": {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", get("other.test", "PORT", "/live"), "idle-timeout"},
		"half an upload":  {"", request("POST", "other.test", "PORT", "/live", "Content-Length: 10") + "\r\nhalf", "idle-timeout"},
		"a WebSocket":     {switched, get("other.test", "PORT", "/live", webSocketFields...), "idle-timeout"},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w := newLimitedWorld(t, webSocketPolicy, soon, nil)
			o := newOrigin(t, hang(row.answer))
			w.dial(t).send(strings.ReplaceAll(row.request, "PORT", o.port)).rest()
			if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/live")))); end.Outcome != row.outcome {
				t.Errorf("ended %+v", end)
			}
		})
	}
	t.Run("a client in its handshake", func(t *testing.T) {
		t.Parallel()
		w := newLimitedWorld(t, inspectPolicy, soon, nil)
		o := w.pki.secureOrigin(t, false, func(http.ResponseWriter, *http.Request) {}, nil)
		c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
		tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true, ServerName: "allowed.test", VerifyConnection: func(tls.ConnectionState) error {
			w.recorded(t, ended("first-bytes-late")) // in the middle of it
			return errors.New("late")
		}}).Handshake()
	})
}

// TestAnExpectationThatNobodyMeetsIsRefused over each version of HTTP.
func TestAnExpectationThatNobodyMeetsIsRefused(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		o := w.pki.secureOrigin(t, overH2, func(http.ResponseWriter, *http.Request) { t.Error("a request went up") }, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		ask(t, rt, "POST", "https://allowed.test:"+o.port+"/public/x", strings.NewReader("hello"), "Expect: 200-ok").refused(t, 417, policy.MalformedRequest)
	})
}
