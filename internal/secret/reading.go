package secret

import "bytes"

// An escapedReading looks for secrets in what a stream says behind one kind of escapes. Line breaks
// may stand between any two characters, and blanks behind these, as folded header fields and indented texts have them: escaped
// ones, and with percent-encoding and quoted-printable plain ones too, which no string in JSON has. A reading finds what crosses
// an escape or a line break; the matcher of a [Redactor] finds all else in the stream as it is.
type escapedReading struct {
	trail
	begins  byte   // an escape: %, \, & or =
	folds   bool   // blanks behind a line break are part of it: no form has one
	pending []byte // of an escape that has begun
	escaped int64  // where it did
	breaks  int    // line breaks that have come behind the last character
	blanks  int    // and blanks behind these
	crossed int64  // the end of the last escape or line break

	found []Span // by the read that goes on
}

// breaksMost bounds the line breaks in a row that may stand between two characters, and so
// what is held back.
const breaksMost = 4

// blanksMost bounds the blanks behind them likewise.
const blanksMost = 16

// brokenLeast is the number of characters of a form that the redactor holds back at the end of a line. Shorter
// beginnings would make ordinary lines wait for the next line, which may come much later.
const brokenLeast = 4

func newReading(m *textMatcher, begins byte) escapedReading {
	return escapedReading{trail: trail{matcher: m}, begins: begins, folds: !m.blank}
}

// inLines reports whether plain line breaks may stand between two characters.
func (r *escapedReading) inLines() bool { return r.begins == '%' || r.begins == '=' }

// read reads the next bytes of the stream, the first of which is at a place of it. It
// appends what it finds.
func (r *escapedReading) read(p []byte, at int64, found []Span) []Span {
	r.found = found
	breaks := [...]next{{of: r.begins}, {of: '\n'}, {of: '\r'}}
	ends := breaks[:]
	if !r.inLines() {
		ends = breaks[:1]
	}
	for i := 0; i < len(p); i++ {
		if len(r.pending) == 0 {
			end := len(p)
			for b := range ends {
				end = min(end, ends[b].index(p, i))
			}
			if r.node != 0 && i+r.matcher.longest <= end && r.begin(r.depth()) >= r.crossed {
				r.node = 0 // what it has begun ends before it crosses anything
			}
			if r.node == 0 {
				if i = r.skip(p[:end], i); i == len(p) {
					break
				}
			}
		}
		r.take(p[i], at+int64(i))
	}
	found, r.found = r.found, nil
	return found
}

// skip returns the first index from i on at which an occurrence may begin that is not
// within p, or the length of p.
func (r *escapedReading) skip(p []byte, i int) int {
	m := r.matcher
	i = max(i, len(p)-m.longest+1)
	if i >= len(p) {
		return i
	}
	i = m.skip(p, i)
	if n := len(p); i+m.window > n && i+2 <= n { // as if the window ended with p
		i = max(i, n-m.window+int(m.shift[int(p[n-2])|int(p[n-1])<<8]))
	}
	for i < len(p) && m.root[p[i]] == 0 {
		i++
	}
	return i
}

// A next finds a byte again and again.
type next struct {
	of byte
	at int // where it was found, or the end; it is not between there and the last index asked for
	ok bool
}

// index returns the first index of the byte in p from i on, or len(p).
func (n *next) index(p []byte, i int) int {
	if !n.ok || n.at < i {
		n.ok, n.at = true, len(p)
		if found := bytes.IndexByte(p[i:], n.of); found >= 0 {
			n.at = i + found
		}
	}
	return n.at
}

// take reads a byte of the stream.
func (r *escapedReading) take(c byte, at int64) {
	switch {
	case len(r.pending) > 0:
		r.goOn(c, at)
	case c == r.begins:
		r.pending, r.escaped = append(r.pending, c), at
	case (c == '\n' || c == '\r') && r.inLines():
		r.lineBreak(at + 1)
	case r.folded(c):
		r.blank(at + 1)
	default:
		r.character(c, at, at+1)
	}
}

// folded reports whether a character is a blank of a line break.
func (r *escapedReading) folded(c byte) bool {
	return (c == ' ' || c == '\t') && r.folds && r.breaks > 0
}

// goOn reads the next byte of an escape.
func (r *escapedReading) goOn(c byte, at int64) {
	r.pending = append(r.pending, c)
	value, state := escapeOf(r.pending)
	switch state {
	case escapeDone:
		r.pending = r.pending[:0]
		switch {
		case value == '\n' || value == '\r':
			r.lineBreak(at + 1)
		case value <= ' ' && r.folded(byte(value)):
			r.blank(at + 1)
		default:
			r.character(byte(min(value, 0xff)), r.escaped, at+1) // no form has 0xff
			r.crossed = at + 1
		}
	case escapeNone: // its bytes stand for themselves, but for the last one, which may begin another
		begun, plain := r.escaped, r.pending[:len(r.pending)-1]
		r.pending = r.pending[:0]
		for i, b := range plain {
			r.character(b, begun+int64(i), begun+int64(i)+1)
		}
		r.take(c, at)
	}
}

// character reads what the bytes from at up to but not including end stand for.
func (r *escapedReading) character(c byte, at, end int64) {
	r.breaks, r.blanks = 0, 0
	if r.from == nil {
		r.trail = newTrail(r.matcher)
	}
	if n := r.step(c, at); n != 0 {
		r.found = append(r.found, Span{r.begin(n), end})
	}
}

// lineBreak reads a line break that ends at a place of the stream.
func (r *escapedReading) lineBreak(end int64) {
	r.crossed = end
	if r.breaks++; r.breaks > breaksMost {
		r.node = 0
	}
}

// blank reads a blank behind a line break, which ends at a place of the stream.
func (r *escapedReading) blank(end int64) {
	r.crossed = end
	if r.blanks++; r.blanks > blanksMost {
		r.node = 0
	}
}

// free is up to where the stream may go on, of which seen bytes were read.
func (r *escapedReading) free(seen int64) int64 {
	if len(r.pending) > 0 {
		seen = r.escaped
	}
	n := r.at()
	for n.child == 0 && n.depth > 0 { // a whole form, with which no longer one begins
		n = &r.matcher.nodes[n.fail]
	}
	if d := int(n.depth); d > 0 && (d >= brokenLeast || r.breaks == 0) {
		seen = min(seen, r.begin(d))
	}
	return seen
}

// reset has the stream begin anew.
func (r *escapedReading) reset() {
	r.node, r.pending, r.breaks, r.blanks = 0, r.pending[:0], 0, 0
}
