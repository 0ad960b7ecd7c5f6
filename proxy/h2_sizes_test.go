package proxy

import (
	"bytes"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
)

// TestAnUpstreamDoesNotSayHowMuchIsHeld has one that takes large frames get small ones.
func TestAnUpstreamDoesNotSayHowMuchIsHeld(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	largest := make(chan uint32, 1)
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
		f := &frames{http2.NewFramer(c, c)}
		f.SetMaxReadFrameSize(1 << 20)
		f.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 24})
		f.WriteWindowUpdate(0, 1<<24)
		most := uint32(0)
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if data, ok := frame.(*http2.DataFrame); ok {
				if most = max(most, data.Length); data.StreamEnded() {
					largest <- most
					f.respond(data.StreamID, "fine", true)
				}
			}
		}
	}, "h2")
	body := bytes.NewReader(make([]byte, 2<<20))
	if r := ask(t, w.visitor(t, true, "allowed.test", o.port), "POST", o.url("allowed.test", "/public/x"), body); r.body != "fine" {
		t.Fatal(r.all())
	}
	if most := <-largest; most == 0 || most > 16<<10 {
		t.Errorf("a frame of %d bytes went up", most)
	}
}
