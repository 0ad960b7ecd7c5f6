package secret

import (
	"cmp"
	"slices"
)

// A Redactor writes asterisks over every occurrence of a secret in a stream of
// bytes, such as a response's body, so that its length and framing stay true.
// Where the text itself holds an asterisk, another mark takes its place.
//
// It looks for these forms of the text:
//
//   - the text as it is;
//   - hexadecimal;
//   - base64 of anything that holds the text. Characters that the text shares with its
//     surroundings stay.
//
// If the text is base64 itself, the redactor also looks for:
//
//   - the same bytes in the other alphabet;
//   - the decoded text, if it is printable;
//   - the password, if the decoded text is Basic credentials.
//
// Each form has at least 8 bytes.
//
// Any characters of a form may be percent-encoded, or any escaped as in JSON. Up to four
// line breaks may stand between two characters. The redactor does not find a form that is
// split by something else or cut off, references of HTML, or other encodings of encodings.
//
// It prints as "[secret]" and is for one goroutine at a time.
type Redactor struct {
	hidden
	matcher *textMatcher
	mark    byte
	node    int32 // of matcher
	hits    int

	seen  int64 // bytes of the stream
	views [2]escapedReading
	found []Span // by the views, in what was given last

	held []byte // held[sent:] is held back; what is before it was returned
	sent int

	// The last run of marks, as indexes that count from the first byte held
	// back. Earlier bytes count as 0.
	from, to int
}

// Redact takes the next bytes of the stream and returns those that may go on.
// It holds back bytes that may begin a form until later bytes decide it, and no others.
//
// Redact may write to p, and the result may be part of p. The result is valid
// until the next call, and as long as p is left alone. Where nothing is held
// back, nothing is allocated or copied.
func (r *Redactor) Redact(p []byte) []byte {
	spans := r.read(p)
	fresh := len(p)
	work, i := r.join(p)
	begin := r.seen - int64(len(work)) // of work in the stream
	for i < len(work) {
		var length int
		if i, r.node, length = r.matcher.next(work, i, r.node); length != 0 {
			spans = r.coverFound(spans, work, begin, i)
			r.cover(work, i-length, i)
		}
	}
	r.coverFound(spans, work, begin, len(work))
	return r.release(work, fresh)
}

// read has the views read p, and returns what they have found in the order of its ends,
// valid until the next call.
func (r *Redactor) read(p []byte) []Span {
	r.found = r.found[:0]
	for v := range r.views {
		r.found = r.views[v].read(p, r.seen, r.found)
	}
	r.seen += int64(len(p))
	slices.SortFunc(r.found, func(a, b Span) int { return cmp.Compare(a.To, b.To) })
	return r.found
}

// coverFound marks those spans that end up to an index of work, which begins at a place
// of the stream, and returns the rest. Bytes behind that index are not changed before the
// matcher reads them.
func (r *Redactor) coverFound(spans []Span, work []byte, begin int64, to int) []Span {
	for len(spans) > 0 && spans[0].To <= begin+int64(to) {
		r.cover(work, int(spans[0].From-begin), int(spans[0].To-begin))
		spans = spans[1:]
	}
	return spans
}

// Flush ends the stream: it returns what was held back, valid until the next
// call. The redactor is then at the beginning of another stream.
func (r *Redactor) Flush() []byte {
	rest := r.held[r.sent:]
	r.node, r.from, r.to = 0, 0, 0
	for v := range r.views {
		r.views[v].reset()
	}
	r.sent = len(r.held)
	return rest
}

// Hits returns about how many occurrences were covered so far, in all streams, and 0 where
// none was. Those that touch may count as one.
func (r *Redactor) Hits() int { return r.hits }

// join returns what is held back with p behind it, and where p begins. Where
// nothing is held back that is p itself.
func (r *Redactor) join(p []byte) (work []byte, at int) {
	if r.sent == len(r.held) {
		r.held, r.sent = r.held[:0], 0
		return p, 0
	}
	// Moved only when as much was sent since the last time: so each byte pays
	// for one move, however small the pieces are.
	if at = len(r.held) - r.sent; r.sent >= at {
		r.held, r.sent = r.held[:copy(r.held, r.held[r.sent:])], 0
	}
	r.held = append(r.held, p...)
	return r.held[r.sent:], at
}

// cover marks an occurrence. Its beginning may have been marked and returned
// before: then from is negative.
func (r *Redactor) cover(work []byte, from, to int) {
	if from >= r.to || r.hits == 0 {
		r.hits++
	}
	from = max(from, 0)
	switch {
	case from > r.to:
		r.fill(work[from:to])
		r.from = from
	default: // touches the last run, which is not marked again: occurrences may lie dense
		r.fill(work[min(from, r.from):r.from])
		r.fill(work[r.to:to])
		r.from = min(r.from, from)
	}
	r.to = to
}

func (r *Redactor) fill(b []byte) {
	for i := range b {
		b[i] = r.mark
	}
}

// release returns what of work may go on, and holds back the rest: what the matcher
// or a view is in the middle of, unless it is marked already. The last fresh bytes of
// work are new.
func (r *Redactor) release(work []byte, fresh int) []byte {
	cut := max(0, len(work)-int(r.matcher.nodes[r.node].depth)) // marks that were returned count in depth
	for v := range r.views {
		cut = min(cut, max(0, len(work)-int(r.seen-r.views[v].free(r.seen))))
	}
	if r.from <= cut {
		cut = max(cut, r.to)
	}
	if len(work) == fresh { // work is p
		r.held = append(r.held, work[cut:]...)
	} else {
		r.sent += cut
	}
	r.from, r.to = max(r.from-cut, 0), max(r.to-cut, 0)
	return work[:cut]
}
