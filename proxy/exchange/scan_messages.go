package exchange

import (
	"slices"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// A messageScanner searches what a client sends in a WebSocket for canaries: its
// messages as one stream, its control frames as another, and all its bytes as a third,
// for upstreams that do not care for frames. It refuses frames that no client may send.
type messageScanner struct {
	flow                *egress.Flow
	plain, control, raw *egress.Guard
	turn                scanTurn

	frames frameReader
	at     int    // in the mask
	bytes  []byte // unmasked, scratch

	seen  int64  // of the stream
	held  []byte // the last of what was seen
	marks []mark // payloads that lie in what is held, the first may lie before
}

// A mark is where a frame's payload begins: in what the frames say, and in the stream.
type mark struct{ said, at int64 }

// marksMost bounds them: any number of bytes that do not count may stand in a canary.
const marksMost = 4096

// newMessageScanner returns what looks at the messages of a flow, or nil where there are
// no canaries.
func newMessageScanner(flow *egress.Flow, turns scanTurn) bodyFilter {
	plain := flow.Guard("message")
	if plain == nil {
		return nil
	}
	return &messageScanner{flow: flow, frames: frameReader{fromClient: true}, plain: plain, control: flow.Guard("control message"), raw: flow.Guard("message"), turn: turns}
}

func (l *messageScanner) scan(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if err := l.turn.begin(); err != nil {
		return nil, err
	}
	defer l.turn.end()
	if err := l.raw.See(b); err != nil {
		return nil, err
	}
	l.held = slices.Concat(l.held, b)
	for len(b) > 0 {
		n, err := l.read(b)
		if err != nil {
			return nil, err
		}
		l.seen += int64(n)
		b = b[n:]
	}
	judged := l.seen - int64(len(l.frames.head))
	free := int(min(l.free(), l.raw.Free(), judged) - (l.seen - int64(len(l.held))))
	free = min(max(free, len(l.held)-egress.HeldMost, 0), len(l.held))
	out := l.held[:free]
	l.held = l.held[free:]
	return out, nil
}

func (l *messageScanner) flush() ([]byte, error) {
	rest := l.held
	l.held = nil
	return rest, nil
}

// sent implements [bodyFilter]. Few bytes are held, so they do not count.
func (l *messageScanner) sent() {}

// free returns the offset in the stream up to which the payload may go on.
func (l *messageScanner) free() int64 {
	said := l.plain.Free()
	if said == l.plain.Seen() {
		l.marks = l.marks[max(0, len(l.marks)-1):]
		return l.seen
	}
	first := 0
	for i, m := range l.marks {
		if m.said <= said {
			first = i
		}
	}
	l.marks = l.marks[first:]
	return l.marks[0].at + said - l.marks[0].said
}

// read takes some of the next bytes of the stream, and returns how many.
func (l *messageScanner) read(b []byte) (n int, err error) {
	f := &l.frames
	if f.left == 0 {
		head, ok := f.next(b[0])
		if !ok {
			return 0, l.flow.Failed(policy.MalformedRequest, "the client's frames are none of a WebSocket, and cannot be searched for canaries")
		}
		if head != nil {
			l.begin()
		}
		return 1, nil
	}
	n = int(min(uint64(len(b)), f.left))
	l.bytes = l.bytes[:0]
	for _, c := range b[:n] {
		l.bytes = append(l.bytes, c^f.mask[l.at&3])
		l.at++
	}
	f.left -= uint64(n)
	if f.control {
		return n, l.control.See(l.bytes)
	}
	return n, l.plain.See(l.bytes)
}

// begin notes where the payload of a frame begins whose head is complete.
func (l *messageScanner) begin() {
	l.at = 0
	if l.frames.control {
		return
	}
	next := mark{l.plain.Seen(), l.seen + 1}
	switch last := len(l.marks) - 1; {
	case last >= 0 && l.marks[last].said == next.said:
		l.marks[last] = next
	case last >= marksMost:
		l.marks = append(l.marks[last/2:], next)
	default:
		l.marks = append(l.marks, next)
	}
}
