package inspect

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/egressd/egressd/egress/egresstest"
	"github.com/egressd/egressd/proxy/exchange"
)

// TestAHandshakeEndsWithItsContext, and closes its connection.
func TestAHandshakeEndsWithItsContext(t *testing.T) {
	greeted, gone := make(chan struct{}), make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Read(make([]byte, 1))
		close(greeted)
		io.Copy(io.Discard, c)
		close(gone)
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	gate, flow, dst := egresstest.OpenFlow(t, port)
	server, in := new(exchange.Forwarder), new(Inspector)
	server.Prepare(gate, nil, exchange.Limits{})
	in.Prepare(server)
	in.Inspect(&Inspection{})
	closed, other := net.Pipe()
	closed.Close()
	other.Close()
	ctx, cancel := context.WithCancel(t.Context())
	i := &tunnel{Client: &exchange.Client{Forwarder: server}, inspector: in, inspection: in.inspection.Load(), flow: flow, dst: dst, upstream: closed}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := i.redial(ctx); err == nil {
			t.Error("the handshake was completed")
		}
	}()
	<-greeted
	cancel()
	<-done
	<-gone
}
