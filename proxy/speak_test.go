package proxy

import (
	"bytes"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A spoken is what a client of HTTP/2 sends.
type spoken struct {
	bytes.Buffer
	frames *http2.Framer
	block  bytes.Buffer
	pack   *hpack.Encoder
}

func newSpoken() *spoken {
	s := new(spoken)
	s.frames = http2.NewFramer(&s.Buffer, nil)
	s.frames.AllowIllegalWrites = true
	s.pack = hpack.NewEncoder(&s.block)
	s.WriteString(http2.ClientPreface)
	s.frames.WriteSettings()
	return s
}

// encode returns the block of a head.
func (s *spoken) encode(pairs ...string) []byte {
	s.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		s.pack.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return bytes.Clone(s.block.Bytes())
}

// emptyKinds are frames that carry nothing, of which an end may send so many.
var emptyKinds = map[string]func(*http2.Framer){
	"PING":                 func(f *http2.Framer) { f.WritePing(false, [8]byte{}) },
	"SETTINGS":             func(f *http2.Framer) { f.WriteSettings() },
	"WINDOW_UPDATE":        func(f *http2.Framer) { f.WriteWindowUpdate(0, 1) },
	"PRIORITY":             func(f *http2.Framer) { f.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
	"RST_STREAM":           func(f *http2.Framer) { f.WriteRSTStream(1, http2.ErrCodeCancel) },
	"DATA":                 func(f *http2.Framer) { f.WriteData(1, false, nil) },
	"DATA of padding":      func(f *http2.Framer) { f.WriteDataPadded(1, false, nil, make([]byte, 7)) },
	"CONTINUATION":         func(f *http2.Framer) { f.WriteContinuation(1, false, nil) },
	"GOAWAY":               func(f *http2.Framer) { f.WriteGoAway(1<<31-1, 0, []byte("bye")) },
	"what nobody knows of": func(f *http2.Framer) { f.WriteRawFrame(0xfa, 0, 1, []byte("x")) },
}

// sentAs returns n frames as they are sent.
func sentAs(n int, write func(*http2.Framer)) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	f.AllowIllegalWrites = true
	for range n {
		write(f)
	}
	return b.Bytes()
}
