package proxy

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestAnUpstreamThatFloods is left, and the record says why.
func TestAnUpstreamThatFloods(t *testing.T) {
	w := newInsideWorld(t, insidePolicy, nil)
	flood := sentAs(100_000, emptyKinds["PING"])
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		serveFrames(c).request()
		go c.Write(flood)
		io.Copy(io.Discard, c)
	}, "h2")
	r := ask(t, w.visitor(t, true, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/x"), nil)
	r.refused(t, 502, policy.NetworkTLS)
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/x")))); !strings.Contains(end.Note, "too many frames that carry nothing") {
		t.Errorf("ended %+v", end)
	}
}
