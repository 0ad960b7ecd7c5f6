package proxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
	"golang.org/x/net/http2"
)

// TestHalfAHeadEndsItsConnection and is recorded.
func TestHalfAHeadEndsItsConnection(t *testing.T) {
	t.Parallel()
	w := newLimitedWorld(t, inspectPolicy, Limits{Head: time.Second}, nil)
	o := w.pki.secureOrigin(t, true, func(http.ResponseWriter, *http.Request) {}, nil)
	c := w.tunnel(t, "allowed.test", o.port, "h2")
	s := startSpeaking(t, c)
	s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
	s.flush(t)
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("half a head was given 30 s")
	}
	w.closed(t)
	refused := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRefused })
	if !strings.Contains(refused.Decision.Reason, "not complete in time") || w.count(t, ended("malformed-request")) != 1 {
		t.Errorf("recorded %+v", refused.Decision)
	}
}
