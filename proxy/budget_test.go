package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/record"
)

// spending allows everything, with a budget.
type spending int64

func (n spending) Evaluate(context.Context, *policy.Request) (policy.Decision, error) {
	d := policy.Decision{Verdict: policy.Allow, Rule: "spending", AnyProtocol: true, ECH: true, Upgrade: true}
	d.Spend(int64(n), "spending", policy.Organisation)
	return d, nil
}

// spend puts a policy file in force, with a budget for all that it allows.
func (w *world) spend(t *testing.T, text string, most int64) {
	t.Helper()
	parsed, err := file.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{Inspection: true, Evaluators: []policy.Evaluator{spending(most)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gate.SetPolicy(t.Context(), p, "budget"); err != nil {
		t.Fatal(err)
	}
}

// A till is an origin that counts what it is sent.
type till struct {
	*origin
	got  atomic.Int64
	gone chan struct{} // gets one for each connection that ended
}

func newTill(t *testing.T) *till {
	o := &till{gone: make(chan struct{}, 8)}
	o.origin = newOrigin(t, func(c net.Conn) {
		o.read(c)
		o.gone <- struct{}{}
	})
	return o
}

func (o *till) read(r io.Reader) error {
	for buf := make([]byte, 64<<10); ; {
		n, err := r.Read(buf)
		o.got.Add(int64(n))
		if err != nil {
			return err
		}
	}
}

// flood writes until the connection breaks.
func (c *testClient) flood() {
	c.t.Helper()
	block := strings.Repeat("x", 64<<10)
	for range 1 << 10 {
		if _, err := io.WriteString(c, block); err != nil {
			return
		}
	}
	c.t.Error("64 MiB went without an end")
}

func overBudgetEnd(t *testing.T, w *world, most int64) record.Record {
	t.Helper()
	r := w.recorded(t, ended("byte-budget"))
	if r.Decision.Action != "deny" || r.Decision.Class != "byte-budget" || r.Decision.Rule != "spending" || r.Bytes.Up > most+1024 {
		t.Errorf("ended %+v with %+v", r.Decision, r.Bytes)
	}
	return r
}

// TestATunnelSendsNoMoreThanItsBudget sends by CONNECT and by SOCKS5, in an opaque
// protocol and in TLS that is not inspected.
func TestATunnelSendsNoMoreThanItsBudget(t *testing.T) {
	first := map[string]string{"opaque": "SSH-2.0-client\r\n", "TLS": hello(t, "base-allowed")}
	for protocol, bytes := range first {
		for _, via := range []string{"connect", "socks5"} {
			for _, most := range []int64{2000, 1<<20 + 77} {
				t.Run(fmt.Sprintf("%s by %s up to %d", protocol, via, most), func(t *testing.T) {
					w, o := newWorld(t, openPolicy, nil), newTill(t)
					w.spend(t, openPolicy, most)
					c := w.dial(t)
					if via == "connect" {
						c.send(connectTo("allowed.test", o.port)).expect(established)
					} else {
						c.send(socksHello + socksTo("allowed.test", o.port)).expect("\x05\x00").expect(string(socksReply(answer.SOCKSOK)))
					}
					c.send(bytes).flood()
					<-o.gone
					r := overBudgetEnd(t, w, most)
					if o.got.Load() > most || r.Bytes.Up > most || r.Via != via {
						t.Errorf("%d bytes arrived, %d are recorded, of %d", o.got.Load(), r.Bytes.Up, most)
					}
					w.closed(t)
				})
			}
		}
	}
}

func TestFirstBytesBeyondTheBudgetDoNotLeave(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), newTill(t)
	w.spend(t, openPolicy, 100)
	w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(hello(t, "base-allowed")).rest()
	<-o.gone
	overBudgetEnd(t, w, 0)
	if o.got.Load() != 0 {
		t.Errorf("%d bytes arrived", o.got.Load())
	}
}

// TestALowerBudgetReachesOpenTunnels, and a higher one does too.
func TestALowerBudgetReachesOpenTunnels(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	w.spend(t, openPolicy, 10)
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send("SSH-2.0-x\n").expect("SSH-2.0-x\n")
	w.spend(t, openPolicy, 20)
	c.send("0123456789").expect("0123456789")
	w.spend(t, openPolicy, 19)
	if text := c.rest(); text != "" {
		t.Errorf("read %q", text)
	}
	overBudgetEnd(t, w, 20)
	w.closed(t)
}

const plainPolicy = `version: 1
allow: ["allowed.test:*"]
unsafe_allow: ["127.0.0.1:*"]
`

// bodies is an origin that counts the bodies that it is sent, and says whether one
// was complete.
func (o *till) bodies(rw http.ResponseWriter, r *http.Request) {
	if err := o.read(r.Body); !errors.Is(err, io.EOF) {
		o.gone <- struct{}{}
		return
	}
	fmt.Fprintf(rw, "all %d", o.got.Load())
}

func TestAPlainRequestSendsNoMoreThanItsBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, plainPolicy, nil)
	o := &till{gone: make(chan struct{}, 8)}
	o.origin = webOrigin(t, o.bodies)
	w.spend(t, plainPolicy, 1000)

	post := func(fields ...string) *testClient {
		return w.dial(t).send(request("POST", "allowed.test", o.port, "/", append(fields, "Connection: close")...) + "\r\n")
	}
	resp, body := post("Content-Length: 1001").response("POST")
	reply{resp, body}.refused(t, 429, policy.ByteBudget)
	if resp.Header.Get("Retry-After") == "" || !strings.Contains(body, `"retryable":true`) || !strings.Contains(body, "its body has at most 1000 bytes") {
		t.Errorf("%v %s", resp.Header, body)
	}
	if o.got.Load() != 0 {
		t.Fatalf("%d bytes arrived", o.got.Load())
	}
	if _, body := post("Content-Length: 1000").send(strings.Repeat("x", 1000)).response("POST"); body != "all 1000" {
		t.Errorf("the budget itself: %q", body)
	}
	o.got.Store(0)
	chunk := "1f4\r\n" + strings.Repeat("x", 500) + "\r\n"
	if _, body := post("Transfer-Encoding: chunked").send(chunk + chunk + "0\r\n\r\n").response("POST"); body != "all 1000" {
		t.Errorf("the budget itself in chunks: %q", body)
	}
	o.got.Store(0)
	resp, body = post("Transfer-Encoding: chunked").send(chunk + chunk + "1\r\nx\r\n0\r\n\r\n").response("POST")
	reply{resp, body}.refused(t, 429, policy.ByteBudget)
	<-o.gone
	if o.got.Load() > 1000 {
		t.Errorf("%d bytes arrived", o.got.Load())
	}
	overBudgetEnd(t, w, 1000)
	w.closed(t)
}

