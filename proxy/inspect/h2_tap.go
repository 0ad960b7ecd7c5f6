package inspect

import (
	"crypto/tls"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
)

// A frameTap is one connection of an HTTP/2 library, whose frames are seen on their way.
type frameTap struct {
	*tls.Conn
	in, out frameWalk
	check   func() error // called after each read; an error ends the connection
	closed  func()       // called when the connection is closed, maybe more than once
	greeted atomic.Bool  // the other end has sent a whole preface, if it has to
}

func (t *frameTap) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.in.see(b[:n])
	t.greeted.Store(t.in.preface == 0)
	if broken := t.check(); broken != nil {
		return 0, broken
	}
	return n, err
}

// Write implements [net.Conn].
func (t *frameTap) Write(b []byte) (int, error) {
	t.out.see(b)
	return t.Conn.Write(b)
}

// Close implements [net.Conn].
func (t *frameTap) Close() error {
	t.closed()
	return t.Conn.Close()
}

// tapClient returns client as the library is to read it. report is called for each problem, while the library reads.
// patience runs while a head is not complete; nil means that a head may take any time.
func tapClient(client *tls.Conn, headBytes int, patience *countdown, report func(problem string)) *frameTap {
	heads, empty := newHeadWatch(headBytes, patience, report), newEmptyFrameLimit(false)
	reportEmpty := sync.OnceFunc(func() { report(errEmptyFrames.Error()) })
	t := &frameTap{Conn: client, closed: func() {}}
	t.in = frameWalk{preface: len(http2.ClientPreface), payload: heads.payload, begin: func(f frame) {
		heads.begin(f)
		empty.received(f)
	}}
	t.out.begin = empty.sent
	t.check = func() error {
		heads.hurry(t.in.inHead())
		if heads.parts > headParts {
			return errHeadParts
		}
		if empty.spent {
			reportEmpty()
		}
		return empty.err()
	}
	return t
}

// tapUpstream returns an upstream's connection as the library is to use it.
func tapUpstream(upstream *tls.Conn, closed func()) *frameTap {
	empty := newEmptyFrameLimit(true)
	return &frameTap{
		Conn: upstream, check: empty.err, closed: closed,
		in:  frameWalk{begin: empty.received, payload: hideFrameSize},
		out: frameWalk{begin: empty.sent, preface: len(http2.ClientPreface)},
	}
}

// hideFrameSize makes SETTINGS_MAX_FRAME_SIZE a setting that nobody knows, so that the upstream gets frames of the
// usual size (RFC 9113 §6.5.2). The library keeps a buffer of that size, up to 512 KiB, for each request that has a
// body: thousands of requests of one sandbox would hold gigabytes.
func hideFrameSize(f frame, at int, piece []byte) {
	if f.kind != http2.FrameSettings {
		return
	}
	for i := range piece {
		const entry, low = 6, 1 // bytes of an entry; where the low byte of its identifier stands
		if (at+i)%entry == low && piece[i] == byte(http2.SettingMaxFrameSize) {
			piece[i] = 0xff // the identifiers that are in use with a high byte do not end in either
		}
	}
}

const (
	frameHeadSize = 9 // RFC 9113 §4.1
	frameWordSize = 4
)

// A frame is what is known of an HTTP/2 frame before its payload has come.
type frame struct {
	head   [frameHeadSize]byte
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
	length int // of the payload, which is what flow control counts of DATA
	word   int // the padding of DATA, what WINDOW_UPDATE grants, or the last stream of GOAWAY
}

// ends reports whether DATA or HEADERS is the last of what its end sends on a stream.
func (f frame) ends() bool { return f.flags.Has(http2.FlagDataEndStream) }

// carries reports whether DATA is some of a body, or the end of one.
func (f frame) carries() bool {
	if f.flags.Has(http2.FlagDataPadded) {
		return f.length > 1+f.word || f.ends()
	}
	return f.length > 0 || f.ends()
}

// A frameWalk goes along the frames that one end sends, in pieces of any size.
type frameWalk struct {
	preface int                                 // bytes to come before the first frame (RFC 9113 §3.4)
	begin   func(f frame)                       // called once for each frame, as soon as it is known
	payload func(f frame, at int, piece []byte) // called for the rest of its payload; may change piece; may be nil

	known [frameHeadSize + frameWordSize]byte
	have  int // of known
	frame frame
	at    int // in the frame's payload
}

func (w *frameWalk) see(b []byte) {
	for len(b) > 0 {
		var n int
		switch {
		case w.preface > 0:
			n = min(w.preface, len(b))
			w.preface -= n
		case w.at < w.frame.length:
			n = min(w.frame.length-w.at, len(b))
			if w.payload != nil {
				w.payload(w.frame, w.at, b[:n])
			}
			w.at += n
		default:
			n = w.know(b)
		}
		b = b[n:]
	}
}

// know takes bytes of the next frame until enough is known of it.
func (w *frameWalk) know(b []byte) int {
	n := copy(w.known[w.have:frameHeadSize+w.wordSize()], b)
	w.have += n
	if w.have == frameHeadSize+w.wordSize() {
		w.frame, w.at, w.have = w.read(), w.have-frameHeadSize, 0
		w.begin(w.frame)
	}
	return n
}

func (w *frameWalk) length() int {
	return int(w.known[0])<<16 | int(binary.BigEndian.Uint16(w.known[1:]))
}

// wordSize returns how many bytes of the payload say more of the frame.
func (w *frameWalk) wordSize() int {
	size := 0
	switch kind := http2.FrameType(w.known[3]); {
	case w.have < frameHeadSize:
	case kind == http2.FrameData && http2.Flags(w.known[4]).Has(http2.FlagDataPadded):
		size = 1
	case kind == http2.FrameWindowUpdate, kind == http2.FrameGoAway:
		size = frameWordSize
	}
	if size > w.length() { // and breaks the rules
		return 0
	}
	return size
}

func (w *frameWalk) read() frame {
	f := frame{kind: http2.FrameType(w.known[3]), flags: http2.Flags(w.known[4]), length: w.length()}
	copy(f.head[:], w.known[:])
	f.stream = binary.BigEndian.Uint32(f.head[5:]) & (1<<31 - 1)
	for _, b := range w.known[frameHeadSize:w.have] {
		f.word = f.word<<8 | int(b)
	}
	f.word &= 1<<31 - 1
	return f
}

// inHead reports whether the head of a frame has come in part.
func (w *frameWalk) inHead() bool { return 0 < w.have && w.have < frameHeadSize }
