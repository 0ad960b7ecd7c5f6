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
