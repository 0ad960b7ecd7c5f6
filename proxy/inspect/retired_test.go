package inspect

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
)

// TestTheEndOfAStreamClosesIdleConnections, unless one is being made, which
// looks for them itself.
func TestTheEndOfAStreamClosesIdleConnections(t *testing.T) {
	conn := idleConn(t)
	v := &h2Conn{dialling: make(chan struct{}, 1), retired: []*http2.ClientConn{conn}}
	v.dialling <- struct{}{}
	v.streamEnded()
	if len(v.retired) != 1 || conn.State().Closed {
		t.Error("closed while a connection is made")
	}
	<-v.dialling
	if !conn.ReserveNewRequest() {
		t.Fatal("no request is taken")
	}
	v.streamEnded()
	if len(v.retired) != 1 || conn.State().Closed {
		t.Error("closed while a request is to come")
	}
	v.retired[0] = idleConn(t)
	conn = v.retired[0]
	v.streamEnded()
	if len(v.retired) != 0 || !conn.State().Closed || len(v.dialling) != 0 {
		t.Errorf("%d connections are kept; closed: %v", len(v.retired), conn.State().Closed)
	}
}

func idleConn(t *testing.T) *http2.ClientConn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	go io.Copy(io.Discard, far)
	conn, err := new(http2.Transport).NewClientConn(near)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
