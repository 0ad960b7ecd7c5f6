package secret

import "math/bits"

// heldFrom is how many bytes that begin a canary are held back. A canary never leaves
// whole, and what begins like one by accident waits for nothing: a stream may be
// silent until somebody has answered to its last byte.
const heldFrom = 8

// A Watch looks for canaries in a stream of bytes, in three views of it:
//
//   - the stream as it is;
//   - the visible ASCII in it: escapes are read, and every other byte is dropped. Canaries
//     are visible ASCII, so what stands between their characters does not hide them;
//   - the hexadecimal digits in that, with any ':' and '-' between them dropped.
//
// It is for one goroutine at a time and prints as "[secret]".
type Watch struct {
	hidden
	all  *Canaries
	seen int64 // bytes of the stream
	node int32 // of the stream as it is

	visible trail
	hex     trail
	escape  []byte // that has begun
	escaped int64  // where it did

	hit     bool // in one of the two trails
	finding Finding
	hitFrom int64
}

// A Span is where something lies in a stream: from From up to but not including To.
type Span struct{ From, To int64 }

// NewWatch returns a watch at the beginning of a stream.
func (c *Canaries) NewWatch() *Watch {
	return &Watch{all: c, visible: newTrail(c.matcher), hex: newTrail(c.hex)}
}

// See takes the next bytes of the stream, up to the first canary that they
// complete; then nothing more may be asked of it. at is where the canary lies, from the
// beginning of the stream.
func (w *Watch) See(p []byte) (f Finding, at Span, found bool) {
	m := w.all.matcher
	end, node, length := m.next(p, 0, w.node)
	w.node = node
	for i := range end { // the same bytes: the first canary of all views counts
		w.take(p[i], w.seen+int64(i))
		if w.hit {
			return w.finding, Span{w.hitFrom, w.seen + int64(i) + 1}, true
		}
	}
	w.seen += int64(end)
	if length != 0 {
		return w.all.finding(m.nodes[node]), Span{w.seen - int64(length), w.seen}, true
	}
	return Finding{}, Span{}, false
}

// Free is up to where the stream may go on: what is behind may begin a canary.
func (w *Watch) Free() int64 {
	free := w.seen
	if d := int64(w.all.matcher.nodes[w.node].depth); d >= heldFrom {
		free = w.seen - d
	}
	for _, t := range []*trail{&w.visible, &w.hex} {
		if t.depth() >= heldFrom {
			free = min(free, t.begin(t.depth()))
		}
	}
	return free
}

// take reads a byte that stands at a place of the stream, or what one stands for.
func (w *Watch) take(c byte, at int64) {
	switch {
	case len(w.escape) > 0:
		w.goOn(c, at)
	case c == '%' || c == '\\' || c == '&':
		w.escape, w.escaped = append(w.escape, c), at
	case c > ' ' && c < 0x7f:
		w.step(c, at)
	}
}

// step reads a visible character.
func (w *Watch) step(c byte, at int64) {
	if n := w.visible.step(c, at); n != 0 && !w.hit {
		w.hit, w.finding, w.hitFrom = true, w.all.finding(*w.visible.at()), w.visible.begin(n)
	}
	switch {
	case digit(c) < 16:
		if n := w.hex.step(lower(c), at); n != 0 && !w.hit {
			w.hit, w.finding, w.hitFrom = true, w.all.hexFinding(*w.hex.at()), w.hex.begin(n)
		}
	case c != ':' && c != '-':
		w.hex.node = 0
	}
}

// goOn reads the next byte of an escape.
func (w *Watch) goOn(c byte, at int64) {
	w.escape = append(w.escape, c)
	value, state := escapeOf(w.escape)
	begun := w.escaped
	switch state {
	case escapeOpen:
	case escapeDone:
		w.escape = w.escape[:0]
		if value <= 0xff {
			w.take(byte(value), begun) // which may be part of an escape itself
		}
	case escapeNone: // its bytes stand for themselves, but for the last one, which may begin another
		var plain [escapeLong]byte
		n := copy(plain[:], w.escape[:len(w.escape)-1])
		w.escape = w.escape[:0]
		for i := range n {
			w.step(plain[i], min(begun+int64(i), at))
		}
		w.take(c, at)
	}
}

type escapeState uint8

const (
	escapeOpen escapeState = iota // more has to come
	escapeDone
	escapeNone

	escapeLong = 12
)

// escapeOf reads %41, =41 and = before a line break, \u0041, \x41, \/ and the like, &#65; and &#x41;.
func escapeOf(e []byte) (value int, _ escapeState) {
	switch {
	case len(e) >= escapeLong:
		return 0, escapeNone
	case e[0] == '=' && (e[1] == '\n' || e[1] == '\r'):
		return int(e[1]), escapeDone
	case e[0] == '%', e[0] == '=':
		return digits(e[1:], 2, 16)
	case e[0] == '&':
		return reference(e[1:])
	}
	switch e[1] {
	case 'u':
		return digits(e[2:], 4, 16)
	case 'x':
		return digits(e[2:], 2, 16)
	case 'n':
		return '\n', escapeDone
	case 'r':
		return '\r', escapeDone
	case 't', 'b', 'f':
		return '\t', escapeDone // or another control character: nothing that is looked for has one
	case '/', '"', '\'', '\\':
		return int(e[1]), escapeDone
	}
	return 0, escapeNone
}

func digits(text []byte, n, base int) (value int, _ escapeState) {
	for _, c := range text {
		d := digit(c)
		if d >= base {
			return 0, escapeNone
		}
		value = value*base + d
	}
	if len(text) < n {
		return 0, escapeOpen
	}
	return value, escapeDone
}

// reference reads a reference to a character (HTML, section 13.1.4) behind its &.
func reference(text []byte) (value int, _ escapeState) {
	if text[0] != '#' {
		return 0, escapeNone
	}
	number, base := text[1:], 10
	if len(number) > 0 && (number[0] == 'x' || number[0] == 'X') {
		number, base = number[1:], 16
	}
	if len(number) == 0 {
		return 0, escapeOpen
	}
	if last := len(number) - 1; number[last] == ';' {
		value, state := digits(number[:last], last, base)
		if last == 0 || state != escapeDone {
			return 0, escapeNone
		}
		return value, escapeDone
	}
	value, state := digits(number, len(number), base)
	if state == escapeNone {
		return 0, escapeNone
	}
	return value, escapeOpen
}

// digit is what a digit is worth, or more than any base.
func digit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return 99
}

// A trail runs a matcher over the characters that a stream stands for, and remembers
// where in the stream the last of them begin.
type trail struct {
	matcher *textMatcher
	node    int32
	read    int     // characters
	from    []int64 // of the last ones, at their number modulo its length, a power of two
}

func newTrail(m *textMatcher) trail {
	return trail{matcher: m, from: make([]int64, 1<<bits.Len(uint(m.longest)))}
}

// step reads a character that begins at a place of the stream. It returns the length
// of the longest pattern that ends with it, or 0.
func (t *trail) step(c byte, at int64) int {
	t.from[t.read&(len(t.from)-1)] = at
	t.read++
	t.node = t.matcher.step(t.node, c)
	return int(t.matcher.nodes[t.node].found)
}

func (t *trail) at() *patternNode { return &t.matcher.nodes[t.node] }

// depth is how many of the last characters begin a pattern.
func (t *trail) depth() int { return int(t.at().depth) }

// begin returns where the last n characters begin. n is at most the length of the longest pattern.
func (t *trail) begin(n int) int64 { return t.from[(t.read-n)&(len(t.from)-1)] }
