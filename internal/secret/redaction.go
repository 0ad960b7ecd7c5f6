package secret

import (
	"slices"
	"strings"
)

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
		views: [2]escapedReading{newReading(n.matcher, '%'), newReading(n.matcher, '\\')},
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

// RedactString covers every occurrence of a secret in v, a whole value, and
// reports whether there was one. The result has the length of v. It is safe for
// concurrent use.
func (n *Redaction) RedactString(v string) (string, bool) {
	if _, _, length := n.matcher.next([]byte(v), 0, 0); length == 0 && !strings.ContainsAny(v, "%\\\r\n") {
		return v, false
	}
	b := []byte(v)
	r := n.NewRedactor()
	r.Redact(b) // marks in place: nothing was held back before
	if r.Hits() == 0 {
		return v, false
	}
	return string(b), true
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
