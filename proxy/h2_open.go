package proxy

import "sync"

// openStreams are the streams on which one end of a connection of HTTP/2 may send parts of a
// body: until it has ended them itself, and where the other end has, until it must have
// read so. By then it may have sent as much as flow control had granted it for the whole
// connection. Who uses more has read what was granted later, and the reset before it (RFC
// 9113 §5.1, §6.9). The methods are safe for concurrent use.
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

// end notes that the end that sends has ended a stream, and reports whether it could.
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

// keep has a stream be late. No end has more that it holds for open than there may be at a
// time, so that only the latest count.
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
