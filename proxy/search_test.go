package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// newBusyWorld has canaries and one turn to search for them, which another sandbox has.
func newBusyWorld(t *testing.T, patience time.Duration) *inspectWorld {
	t.Helper()
	w := newServedWorld(t, canaryPolicy, func(s *Server) { s.forwarder.Scanning, s.forwarder.ScanPatience = fair.NewTurns(1), patience }, nil)
	guarded(t, w)
	w.anotherTakes(t)
	return w
}

func (w *inspectWorld) anotherTakes(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := w.forwarder.Scanning.Take(ctx, "another", "another"); err != nil {
		t.Fatalf("another sandbox has no turn: %v", err)
	}
}

// wait waits until so many wait for a turn.
func (w *inspectWorld) wait(t *testing.T, want int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); w.forwarder.Scanning.Waiting() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d wait for a turn, want %d", w.forwarder.Scanning.Waiting(), want)
		}
	}
}

// post sends a body, and hands on what is answered.
func (w *inspectWorld) post(t *testing.T, rt http.RoundTripper, o *origin, body string) chan reply {
	answer := make(chan reply, 1)
	go func() { answer <- ask(t, rt, "POST", o.url("allowed.test", "/up"), strings.NewReader(body)) }()
	return answer
}

// TestABodyIsSearchedInTurn, whatever it is: nothing of it goes up before.
func TestABodyIsSearchedInTurn(t *testing.T) {
	for says, body := range map[string]string{"plain": "hello", "gzip": gzipped("hello")} {
		t.Run(says, func(t *testing.T) {
			eachVersion(t, func(t *testing.T, overH2 bool) {
				w := newBusyWorld(t, 0)
				told := new(leaked)
				o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) { io.Copy(told, r.Body) }, nil)
				answer := w.post(t, w.visitor(t, overH2, "allowed.test", o.port), o, body)
				w.wait(t, 1)
				told.mu.Lock()
				if told.text.Len() > 0 {
					t.Errorf("the origin was told %q unsearched", told.text.String())
				}
				told.mu.Unlock()
				w.forwarder.Scanning.Give()
				if r := <-answer; r.StatusCode != 200 || told.text.String() != body {
					t.Errorf("%s; the origin was told %q", r.all(), told.text.String())
				}
				if !w.forwarder.Scanning.TakeNow() {
					t.Error("the turn was not given back")
				}
			})
		})
	}
}

// TestAMessageIsSearchedInTurn, in a WebSocket.
func TestAMessageIsSearchedInTurn(t *testing.T) {
	w := newBusyWorld(t, 0)
	o := w.pki.rawOrigin(t, func(c net.Conn) { talk(t, c, func(c net.Conn) { io.Copy(c, c) }) })
	c := w.inside(t, "allowed.test", o.port)
	c.send(insideGet("allowed.test", o.port, "/live", webSocketFields...))
	if status := c.head(); status != http.StatusSwitchingProtocols {
		t.Fatalf("answered %d", status)
	}
	c.send(emptyFrame)
	w.wait(t, 1)
	w.forwarder.Scanning.Give()
	c.expect(emptyFrame)
	w.anotherTakes(t)
	c.send(frame(rand.New(rand.NewPCG(1, 1)), 0x81, "hello"))
	w.wait(t, 1)
	w.obey(t, "version: 1\nallow: [other.test]\n")
	w.wait(t, 0) // it was cut
}

// TestASearchThatWaitsTooLongIsRefused, and no byte goes up.
func TestASearchThatWaitsTooLongIsRefused(t *testing.T) {
	for says, body := range map[string]string{"plain": "hello", "gzip": gzipped("hello")} {
		t.Run(says, func(t *testing.T) {
			eachVersion(t, func(t *testing.T, overH2 bool) {
				w := newBusyWorld(t, 50*time.Millisecond)
				told := new(leaked)
				o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) { io.Copy(told, r.Body) }, nil)
				r := <-w.post(t, w.visitor(t, overH2, "allowed.test", o.port), o, body)
				r.refused(t, 429, policy.TooManyFlows)
				w.recorded(t, ended(string(policy.TooManyFlows)))
				w.wait(t, 0)
				if told.mu.Lock(); told.text.Len() > 0 {
					t.Errorf("the origin was told %q unsearched", told.text.String())
				}
				told.mu.Unlock()
			})
		})
	}
}

// TestASearchIsNotTakenForASilentNetwork: its patience ends before the connections do that are idle meanwhile.
func TestASearchIsNotTakenForASilentNetwork(t *testing.T) {
	t.Parallel()
	for says, body := range map[string]string{"plain": "hello", "gzip": gzipped("hello")} {
		t.Run(says, func(t *testing.T) {
			eachVersion(t, func(t *testing.T, overH2 bool) {
				t.Parallel()
				w := newServedWorld(t, canaryPolicy, func(s *Server) { s.Limits.Idle, s.forwarder.Scanning = 4*time.Second, fair.NewTurns(1) }, nil)
				guarded(t, w)
				w.anotherTakes(t)
				o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, nil)
				r := <-w.post(t, w.visitor(t, overH2, "allowed.test", o.port), o, body)
				r.refused(t, 429, policy.TooManyFlows)
			})
		})
	}
}

// TestNobodyWaitsForATurnInVain: not where the answer is there already, nor where a policy has
// cut the request, nor where the client has reset it.
func TestNobodyWaitsForATurnInVain(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		t.Run("answered", func(t *testing.T) {
			w := newBusyWorld(t, 0)
			waits := make(chan struct{})
			o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
				<-waits
				http.NewResponseController(rw).EnableFullDuplex() // or the server reads the body first, over HTTP/1
				rw.WriteHeader(http.StatusRequestEntityTooLarge)
			}, nil)
			answer := w.post(t, w.visitor(t, overH2, "allowed.test", o.port), o, gzipped("hello"))
			w.wait(t, 1)
			close(waits)
			if r := <-answer; r.StatusCode != http.StatusRequestEntityTooLarge {
				t.Error(r.all())
			}
			w.wait(t, 0)
		})
		t.Run("cut", func(t *testing.T) {
			w := newBusyWorld(t, 0)
			o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, nil)
			left := w.send(t, t.Context(), w.visitor(t, overH2, "allowed.test", o.port), o)
			w.wait(t, 1)
			w.obey(t, "version: 1\nallow: [other.test]\n")
			<-left
			w.wait(t, 0)
			w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindClose })
		})
	})
	t.Run("reset", func(t *testing.T) {
		w := newBusyWorld(t, 0)
		o := w.pki.secureOrigin(t, true, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, nil)
		ctx, leave := context.WithCancel(t.Context())
		left := w.send(t, ctx, w.visitor(t, true, "allowed.test", o.port), o)
		w.wait(t, 1)
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		w.wait(t, 0)
	})
}

// send sends a body that is searched as a whole, and hands on what comes of it.
func (w *inspectWorld) send(t *testing.T, ctx context.Context, rt http.RoundTripper, o *origin) chan error {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", o.url("allowed.test", "/up"), bytes.NewReader([]byte(gzipped("hello"))))
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		resp, err := rt.RoundTrip(r)
		if err == nil {
			resp.Body.Close()
		}
		left <- err
	}()
	return left
}