// TestABodyThatGoesOnAfterItsAnswerIsCut: there is nothing left to say to the client.
func TestABodyThatGoesOnAfterItsAnswerIsCut(t *testing.T) {
	w := newWorld(t, plainPolicy, nil)
	w.spend(t, plainPolicy, 1000)
	o := newTill(t)
	o.origin = newOrigin(t, func(c net.Conn) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nbegun")
		o.read(c)
		o.gone <- struct{}{}
	})
	c := w.dial(t).send(request("POST", "allowed.test", o.port, "/", "Transfer-Encoding: chunked") + "\r\n1\r\nx\r\n")
	if status := c.head(); status != 200 {
		t.Fatalf("answered %d", status)
	}
	c.expect("begun")
	for range 10 {
		io.WriteString(c, "1f4\r\n"+strings.Repeat("x", 500)+"\r\n")
	}
	<-o.gone
	c.rest()
	overBudgetEnd(t, w, 1000)
}

const insideBudget = `version: 1
allow: [{host: "allowed.test:*", methods: [GET, POST]}]
unsafe_allow: ["127.0.0.1:*"]
`

// A drip is a body of which nobody knows the length.
type drip struct{ io.Reader }

func TestARequestInsideSendsNoMoreThanItsBudget(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, insideBudget, nil)
		o := &till{gone: make(chan struct{}, 8)}
		o.origin = w.pki.secureOrigin(t, overH2, o.bodies, nil)
		w.spend(t, insideBudget, 100_000)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		url := o.url("allowed.test", "/")
		ask(t, rt, "POST", url, strings.NewReader(strings.Repeat("x", 100_001))).refused(t, 429, policy.ByteBudget)
		if o.got.Load() != 0 {
			t.Fatalf("%d bytes arrived", o.got.Load())
		}
		if r := ask(t, rt, "POST", url, drip{strings.NewReader(strings.Repeat("x", 100_000))}); r.body != "all 100000" {
			t.Errorf("the budget itself: %d %q", r.StatusCode, r.body)
		}
		o.got.Store(0)
		rest, more := io.Pipe()
		go func() {
			for range 100 {
				if _, err := io.WriteString(more, strings.Repeat("x", 10_000)); err != nil {
					return
				}
			}
			more.Close()
		}()
		defer rest.Close()
		ask(t, rt, "POST", url, drip{rest}).refused(t, 429, policy.ByteBudget)
		select {
		case <-o.gone:
		case <-time.After(30 * time.Second):
			t.Fatal("the upstream was not told")
		}
		if o.got.Load() > 100_000 {
			t.Errorf("%d bytes arrived", o.got.Load())
		}
		overBudgetEnd(t, w.world, 100_000)
	})
}

