package secret

import (
	"encoding/base64"
	"strings"
)

// maxValue bounds a value that a placeholder was replaced in: each one may
// become a text that is much longer than it.
const maxValue = 64 << 10

// A Field is one header field of a request. Names compare without regard to
// the case of ASCII letters.
type Field struct{ Name, Value string }

// Inject returns the fields with exactly one of the secret's name, which holds
// the text. It leaves its argument as it is, and every other field unchanged
// and in order: a placeholder there goes through.
//
// The value is the template, and what the client sent under the name is lost;
// but where the client sent one such field and its value holds the placeholder,
// that value stays and the text takes the placeholder's place, also within the
// user-pass of Basic credentials (RFC 7617, section 2). A client's value that
// holds a control character, or would grow above 64 KiB, does not stay.
//
// The field stands where the client's first one stood, or else at the end.
func (s *Secret) Inject(fields []Field) []Field {
	out := make([]Field, 0, len(fields)+1)
	at, sent := -1, 0
	for _, f := range fields {
		if !equalFold(f.Name, s.header) {
			out = append(out, f)
			continue
		}
		if sent++; sent == 1 {
			at = len(out)
			out = append(out, Field{s.header, s.fill(f.Value)})
		}
	}
	switch {
	case sent == 0:
		out = append(out, Field{s.header, s.value})
	case sent > 1:
		out[at].Value = s.value
	}
	return out
}

// fill returns the client's value with the text in the placeholder's place, or
// the template.
func (s *Secret) fill(value string) string {
	if s.placeholder == "" || !isText(value) {
		return s.value
	}
	value = strings.Trim(value, " \t")
	if filled, ok := s.replace(value); ok {
		return filled
	}
	if filled, ok := s.replaceBasic(value); ok {
		return filled
	}
	return s.value
}

// replace puts the text in the place of each placeholder in v. It reports false
// where there is none, or the result would be too long.
func (s *Secret) replace(v string) (string, bool) {
	n := strings.Count(v, s.placeholder)
	if n == 0 || len(v)+n*(len(s.text)-len(s.placeholder)) > maxValue {
		return "", false
	}
	return strings.ReplaceAll(v, s.placeholder, s.text), true
}

// replaceBasic does what replace does inside the base64 of Basic credentials,
// and keeps the scheme as the client wrote it.
func (s *Secret) replaceBasic(v string) (string, bool) {
	scheme, encoded, found := strings.Cut(v, " ")
	if !found || !equalFold(scheme, "Basic") {
		return "", false
	}
	encoded = strings.TrimRight(strings.TrimLeft(encoded, " "), "=")
	decoded, err := base64.RawStdEncoding.DecodeString(encoded)
	if err != nil || !isText(string(decoded)) {
		return "", false
	}
	filled, ok := s.replace(string(decoded))
	if !ok {
		return "", false
	}
	return scheme + " " + base64.StdEncoding.EncodeToString([]byte(filled)), true
}
