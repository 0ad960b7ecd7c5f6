package proxy

import "encoding/binary"

// Frames of a WebSocket: kinds and bits of the first two bytes (RFC 6455 §5.2).
const (
	frameLast     = 0x80 // of its message
	frameReserved = 0x70 // for extensions
	frameKind     = 0x0f
	frameMasked   = 0x80 // in the second byte
	frameLength   = 0x7f

	kindContinued = 0
	kindText      = 1
	kindBinary    = 2
	kindClose     = 8
	kindPing      = 9
	kindPong      = 10

	controlMost = 125 // bytes of a control frame (RFC 6455 §5.5)
)

// A frameReader reads the heads of the frames that one end of a WebSocket sends. It
// accepts what RFC 6455 §5 lets that end send where no extension was agreed on.
type frameReader struct {
	fromClient bool // whose frames are masked, and no others (§5.1)

	head    []byte // of the frame that comes, until it is complete
	left    uint64 // bytes of payload that have yet to come
	mask    [4]byte
	control bool
	last    bool // of its message
	open    bool // a message has begun and not ended
	closed  bool // a close frame has come, behind which there are no messages (§5.5.1)
}

// next takes a byte of a head. complete is that head, valid until the next call, or nil
// where more of it has to come. ok is false for a head that this end may not send.
func (f *frameReader) next(c byte) (complete []byte, ok bool) {
	f.head = append(f.head, c)
	h := f.head
	switch {
	case len(h) == 1:
		return nil, f.first(c)
	case len(h) == 2 && !f.second(c):
		return nil, false
	case len(h) < f.size():
		return nil, true
	}
	if !f.length() {
		return nil, false
	}
	f.mask = [4]byte{}
	if f.fromClient {
		copy(f.mask[:], h[len(h)-len(f.mask):])
	}
	f.head = h[:0]
	return h, true
}

// first reports whether a frame of this kind may stand here (§5.2, §5.4, §5.5).
func (f *frameReader) first(c byte) bool {
	f.last, f.control = c&frameLast != 0, false
	if c&frameReserved != 0 {
		return false
	}
	switch c & frameKind {
	case kindContinued:
		return f.begins(f.open)
	case kindText, kindBinary:
		return f.begins(!f.open)
	case kindClose, kindPing, kindPong:
		f.control = true
		f.closed = f.closed || c&frameKind == kindClose
		return f.last
	}
	return false
}

// begins begins a frame of a message where it may stand there.
func (f *frameReader) begins(allowed bool) bool {
	f.open = !f.last
	return allowed && !f.closed
}

// second reports whether the frame is masked as it has to be, and a control frame short.
func (f *frameReader) second(c byte) bool {
	short := c & frameLength
	if f.control && (short > controlMost || f.head[0]&frameKind == kindClose && short == 1) {
		return false
	}
	return (c&frameMasked != 0) == f.fromClient
}

// size is the length of the head, whose first two bytes have come.
func (f *frameReader) size() int {
	size := 2
	switch f.head[1] & frameLength {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if f.fromClient {
		size += len(f.mask)
	}
	return size
}

// length reads how long the payload is. It reports false where that is more than 63
// bits, or written in more bytes than needed (§5.2).
func (f *frameReader) length() bool {
	switch short := f.head[1] & frameLength; short {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.head[2:]))
		return f.left > 125
	case 127:
		f.left = binary.BigEndian.Uint64(f.head[2:])
		return f.left > 0xffff && f.left>>63 == 0
	default:
		f.left = uint64(short)
		return true
	}
}
