package proxy

import (
	"bytes"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
	"github.com/egressd/egressd/sandbox"
)

// onGoroutine hands the client, and what it has sent, to a goroutine, and
// reports whether it could.
func (c *conn) onGoroutine(b []byte, serve func(*hosted)) bool {
	c.closed = true
	c.loop.Stop(c.timer)
	c.firstBytes.preamble.stop(c.loop)
	c.loop.Forget(c.fd)
	first := bytes.Clone(b)
	socket, err := netConn(c.fd)
	if err != nil {
		c.release()
		return false
	}
	socket = c.tlsClient.wrapInner(socket)
	h := &hosted{server: c.server, came: c.peer, tlsClient: c.tlsClient, loop: c.loop}
	h.Client = forward.Client{Forwarder: &c.server.forwarder, Raw: socket, Conn: socket, Peer: c.peer, First: first, Via: policy.ViaHTTP, Assign: h.assignTo}
	if !c.server.connections.handOver(&c.admission, &h.admission, h) {
		h.evict()
		return false
	}
	if !c.server.onGoroutine(socket, &h.admission, func() { serve(h) }) {
		socket.Close()
		c.server.connections.release(&h.admission)
		return false
	}
	return true
}

// A hosted is a connection that was handed from its loop to a goroutine.
type hosted struct {
	forward.Client
	server    *Server
	loop      *relay.Loop  // where its tunnel will live
	came      sandbox.Peer // peer, as it came; final
	tlsClient *tlsClient   // of a TLS listener, or nil
	admission admission
}

// evict implements [evictable].
func (h *hosted) evict() {
	h.server.recordRefusal(h.came, policy.ViaUnknown, func() { h.server.refuseOneMore(h.came) })
	forward.Abort(h.Raw)
}

func (h *hosted) assignTo(flow *egress.Flow) *egress.Refusal {
	if h.server.connections.assign(&h.admission, flow.Holder(), flow.Sandbox()) {
		return nil
	}
	return h.server.refuseOneMore(h.Peer)
}
