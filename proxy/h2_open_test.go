package proxy

import (
	"net/http"
	"testing"

	"golang.org/x/net/http2"
)

// TestUploadsThatAreRefused go on in small pieces, as if the client had not read that they are.
func TestUploadsThatAreRefused(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, true, func(http.ResponseWriter, *http.Request) {}, nil)
	s := startSpeaking(t, w.tunnel(t, "allowed.test", o.port, "h2"))
	for id := uint32(1); id <= 5; id += 2 {
		block := s.encode(":method", "POST", ":scheme", "https", ":authority", "allowed.test:"+o.port, ":path", "/private")
		s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
		s.flush(t)
		s.until(t, func(f http2.Frame) bool { return f.Header().Type == http2.FrameRSTStream && f.Header().StreamID == id })
		for range 2000 {
			s.frames.WriteData(id, false, []byte("x"))
		}
		s.flush(t)
	}
	s.frames.WritePing(false, [8]byte{})
	s.flush(t)
	s.until(t, func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
}
