package proxy

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"golang.org/x/net/http2"
)

// TestAnUpstreamThatFloods is left, and the record says why.
func TestAnUpstreamThatFloods(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	var flood bytes.Buffer
	for pings := http2.NewFramer(&flood, nil); flood.Len() < 100_000*17; {
		pings.WritePing(false, [8]byte{})
	}
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		serveFrames(c).request()
		go c.Write(flood.Bytes())
		io.Copy(io.Discard, c)
	}, "h2")
	r := ask(t, w.visitor(t, true, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/x"), nil)
	r.refused(t, 502, policy.MalformedResponse)
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/x")))); !strings.Contains(end.Note, "too many frames that carry nothing") {
		t.Errorf("ended %+v", end)
	}
}
