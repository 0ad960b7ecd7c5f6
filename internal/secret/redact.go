package secret

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// A Redactor writes asterisks over every occurrence of a secret in a stream of
// bytes, such as a response's body, so that its length and framing stay true.
// Where the text itself holds an asterisk, another mark takes its place.
//
// It looks for these forms of the text:
//
//   - the text as it is, in UTF-8, UTF-16 or UTF-32;
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
// Any characters of a form may be percent-encoded, or any escaped as in JSON, or any written as numbers in HTML
// ("&#x2F;") or as in quoted-printable ("=2F", RFC 2045 and 2047). Up to four line breaks may stand between two characters, and
// 16 blanks behind these if no form has one itself. The redactor does not find a form that
// other bytes split, or a part of a form, or other encodings of encodings.
//
// It prints as "[secret]" and is for one goroutine at a time.
type Redactor struct {
	hidden
	matcher *textMatcher
	mark    byte
	node    int32 // of matcher
	hits    int

	seen  int64 // bytes of the stream
	views [4]escapedReading
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

// A Redaction strikes one or more secrets out of what comes back to a sandbox. It
// prints as "[secret]", never changes and is safe for concurrent use.
type Redaction struct {
	hidden
	forms   []string
	mark    byte
	matcher *textMatcher
	names   *textMatcher // of the same in lower case
}

func newRedaction(forms []string) *Redaction {
	return &Redaction{forms: forms, mark: markFor(forms), matcher: newMatcher(forms), names: newMatcher(lowered(forms))}
}

// Redact returns the redaction of all the secrets, or nil where there are none.
// Secrets that overlap in a stream are struck as a whole.
func Redact(secrets ...*Secret) *Redaction {
	switch len(secrets) {
	case 0:
		return nil
	case 1:
		return secrets[0].Redaction
	}
	var forms []string
	for _, s := range secrets {
		forms = append(forms, s.forms...)
	}
	slices.Sort(forms)
	return newRedaction(slices.Compact(forms))
}

// With returns n where it strikes s, or else what strikes s as well. n may be nil.
func (n *Redaction) With(s *Secret) *Redaction {
	if n == nil {
		return s.Redaction
	}
	has := func(form string) bool { _, found := slices.BinarySearch(n.forms, form); return found }
	if !slices.ContainsFunc(s.forms, func(form string) bool { return !has(form) }) {
		return n
	}
	forms := slices.Concat(n.forms, s.forms)
	slices.Sort(forms)
	return newRedaction(slices.Compact(forms))
}

// NewRedactor returns a redactor at the beginning of a stream.
func (n *Redaction) NewRedactor() *Redactor {
	return &Redactor{
		matcher: n.matcher, mark: n.mark,
		views: [4]escapedReading{newReading(n.matcher, '%'), newReading(n.matcher, '\\'), newReading(n.matcher, '&'), newReading(n.matcher, '=')},
	}
}

// InName reports whether the name of a header field holds a secret, whatever
// became of the case of its ASCII letters on the way: HTTP/2 writes names in
// lower case, and many programs each word with a capital. It is safe for
// concurrent use.
func (n *Redaction) InName(name string) bool {
	has := func(name string) bool {
		_, _, length := n.names.next([]byte(lowerText(name)), 0, 0)
		return length != 0
	}
	return has(name) || strings.Contains(name, "%") && has(unpercented(name))
}

// RedactString covers every occurrence of a secret in v, a whole value of a header field, and
// reports whether there was one. If blanks in v split a secret, as where a folded line was joined, all of v is covered. The
// result has the length of v. It is safe for concurrent use.
func (n *Redaction) RedactString(v string) (out string, found bool) {
	out = v
	var room [256]byte // most values are clean and need no memory
	if text := append(room[:0], v...); !n.isClean(text) {
		b := []byte(v)
		r := n.NewRedactor()
		r.Redact(b) // marks in place: nothing was held back before
		if found = r.Hits() > 0; found {
			out = string(b)
		}
	}
	joined := room[:0]
	for i := range len(out) {
		if c := out[i]; c != ' ' && c != '\t' {
			joined = append(joined, c)
		}
	}
	if len(joined) < len(out) && !n.isClean(joined) {
		r := n.NewRedactor()
		if r.Redact(slices.Clone(joined)); r.Hits() > 0 {
			return strings.Repeat(string(rune(n.mark)), len(v)), true
		}
	}
	return out, found
}

// isClean reports whether no secret can be in v.
func (n *Redaction) isClean(v []byte) bool {
	if _, _, length := n.matcher.next(v, 0, 0); length != 0 || bytes.ContainsAny(v, "%\\&\r\n") {
		return false
	}
	for i, c := range v {
		if c == '=' && i+2 < len(v) && digit(v[i+1]) < 16 && digit(v[i+2]) < 16 {
			return false
		}
	}
	return true
}

// markFor returns what to write over an occurrence: an asterisk, or where a
// form holds one, the first other mark that none holds. Where each mark is in
// one, it is the asterisk.
func markFor(forms []string) byte {
	const marks = "*#~!^|.:;@?"
	for i := range len(marks) {
		if !slices.ContainsFunc(forms, func(form string) bool { return strings.IndexByte(form, marks[i]) >= 0 }) {
			return marks[i]
		}
	}
	return marks[0]
}
