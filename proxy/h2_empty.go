package proxy

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/internal/tokens"
)

// What one end of a connection of HTTP/2 may send that carries neither a request, nor an
// answer, nor any of a body: as much as a connection needs, and more for each frame that it
// was sent and may answer so. The library takes any number, and many of them cost a
// hundred times what their bytes cost to send (CVE-2019-9512, -9515, -9518).
const (
	emptyAtOnce  = 1000
	emptyRate    = 20 // a second
	emptyForHead = 40 // interim responses, trailers, what ends a stream
	emptyForData = 10 // WINDOW_UPDATE for both windows, and PING by who measures
	emptyForOwn  = 4  // of a client's heads, which are bounded and recorded as requests: what it takes to give one up
	emptySaved   = 1 << 20
)

var errEmptyFrames = errors.New("too many frames that carry nothing")

// emptyFrames counts such frames of one end. Its methods are for who reads, but for sends.
type emptyFrames struct {
	heads    bool // those that the end sends count too
	from, to frameWalk
	earned   atomic.Int64
	bucket   tokens.Bucket
	spent    bool
}

func newEmptyFrames(heads bool) *emptyFrames {
	return &emptyFrames{heads: heads, bucket: tokens.Bucket{Rate: emptyRate, Most: emptyAtOnce}}
}

// preface is where a walk begins along what a client sends (RFC 9113 §3.4).
var preface = frameWalk{have: frameHeadSize, left: len(http2.ClientPreface)}

// came is given everything that the end sends, and returns [errEmptyFrames] once that was
// too much.
func (e *emptyFrames) came(b []byte) error {
	e.from.see(b, func(f frameSeen) {
		if f.kind == http2.FrameHeaders && !e.heads {
			e.earn(emptyForOwn)
		}
		if f.carries() || f.kind == http2.FrameHeaders && !e.heads || e.takeEarned() {
			return
		}
		if ok, _ := e.bucket.Take(1, time.Now()); !ok {
			e.spent = true
		}
	})
	if e.spent {
		return errEmptyFrames
	}
	return nil
}

func (e *emptyFrames) takeEarned() bool {
	if e.earned.Add(-1) >= 0 {
		return true
	}
	e.earned.Add(1)
	return false
}

// sends is given everything that the end is sent, before it is. It is for who writes.
func (e *emptyFrames) sends(b []byte) {
	e.to.see(b, func(f frameSeen) {
		switch f.kind {
		case http2.FrameHeaders:
			e.earn(emptyForHead)
		case http2.FrameData:
			e.earn(emptyForData)
		}
	})
}

func (e *emptyFrames) earn(more int64) {
	if e.earned.Load() < emptySaved {
		e.earned.Add(more)
	}
}

// A frameSeen is what is known of a frame by its first bytes.
type frameSeen struct {
	kind  http2.FrameType
	flags http2.Flags
	data  int // bytes of the payload, for DATA without padding
}

// carries reports whether a frame is some of a body, or the end of one.
func (f frameSeen) carries() bool {
	return f.kind == http2.FrameData && (f.data > 0 || f.flags.Has(http2.FlagDataEndStream))
}

// A frameWalk goes along frames that come in pieces of any size.
type frameWalk struct {
	head   [frameHeadSize]byte
	have   int  // of head
	left   int  // of the frame's payload
	padded bool // its next byte says how much is padding
}

func (w *frameWalk) see(b []byte, each func(frameSeen)) {
	for len(b) > 0 || w.have == len(w.head) && w.left == 0 {
		switch {
		case w.have == len(w.head) && w.left == 0:
			w.have = 0
		case w.have < len(w.head):
			n := copy(w.head[w.have:], b)
			w.have, b = w.have+n, b[n:]
			if w.have == len(w.head) {
				w.begin(each)
			}
		case w.padded:
			w.padded = false
			each(w.seen(w.left - 1 - int(b[0])))
			w.left, b = w.left-1, b[1:]
		default:
			n := min(len(b), w.left)
			w.left, b = w.left-n, b[n:]
		}
	}
}

func (w *frameWalk) begin(each func(frameSeen)) {
	w.left = payloadLength(w.head[:])
	f := w.seen(w.left)
	w.padded = f.kind == http2.FrameData && f.flags.Has(http2.FlagDataPadded) && w.left > 0
	if !w.padded {
		each(f)
	}
}

func (w *frameWalk) seen(data int) frameSeen {
	return frameSeen{http2.FrameType(w.head[3]), http2.Flags(w.head[4]), data}
}
