package exchange

import (
	"bufio"
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/egress/egresstest"
)

// TestTheEndOfAWebSocketLeavesNothingBehind, such as a timer that ends what its connection does next.
func TestTheEndOfAWebSocketLeavesNothingBehind(t *testing.T) {
	gate, flow, _ := egresstest.OpenFlow(t, "1")
	server := &Forwarder{}
	server.Prepare(gate, nil, Limits{})
	x := &h1Exchange{Exchange: &Exchange{Flow: flow}}
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
