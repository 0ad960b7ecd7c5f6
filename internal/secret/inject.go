package secret

import (
	"encoding/base64"
	"strings"
)

// Bounds of the text that the client may write beside a placeholder. Longer text would let the client choose
// where a server cuts a value that it repeats, and so which part of the secret shows.
const (
	maxScheme = 16
	maxUser   = 64
)

// A Field is one header field of a request. Names compare without regard to
// the case of ASCII letters.
type Field struct{ Name, Value string }

// Inject returns the fields with exactly one of the secret's name, which holds
// the text. It leaves its argument as it is, and every other field unchanged
// and in order: a placeholder there goes through.
//
// The value is the template, and what the client sent under the name is lost;
// but where the client sent one such field, its value stays, with the text in
// the placeholder's place, if it is one of these, spaces and tabs around it
// aside:
//
//   - the placeholder alone
//   - a scheme of 1 to 16 letters, digits and hyphens, one space, and the placeholder
//   - Basic credentials (RFC 7617, section 2) whose user or password is the
//     placeholder, and whose other part has at most 64 bytes, none of them a
//     control character
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
	if s.placeholder == "" {
		return s.value
	}
	value = strings.Trim(value, " \t")
	if value == s.placeholder {
		return s.text
	}
	scheme, rest, _ := strings.Cut(value, " ")
	if rest == s.placeholder && isScheme(scheme) {
		return scheme + " " + s.text
	}
	if filled, ok := s.fillBasic(rest); ok && equalFold(scheme, "Basic") {
		return scheme + " " + filled
	}
	return s.value
}

func isScheme(s string) bool {
	return s != "" && len(s) <= maxScheme && strings.Trim(s, alphanumeric+"-") == ""
}

// fillBasic puts the text in the placeholder's place inside the base64 of Basic
// credentials. It reports false where that is not the whole of one part.
func (s *Secret) fillBasic(encoded string) (string, bool) {
	encoded = strings.TrimRight(strings.TrimLeft(encoded, " "), "=")
	decoded, err := base64.RawStdEncoding.DecodeString(encoded)
	if err != nil {
		return "", false
	}
	filled := ""
	if user, found := strings.CutSuffix(string(decoded), ":"+s.placeholder); found && isPart(user) {
		filled = user + ":" + s.text
	} else if password, found := strings.CutPrefix(string(decoded), s.placeholder+":"); found && isPart(password) {
		filled = s.text + ":" + password
	}
	return base64.StdEncoding.EncodeToString([]byte(filled)), filled != ""
}

func isPart(s string) bool { return len(s) <= maxUser && isText(s) }