// TestALowerBudgetReachesOpenRequests whose bodies have come to a stop.
func TestALowerBudgetReachesOpenRequests(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, insideBudget, nil)
		begun, gone := make(chan struct{}), make(chan struct{}, 8)
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			io.ReadFull(r.Body, make([]byte, 500))
			close(begun)
			io.Copy(io.Discard, r.Body)
			gone <- struct{}{}
		}, nil)
		w.spend(t, insideBudget, 1000)
		rest, more := io.Pipe()
		go io.WriteString(more, strings.Repeat("x", 500))
		go func() {
			<-begun
			w.spend(t, insideBudget, 499)
		}()
		ask(t, w.visitor(t, overH2, "allowed.test", o.port), "POST", o.url("allowed.test", "/"), drip{rest}).refused(t, 429, policy.ByteBudget)
		soon(t, "the upstream to be told", gone)
		rest.Close()
		overBudgetEnd(t, w.world, 500)
	})
}

const socketBudget = `version: 1
allow:
  - {host: "allowed.test:*", paths: ["/live"], upgrade: websocket}
  - "other.test:*"
unsafe_allow: ["127.0.0.1:*"]
`

func TestAWebSocketSendsNoMoreThanItsBudget(t *testing.T) {
	eachSocket(t, func(t *testing.T, w *inspectWorld, o *till, c *testClient) {
		c.flood()
		<-o.gone
		if got := 3 + o.got.Load(); got > 50_000 {
			t.Errorf("%d bytes arrived", got)
		}
		overBudgetEnd(t, w.world, 50_000)
		w.closed(t)
	})
}

// TestALowerBudgetReachesOpenWebSockets on which nothing moves.
func TestALowerBudgetReachesOpenWebSockets(t *testing.T) {
	eachSocket(t, func(t *testing.T, w *inspectWorld, o *till, c *testClient) {
		w.spend(t, socketBudget, 3)
		w.spend(t, socketBudget, 2)
		<-o.gone
		if text := c.rest(); text != "" {
			t.Errorf("read %q", text)
		}
		overBudgetEnd(t, w.world, 3)
		w.closed(t)
	})
}

// eachSocket opens a WebSocket in clear and one inside TLS, over which 3 of 50,000 bytes have gone up.
func eachSocket(t *testing.T, do func(*testing.T, *inspectWorld, *till, *testClient)) {
	for _, inside := range []bool{false, true} {
		t.Run(fmt.Sprintf("inside %v", inside), func(t *testing.T) {
			w := newInspectWorld(t, socketBudget, nil)
			w.spend(t, socketBudget, 50_000)
			o := &till{gone: make(chan struct{}, 8)}
			serve := func(c net.Conn) {
				talk(t, c, func(c net.Conn) { o.read(c) })
				o.gone <- struct{}{}
			}
			var c *testClient
			if inside {
				o.origin = w.pki.rawOrigin(t, serve)
				c = w.inside(t, "allowed.test", o.port)
				c.send(insideGet("allowed.test", o.port, "/live", webSocketFields...))
			} else {
				o.origin = newOrigin(t, serve)
				c = w.dial(t).send(get("other.test", o.port, "/live", webSocketFields...))
			}
			if status := c.head(); status != http.StatusSwitchingProtocols {
				t.Fatalf("answered %d", status)
			}
			do(t, w, o, c.send("abc").expect("abc"))
		})
	}
}

