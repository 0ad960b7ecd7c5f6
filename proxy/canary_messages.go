package proxy

import (
	"encoding/binary"
	"slices"

	"github.com/egressd/egressd/egress"
)

// A leavingMessages is what a client sends in a WebSocket (RFC 6455 §5.2): frames,
// whose payload is masked. What it says is looked at as one stream, what its control
// frames say as another, and what it is as a third: the upstream may not care for
// frames.
type leavingMessages struct {
	plain, control, raw *egress.Guard
	turns               search

	head  []byte // of the frame that comes, until it is complete
	left  uint64 // of its payload
	mask  [4]byte
	at    int // in mask
	said  *egress.Guard
	bytes []byte // unmasked, scratch

	seen  int64  // of the stream
	held  []byte // the last of what was seen
	marks []mark // payloads that lie in what is held, the first may lie before
}

// A mark is where a frame's payload begins: in what the frames say, and in the stream.
type mark struct{ said, at int64 }

// marksMost bounds them: any number of bytes that do not count may stand in a canary.
const marksMost = 4096

// messagesLeaving returns what looks at the messages of a flow, or nil where there are
// no canaries.
func messagesLeaving(flow *egress.Flow, turns search) leaving {
	plain := flow.Guard("message")
	if plain == nil {
		return nil
	}
	return &leavingMessages{plain: plain, control: flow.Guard("control message"), raw: flow.Guard("message"), turns: turns}
}

func (l *leavingMessages) part(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if err := l.turns.begin(); err != nil {
		return nil, err
	}
	defer l.turns.end()
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
	free := int(min(l.free(), l.raw.Free()) - (l.seen - int64(len(l.held))))
	free = min(max(free, len(l.held)-egress.HeldMost, 0), len(l.held))
	out := l.held[:free]
	l.held = l.held[free:]
	return out, nil
}

func (l *leavingMessages) rest() ([]byte, error) {
	rest := l.held
	l.held = nil
	return rest, nil
}

// taken implements [leaving]: what is held is short.
func (l *leavingMessages) taken() {}

// free is up to where the stream may go on as far as what it says is concerned.
func (l *leavingMessages) free() int64 {
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
func (l *leavingMessages) read(b []byte) (n int, err error) {
	if l.left == 0 {
		l.head = append(l.head, b[0])
		l.begin()
		return 1, nil
	}
	n = int(min(uint64(len(b)), l.left))
	l.bytes = l.bytes[:0]
	for _, c := range b[:n] {
		l.bytes = append(l.bytes, c^l.mask[l.at&3])
		l.at++
	}
	l.left -= uint64(n)
	return n, l.said.See(l.bytes)
}

// begin begins a frame once its head is complete.
func (l *leavingMessages) begin() {
	h := l.head
	size := 2
	if len(h) < size {
		return
	}
	masked, short := h[1]&0x80 != 0, h[1]&0x7f
	switch short {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	lengthEnd := size
	if masked {
		size += 4
	}
	if len(h) < size {
		return
	}
	switch short {
	case 126:
		l.left = uint64(binary.BigEndian.Uint16(h[2:]))
	case 127:
		l.left = binary.BigEndian.Uint64(h[2:])
	default:
		l.left = uint64(short)
	}
	l.mask, l.at = [4]byte{}, 0
	copy(l.mask[:], h[lengthEnd:])
	l.head = h[:0]
	l.said = l.plain
	if h[0]&0x08 != 0 {
		l.said = l.control
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
