package proxy

import (
	"net"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/sandbox/foreign"
)

// A tunnel is what is left of a connection once its bytes are carried. Thousands are idle at a time.
type tunnel struct {
	carry.Tunnel
	server  *Server
	flow    *egress.Flow
	holder  *connHolder     // whose connection it is
	refused *egress.Refusal // what ended it, or nil; set before it ends
}

// carry judges the client's first bytes, and has a tunnel carry them and what follows.
func (c *conn) carry(upstream net.Conn) {
	t := &tunnel{server: c.server, flow: c.flow, holder: c.admission.holder}
	c.server.carrying.Begin(&t.Tunnel, c.Conn, upstream, t, c.server.limitsFor(c.flow.Meter(), c.far()))
	c.carried, c.flow = true, nil
	t.flow.OnChange(func() {
		if t.changed(); t.flow.WasCut() {
			c.cancel(errCut)
		}
	})
	(&firstBytes{conn: c, tunnel: t, upstream: upstream, clientFirst: clientFirst(t.flow)}).judge()
}

// far reports whether the client has a network of its own. A packet filter there, which the sandbox may administer, runs
// within calls on the connection.
func (c *conn) far() bool {
	_, foreignOwned := c.listener.Listener.(foreign.Listener)
	addr := c.came.Addr.Addr()
	return foreignOwned || addr.IsValid() && !addr.IsLoopback()
}

// changed looks at what a later policy has made of the flow.
func (t *tunnel) changed() {
	if t.flow.WasCut() {
		t.End(carry.WasCut)
		return
	}
	t.Limit(t.flow.Budget())
}

// Spend implements [carry.Owner].
func (t *tunnel) Spend(bytes int) bool { return t.flow.Spend(int64(bytes)) == nil }

// Ended implements [carry.Owner].
func (t *tunnel) Ended(e carry.End) {
	if e.Why == carry.OverBudget {
		t.flow.Exceeded()
	}
	outcome := string(e.Why)
	if t.refused != nil && e.Why == carry.Refused {
		outcome = string(t.refused.Decision.Class)
	}
	t.flow.Close(egress.End{Up: e.Up, Down: e.Down, Outcome: outcome})
	t.server.connections.releaseHeld(t.holder)
}
