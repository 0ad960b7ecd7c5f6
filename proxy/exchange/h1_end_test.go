package exchange

import (
	"bufio"
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/egresstest"
	"github.com/egressd/egressd/internal/http1"
)

// TestTheEndOfAWebSocketLeavesNothingBehind, such as a timer that ends what its connection does next.
func TestTheEndOfAWebSocketLeavesNothingBehind(t *testing.T) {
	gate, flow, _ := egresstest.OpenFlow(t, "1")
	server := &Forwarder{}
	server.Prepare(gate, nil, Limits{})
	x := &h1Exchange{Exchange: &Exchange{Flow: flow, WebSocket: true}}
	synctest.Test(t, func(t *testing.T) {
		inner, visitor := net.Pipe()
		far, origin := net.Pipe()
		v := &h1Conn{Client: &Client{Forwarder: server, Conn: inner}, in: bufio.NewReader(inner), up: h1Upstream{conn: far, in: bufio.NewReader(far)}}
		x.conn = v
		v.ctx, v.cancel = context.WithCancel(t.Context())
		defer v.cancel()
		visitor.Close()
		origin.Close()
		x.bothWays()
		time.Sleep(time.Hour)
		if v.ctx.Err() != nil {
			t.Error("a timer has gone off since")
		}
		v.dropUpstream()
		v.closeUpstream()
		v.windDown(errTooOld) // by the timer of its lifetime, which went off as it ended
		if v.ctx.Err() != nil {
			t.Error("it ends once more")
		}
	})
}

// TestABodyThatMovesIsNotIdle however long it takes as a whole.
func TestABodyThatMovesIsNotIdle(t *testing.T) {
	gate, flow, _ := egresstest.OpenFlow(t, "1")
	server := &Forwarder{}
	server.Prepare(gate, nil, Limits{})
	x := &h1Exchange{Exchange: &Exchange{Flow: flow}}
	synctest.Test(t, func(t *testing.T) {
		inner, visitor := net.Pipe()
		far, origin := net.Pipe()
		v := &h1Conn{Client: &Client{Forwarder: server, Conn: inner}, in: bufio.NewReader(inner), up: h1Upstream{conn: far, in: bufio.NewReader(far)}}
		x.conn = v
		const pieces = 10
		go func() {
			for range pieces {
				time.Sleep(server.Limits.Idle * 3 / 4)
				origin.Write([]byte("x"))
			}
			origin.Close()
		}()
		go io.Copy(io.Discard, visitor)
		v.extend()
		if err := x.answer([]byte("head"), http1.Framing{Kind: http1.BodyLength, Length: pieces}, false); err != nil {
			t.Error(err)
		}
		inner.Close()
		far.Close()
	})
}

// broken are ends in which there is a mistake.
type broken struct{ Ends }

func (broken) Reach(bool) error { panic("a mistake") }

// TestAPanicLeavesNoFlowOpen, whose close record would never come.
func TestAPanicLeavesNoFlowOpen(t *testing.T) {
	gate, _, dst := egresstest.OpenFlow(t, "1")
	server := &Forwarder{}
	server.Prepare(gate, nil, Limits{})
	client := &Client{Forwarder: server, Assign: func(string, string) *egress.Refusal { return nil }}
	x := &Exchange{Client: client, Ends: broken{}, Method: "GET", Target: http1.Target{Path: "/"}, Destination: dst, Context: t.Context(), Stream: t.Context()}
	before := gate.Flows.Count()
	func() {
		defer func() { recover() }()
		x.Do()
	}()
	if x.Flow == nil || gate.Flows.Count() != before {
		t.Errorf("%d flows are open, %d were before", gate.Flows.Count(), before)
	}
}

// A half is one end of a connection with two halves, which end by themselves.
type half struct {
	net.Conn // for what nobody calls here
	in       *io.PipeReader
	out      *io.PipeWriter
}

func (h half) Read(b []byte) (int, error)  { return h.in.Read(b) }
func (h half) Write(b []byte) (int, error) { return h.out.Write(b) }
func (h half) CloseWrite() error           { return h.out.Close() }
func (h half) SetDeadline(time.Time) error { return nil }

func halves() (a, b half) {
	a.in, b.out = io.Pipe()
	b.in, a.out = io.Pipe()
	return a, b
}

// TestOneHalfOfAnotherProtocolGoesOn for longer than a WebSocket has to finish.
func TestOneHalfOfAnotherProtocolGoesOn(t *testing.T) {
	gate, flow, _ := egresstest.OpenFlow(t, "1")
	server := &Forwarder{}
	server.Prepare(gate, nil, Limits{})
	x := &h1Exchange{Exchange: &Exchange{Flow: flow}}
	synctest.Test(t, func(t *testing.T) {
		inner, visitor := halves()
		far, origin := halves()
		v := &h1Conn{Client: &Client{Forwarder: server, Conn: inner, Raw: inner}, in: bufio.NewReader(inner), up: h1Upstream{conn: far, in: bufio.NewReader(far)}}
		x.conn = v
		v.ctx, v.cancel = context.WithCancel(t.Context())
		defer v.cancel()
		go func() {
			visitor.CloseWrite()
			time.Sleep(time.Hour)
			origin.Write([]byte("late"))
			origin.CloseWrite()
		}()
		over := make(chan struct{})
		go func() { x.bothWays(); close(over) }()
		if got, err := io.ReadAll(visitor); string(got) != "late" || err != nil || v.ctx.Err() != nil {
			t.Errorf("the client reads %q, %v; the context: %v", got, err, v.ctx.Err())
		}
		<-over
	})
}
