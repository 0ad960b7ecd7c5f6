package inspect

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/internal/tokens"
)

// Bounds of frames that carry neither a head nor a part of a body, in one direction of a connection. Each
// frame to a peer allows more of them from this peer, since the peer may have to acknowledge the frame. The HTTP/2 library accepts any
// number, and each costs a hundred times what its bytes cost to send (CVE-2019-9512, -9515, -9518). Frames on
// a stream that has ended count as empty, too.
const (
	emptyAtOnce  = 1000
	emptyRate    = 20 // a second
	emptyForHead = 40 // interim responses, trailers, what ends a stream
	emptyForData = 10 // WINDOW_UPDATE for both windows, and PING by who measures
	emptyForOwn  = 4  // of a client's heads, which are bounded and recorded as requests: what it takes to give one up
	emptySaved   = 1 << 20
)

var errEmptyFrames = errors.New("too many frames that carry nothing")

// emptyFrameLimit counts such frames of one end. Its methods are for who reads, but for sends.
type emptyFrameLimit struct {
	heads    bool // those that the end sends count too; it is an upstream, and opens no streams
	streams  *openStreams
	from, to frameWalk
	earned   atomic.Int64
	bucket   tokens.Bucket
	spent    bool
}

func newEmptyFrameLimit(heads bool) *emptyFrameLimit {
	return &emptyFrameLimit{heads: heads, streams: newOpenStreams(), bucket: tokens.Bucket{Rate: emptyRate, Most: emptyAtOnce}}
}

// preface is where a walk begins along what a client sends (RFC 9113 §3.4).
var preface = frameWalk{have: frameHeadSize, left: len(http2.ClientPreface)}

