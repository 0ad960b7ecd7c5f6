package inspect

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/internal/fair"
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
	heads   bool // those that the end sends count too; it is an upstream, and opens no streams
	streams *openStreams
	earned  atomic.Int64
	bucket  fair.Bucket
	spent   bool
}

func newEmptyFrameLimit(heads bool) *emptyFrameLimit {
	return &emptyFrameLimit{heads: heads, streams: newOpenStreams(), bucket: fair.Bucket{Rate: emptyRate, Most: emptyAtOnce}}
}

// received counts a frame that the end sends.
func (e *emptyFrameLimit) received(f frame) {
	if e.carries(f) || e.takeEarned() {
		return
	}
	if ok, _ := e.bucket.Take(1, time.Now()); !ok {
		e.spent = true
	}
}

// err returns [errEmptyFrames] once the end has sent too many.
func (e *emptyFrameLimit) err() error {
	if e.spent {
		return errEmptyFrames
	}
	return nil
}

// carries reports whether a frame that the end sends is none of those that count.
func (e *emptyFrameLimit) carries(f frame) bool {
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
func (e *emptyFrameLimit) headCarries(f frame) bool {
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

// sent notes a frame before it is sent to the end. It is for who writes.
func (e *emptyFrameLimit) sent(f frame) {
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
}

func (e *emptyFrameLimit) earn(more int64) {
	if e.earned.Load() < emptySaved {
		e.earned.Add(more)
	}
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