// TestWhatPassesIsCountedAsItPasses reads the meter of the one sandbox while flows
// of each kind are open.
func TestWhatPassesIsCountedAsItPasses(t *testing.T) {
	var seen atomic.Pointer[policy.Usage]
	w := newInspectWorld(t, inspectPolicy, nil)
	parsed, err := file.Parse("test.yaml", []byte(inspectPolicy))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{Inspection: true, Evaluators: []policy.Evaluator{watching{&seen}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gate.SetPolicy(t.Context(), p, "watching"); err != nil {
		t.Fatal(err)
	}
	used := func() policy.Usage {
		w.dial(t).send(connectTo("evil.test", "443")).rest()
		return *seen.Load()
	}
	o := echo(t)
	c := w.dial(t).send(connectTo("opaque.test", o.port)).expect(established).send("ten bytes!").expect("ten bytes!")
	before := used()
	for late := time.Now().Add(10 * time.Second); (before.BytesUp < 10 || before.BytesDown < 10) && time.Now().Before(late); before = used() {
	} // an echo may be faster than who counts
	if before.BytesUp != 10 || before.BytesDown != 10 || before.FlowsOpen != 1 {
		t.Errorf("with a tunnel: %+v", before)
	}
	c.Close()
	eachVersion(t, func(t *testing.T, overH2 bool) {
		before := used()
		held := make(chan struct{})
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			io.CopyN(io.Discard, r.Body, 5000)
			io.WriteString(rw, strings.Repeat("y", 7000))
			rw.(http.Flusher).Flush()
			<-held
		}, nil)
		resp := start(t, w.visitor(t, overH2, "allowed.test", o.port), "POST", o.url("allowed.test", "/public/x"), strings.NewReader(strings.Repeat("x", 5000)), "X-Data: "+strings.Repeat("x", 3000))
		if _, err := io.ReadFull(resp.Body, make([]byte, 7000)); err != nil {
			t.Error(err)
		}
		after := used()
		for end := time.Now().Add(30 * time.Second); after.BytesDown-before.BytesDown < 7000 && time.Now().Before(end); after = used() {
			time.Sleep(time.Millisecond) // what is written is counted after it was
		}
		up, down := after.BytesUp-before.BytesUp, after.BytesDown-before.BytesDown
		if up < 8000 || up > 9000 || down < 7000 || down > 8000 {
			t.Errorf("%d went up and %d down while the request was open", up, down)
		}
		if after.RequestsMinute <= before.RequestsMinute || after.DeniedMinute <= before.DeniedMinute {
			t.Errorf("%+v after %+v", after, before)
		}
		close(held)
	})
}

// TestHeadsAreCounted: data leaves in fields and paths as well as in bodies.
func TestHeadsAreCounted(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "fine") }, nil)
		resp := start(t, w.visitor(t, overH2, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/"+strings.Repeat("p", 3000)), nil, "X-Data: "+strings.Repeat("x", 5000))
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "fine" {
			t.Fatalf("%q, %v", body, err)
		}
		allowed := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRequest })
		if end := w.recorded(t, closeOf(allowed)); end.Bytes.Up < 8000 || end.Bytes.Up > 9000 {
			t.Errorf("%+v", end.Bytes)
		}
	})
}

// watching keeps the usage that it was shown last, and has no opinion.
type watching struct{ seen *atomic.Pointer[policy.Usage] }

func (w watching) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	w.seen.Store(r.Usage)
	return policy.Decision{Verdict: policy.Abstain}, nil
}

func (watching) ReadsUsage() bool { return true }

// TestATunnelOverItsBudgetDoesNotEndInOrder, for a client of a TLS listener: what has
// come down must not pass for all.
func TestATunnelOverItsBudgetDoesNotEndInOrder(t *testing.T) {
	w, o := newTLSWorld(t, false, nil), newTill(t)
	o.origin = newOrigin(t, func(c net.Conn) {
		io.WriteString(c, "begun")
		o.read(c)
		o.gone <- struct{}{}
	})
	w.spend(t, openPolicy+listed, 1000)
	c := w.enter(t)
	c.send(tunnelTo(o.origin, tokenField)).established().expect("begun").send(opaque + strings.Repeat("x", 1000))
	<-o.gone
	if got, orderly := c.end(); got != "" || orderly {
		t.Errorf("read %q, and an end in order: %v", got, orderly)
	}
	overBudgetEnd(t, w.world, 1000)
}
