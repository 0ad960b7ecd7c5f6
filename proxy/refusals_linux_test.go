package proxy

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// holdLog has the log stand still while it goes on after an error, as before a slow disk, until goOn is called.
func (w *world) holdLog(t *testing.T) (goOn func()) {
	t.Helper()
	held, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	changed := func(err error) {
		if err == nil {
			close(held)
			<-release
		}
	}
	w.logChanged.Store(&changed)
	unwritable, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer unwritable.Close()
	w.replaceSegment(t, unwritable)
	if w.Gate.Records.Note(record.KindStart, "fails") == nil {
		t.Fatal("the log can be written")
	}
	go func() {
		defer close(done)
		w.Gate.Records.Note(record.KindStart, "waits")
	}()
	<-held
	goOn = sync.OnceFunc(func() { close(release); <-done })
	t.Cleanup(goOn)
	return goOn
}

// unanswered fails the test if c has been answered.
func (c *testClient) unanswered() {
	c.t.Helper()
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT); err != syscall.EAGAIN {
			c.t.Errorf("it was answered before its refusal is recorded: %d bytes, %v", n, err)
		}
	})
	if err != nil {
		c.t.Error(err)
	}
}

// refusedWays are how a connection is refused on an event loop.
var refusedWays = map[string]struct {
	how    func(t *testing.T, w *world) *testClient
	answer string // "" is none
	class  policy.Class
}{
	"a malformed head": {func(t *testing.T, w *world) *testClient { return w.dial(t).send("CONNECT a b c\r\n\r\n") }, "HTTP/1.1 400 ", policy.MalformedRequest},
	"SOCKS4":           {func(t *testing.T, w *world) *testClient { return w.dial(t).send("\x04\x01\x00\x50") }, "\x00[", policy.MalformedRequest},
	"no host":          {func(t *testing.T, w *world) *testClient { return w.dial(t).send(connectTo("a..b", "443")) }, "HTTP/1.1 400 ", policy.MalformedHost},
	"a circle": {func(t *testing.T, w *world) *testClient {
		return w.capturedBy(t, "captured", netip.MustParseAddrPort("127.0.0.1:22"))
	}, "", policy.AddressDenied},
}

// TestNobodyWaitsForTheLogToTakeARefusal but who is refused. There is one loop.
func TestNobodyWaitsForTheLogToTakeARefusal(t *testing.T) {
	for says, row := range refusedWays {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t, openPolicy, nil)
			up := echo(t)
			standing := w.dial(t).send(connectTo("allowed.test", up.port)).expect(established).send("\x00one").expect("\x00one")
			goOn := w.holdLog(t)
			c := row.how(t, w)
			w.awaitRefusal(t)
			standing.send("still").expect("still")
			c.unanswered()
			goOn()
			if got := c.rest(); !strings.HasPrefix(got, row.answer) || row.answer == "" && got != "" {
				t.Errorf("answered %q", got)
			}
			w.recorded(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Class == string(row.class) })
			standing.send("still").expect("still")
		})
	}
}

// awaitRefusal waits until a goroutine waits for the log to take a refusal.
func (w *world) awaitRefusal(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		var all strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
			t.Fatal(err)
		}
		for one := range strings.SplitSeq(all.String(), "\n\n") {
			if strings.Contains(one, "audit.(*Log).Append") && (strings.Contains(one, "egress.(*Gate).Refuse") || strings.Contains(one, "egress.(*Gate).Deny")) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("no refusal waits for the log")
		}
	}
}

// TestAClientThatHangsUpDoesNotSuppressItsRefusal which waits for the log.
func TestAClientThatHangsUpDoesNotSuppressItsRefusal(t *testing.T) {
	for says, hangUp := range map[string]func(c *testClient){
		"in the middle of its head": func(c *testClient) { c.send("GET http://"); c.Close() },
		"behind it": func(c *testClient) {
			c.send("CONNECT a b c\r\n\r\n")
			c.Conn.(*net.TCPConn).SetLinger(0)
			c.Close()
		},
	} {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t, openPolicy, nil)
			up := echo(t)
			standing := w.dial(t).send(connectTo("allowed.test", up.port)).expect(established).send("\x00one").expect("\x00one")
			goOn := w.holdLog(t)
			hangUp(w.dial(t))
			w.awaitRefusal(t)
			standing.send("still").expect("still")
			goOn()
			w.recorded(t, func(r record.Record) bool {
				return r.Kind == record.KindRefused && r.Decision.Class == string(policy.MalformedRequest)
			})
		})
	}
}

// TestOneTooManyIsResetWhereTheLogIsSlow: it has no place in which it could wait for an answer. It is recorded.
func TestOneTooManyIsResetWhereTheLogIsSlow(t *testing.T) {
	w := newWorld(t, openPolicy, func(s *Server) { s.Limits.Connections = 1 })
	up := echo(t)
	standing := w.dial(t).send(connectTo("allowed.test", up.port)).expect(established).send("\x00one").expect("\x00one")
	goOn := w.holdLog(t)
	if c, err := net.Dial("tcp", w.addr); err == nil { // else it was reset already
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("answered %q", got)
		}
		c.Close()
	}
	standing.send("still").expect("still")
	goOn()
	w.recorded(t, func(r record.Record) bool {
		return r.Decision != nil && r.Decision.Class == string(policy.TooManyFlows)
	})
}

// TestAServerThatEndsWritesTheRefusalsThatWait for the log.
func TestAServerThatEndsWritesTheRefusalsThatWait(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	goOn := w.holdLog(t)
	w.dial(t).send("CONNECT a b c\r\n\r\n")
	w.awaitRefusal(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, now := context.WithCancel(context.Background())
		now()
		w.Shutdown(ctx)
	}()
	goOn()
	<-ended
	found := false
	for _, r := range w.records(t) {
		found = found || r.Kind == record.KindRefused
	}
	if !found {
		t.Error("the refusal is not recorded")
	}
}

// TestNoRefusalIsLost where more wait for the log than are kept one by one.
func TestNoRefusalIsLost(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	r, wrote := new(refusals), 0
	for i := range refusalsMost + 7 {
		taken, first := r.add(refusedAt{"tcp", policy.ViaUnknown}, func() { wrote++ })
		if taken != (i < refusalsMost) || first != (i == 0) {
			t.Fatalf("refusal %d: %v, %v", i, taken, first)
		}
	}
	r.write(w.Gate)
	if wrote != refusalsMost {
		t.Errorf("%d records of their own", wrote)
	}
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRefused && r.Times() == 7 })
	if _, first := r.add(refusedAt{}, func() {}); !first {
		t.Error("nobody would write the next one")
	}
}