// received is given everything that the end sends, and returns [errEmptyFrames] once that was
// too much.
func (e *emptyFrameLimit) received(b []byte) error {
	e.from.see(b, func(f frameSeen) {
		if e.carries(f) || e.takeEarned() {
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

// carries reports whether a frame that the end sends is none of those that count.
func (e *emptyFrameLimit) carries(f frameSeen) bool {
	switch f.kind {
	case http2.FrameData:
		may := e.streams.carry(f.stream, f.length)
		return (!f.ends() || e.streams.end(f.stream)) && may && f.carries()
	case http2.FrameHeaders:
		return e.headCarries(f)
	case http2.FrameRSTStream:
		e.streams.end(f.stream)
	}
	return false
}

// headCarries is free for the head of a request, of an answer, or a trailer.
func (e *emptyFrameLimit) headCarries(f frameSeen) bool {
	trailer := f.ends() && e.streams.end(f.stream)
	if e.heads {
		return false
	}
	opens := e.streams.begin(f.stream)
	if opens {
		e.earn(emptyForOwn)
	}
	if f.ends() {
		e.streams.end(f.stream)
	}
	return opens || trailer
}

func (e *emptyFrameLimit) takeEarned() bool {
	if e.earned.Add(-1) >= 0 {
		return true
	}
	e.earned.Add(1)
	return false
}

// sent is given everything that the end is sent, before it is. It is for who writes.
func (e *emptyFrameLimit) sent(b []byte) {
	e.to.see(b, func(f frameSeen) {
		switch f.kind {
		case http2.FrameHeaders:
			e.earn(emptyForHead)
			if e.heads {
				e.streams.begin(f.stream)
			}
		case http2.FrameData:
			e.earn(emptyForData)
		case http2.FrameRSTStream:
			e.streams.reset(f.stream)
		case http2.FrameWindowUpdate:
			if f.stream == 0 {
				e.streams.grant(f.word)
			}
		case http2.FrameGoAway:
			if !e.heads {
				e.streams.leave(uint32(f.word))
			}
		}
	})
}

func (e *emptyFrameLimit) earn(more int64) {
	if e.earned.Load() < emptySaved {
		e.earned.Add(more)
	}
}

// A frameSeen is what is known of a frame by its first bytes.
type frameSeen struct {
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
	length int // of the payload, which is what flow control counts of DATA
	data   int // the same, without padding
	word   int // what WINDOW_UPDATE grants, or the last stream of GOAWAY
}

// carries reports whether DATA is some of a body, or the end of one.
func (f frameSeen) carries() bool { return f.data > 0 || f.ends() }

// ends reports whether DATA or HEADERS is the last of what its end sends on a stream.
func (f frameSeen) ends() bool { return f.flags.Has(http2.FlagDataEndStream) }

// A frameWalk goes along frames that come in pieces of any size.
type frameWalk struct {
	head  [frameHeadSize]byte
	have  int    // of head
	left  int    // of the frame's payload
	wants int    // bytes of it that say more of the frame
	first uint32 // those of them that came
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
		case w.wants > 0:
			w.first = w.first<<8 | uint32(b[0])
			w.left, w.wants, b = w.left-1, w.wants-1, b[1:]
			if w.wants == 0 {
				each(w.seen())
			}
		default:
			n := min(len(b), w.left)
			w.left, b = w.left-n, b[n:]
		}
	}
}

func (w *frameWalk) begin(each func(frameSeen)) {
	w.left, w.first = payloadLength(w.head[:]), 0
	w.wants = w.saysMore()
	if w.left < w.wants { // and breaks the rules
		w.wants = 0
	}
	if w.wants == 0 {
		each(w.seen())
	}
}

// saysMore is how many bytes of the payload are of use.
func (w *frameWalk) saysMore() int {
	switch kind := http2.FrameType(w.head[3]); {
	case kind == http2.FrameData && http2.Flags(w.head[4]).Has(http2.FlagDataPadded):
		return 1
	case kind == http2.FrameWindowUpdate, kind == http2.FrameGoAway:
		return 4
	}
	return 0
}

func (w *frameWalk) seen() frameSeen {
	f := frameSeen{kind: http2.FrameType(w.head[3]), flags: http2.Flags(w.head[4]), length: payloadLength(w.head[:])}
	f.stream = binary.BigEndian.Uint32(w.head[5:]) & (1<<31 - 1)
	f.data, f.word = f.length, int(w.first&(1<<31-1))
	if f.flags.Has(http2.FlagDataPadded) && f.length > 0 {
		f.data -= 1 + f.word
	}
	return f
}

// openStreams holds the streams on which one end may send parts of a body. An end may send on a stream until
// it has ended the stream itself. If the other end ends the stream, bytes may still be under way: as many as
// flow control had granted for the whole connection by then. An end that sends more has read a later grant,
// and therefore the reset before it (RFC 9113 §5.1, §6.9). The methods are safe for concurrent use.
type openStreams struct {
	mu      sync.Mutex
	newest  uint32
	open    map[uint32]bool
	late    map[uint32]int64 // of those that the other end has ended: what was granted by then
	order   []uint32         // those in late and some that were, the oldest at next once it is full
	next    int
	granted int64 // bytes, since the connection began
	used    int64

	left   bool   // the other end takes none that are newer than final
	final  uint32 // RFC 9113 §6.8
	leftAt int64  // what was granted by then
}

const (
	firstWindow = 64<<10 - 1 // RFC 9113 §6.9.2
	lateMost    = 4 * streamsMost
)

func newOpenStreams() *openStreams {
	return &openStreams{open: map[uint32]bool{}, late: map[uint32]int64{}, granted: firstWindow}
}

// begin notes a head on a stream, and reports whether it opens one.
func (o *openStreams) begin(id uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if id <= o.newest {
		return false
	}
	o.newest = id
	if o.left && id > o.final {
		o.keep(id, o.leftAt)
		return false
	}
	o.open[id] = true
	return true
}

// end notes that the sending end has ended a stream. It reports whether that stream was open.
func (o *openStreams) end(id uint32) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, late := o.late[id]
	could := late || o.open[id]
	delete(o.open, id)
	delete(o.late, id)
	return could
}

// reset notes that the other end ends a stream.
func (o *openStreams) reset(id uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open[id] {
		delete(o.open, id)
		o.keep(id, o.granted)
	}
}

// leave notes that the other end takes no streams that are newer than final.
func (o *openStreams) leave(final uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left, o.final, o.leftAt = true, final, o.granted
	for id := range o.open {
		if id > final {
			delete(o.open, id)
			o.keep(id, o.granted)
		}
	}
}

// keep counts a stream as late. The number of open streams is bounded, so only the latest late streams are
// kept.
func (o *openStreams) keep(id uint32, granted int64) {
	if len(o.order) < lateMost {
		o.order = append(o.order, id)
	} else {
		delete(o.late, o.order[o.next])
		o.order[o.next] = id
		o.next = (o.next + 1) % lateMost
	}
	o.late[id] = granted
}

func (o *openStreams) grant(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.granted += int64(n)
}

// carry notes n bytes of a body, with their padding, and reports whether they may be sent.
func (o *openStreams) carry(id uint32, n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.used += int64(n)
	granted, late := o.late[id]
	return o.open[id] || late && o.used <= granted
}
