package inspect

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

// head writes a head, in as many frames as parts says, padded.
func (s *spoken) head(stream uint32, parts int, pairs ...string) {
	block := s.encode(pairs...)
	size := len(block)/parts + 1
	first := block[:min(size, len(block))]
	s.frames.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: first, EndHeaders: parts == 1, PadLength: 7,
		Priority: http2.PriorityParam{Weight: 3},
	})
	block = block[len(first):]
	for part := 1; part < parts; part++ {
		n := min(size, len(block))
		s.frames.WriteContinuation(stream, part == parts-1, block[:n])
		block = block[n:]
	}
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

// headOf writes the head of a request, or of an answer.
func headOf(id uint32, end bool) func(*http2.Framer) {
	return func(f *http2.Framer) {
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: end})
	}
}

// heads writes the heads of streams, each newer than the last, from 3 on.
func heads(end bool) func(*http2.Framer) {
	id := uint32(1)
	return func(f *http2.Framer) {
		id += 2
		headOf(id, end)(f)
	}
}
