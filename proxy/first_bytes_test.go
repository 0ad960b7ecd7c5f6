package proxy

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestNobodyWaitsForASearchOfFirstBytes but the tunnel that they came in, which another sandbox keeps waiting for
// its turn. There is one loop.
func TestNobodyWaitsForASearchOfFirstBytes(t *testing.T) {
	t.Parallel()
	w := newBusyWorld(t, 0)
	up := echo(t)
	c := w.dial(t).send(connectTo("opaque.test", up.port)).expect(established).send("\x00\x01\x02")
	w.wait(t, 1)
	w.dial(t).send(connectTo("evil.test", up.port)).expect("HTTP/1.1 403")
	w.dial(t).send(connectTo("opaque.test", up.port)).expect(established)
	c.send("behind")
	w.forwarder.Scanning.Give()
	c.expect("\x00\x01\x02behind")
	if !w.forwarder.Scanning.TakeNow() {
		t.Error("the turn was not given back")
	}
}

// TestWhatHappensWhileFirstBytesWaitForTheirSearch to their tunnel. None of them go up.
func TestWhatHappensWhileFirstBytesWaitForTheirSearch(t *testing.T) {
	for says, row := range map[string]struct {
		limits   Limits
		patience time.Duration
		happens  func(t *testing.T, w *inspectWorld, c *testClient)
		outcome  string
	}{
		"the client breaks off": {outcome: "client-left", happens: func(_ *testing.T, _ *inspectWorld, c *testClient) {
			c.Conn.(*net.TCPConn).SetLinger(0)
			c.Close()
		}},
		"an operator cuts it": {outcome: "cut", happens: func(_ *testing.T, w *inspectWorld, _ *testClient) {
			open, _ := w.Gate.Flows.Page(0, 10)
			for _, f := range open {
				id, _ := record.ParseID(f.ID)
				w.Gate.Flows.Cut(id)
			}
		}},
		"a policy refuses it": {outcome: "cut", happens: func(t *testing.T, w *inspectWorld, _ *testClient) {
			w.obey(t, "version: 1\nallow: [other.test]\n")
		}},
		"the server ends": {outcome: "cut", happens: func(_ *testing.T, w *inspectWorld, _ *testClient) {
			ended, now := context.WithCancel(context.Background())
			now()
			w.Shutdown(ended)
		}},
		"its turn does not come":             {outcome: string(policy.TooManyFlows), patience: 50 * time.Millisecond},
		"nor within the time of first bytes": {outcome: string(policy.TooManyFlows), limits: Limits{Hello: 4 * time.Second}},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w := newServedWorld(t, canaryPolicy, func(s *Server) {
				s.Limits, s.forwarder.Scanning, s.forwarder.ScanPatience = row.limits, fair.NewTurns(1), row.patience
			}, nil)
			guarded(t, w)
			w.anotherTakes(t)
			up := newWitness(t, "")
			c := w.dial(t).send(connectTo("opaque.test", up.port)).expect(established).send("\x00\x01\x02")
			if row.happens != nil {
				w.wait(t, 1)
				row.happens(t, w, c)
			}
			r := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindClose })
			if r.Outcome != record.Outcome(row.outcome) || up.got() != "" {
				t.Errorf("recorded %+v, the upstream got %q", r, up.got())
			}
			w.wait(t, 0)
		})
	}
}
