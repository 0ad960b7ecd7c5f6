package export

import (
	"strconv"
	"time"
	"unicode/utf8"
)

// A writer appends members of JSON objects in the order in which they are
// given. Members without a value are left out, and so are objects without
// members. It writes printable ASCII only.
type writer struct{ b []byte }

// line writes one object on a line of its own.
func (w *writer) line(members func()) {
	w.b = append(w.b, '{')
	members()
	w.b = append(w.b, '}', '\n')
}

func (w *writer) comma() {
	if last := w.b[len(w.b)-1]; last != '{' && last != '[' {
		w.b = append(w.b, ',')
	}
}

// key writes the name of a member. Names are the program's own.
func (w *writer) key(name string) {
	w.comma()
	w.b = append(w.b, '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

func (w *writer) object(name string, members func()) {
	start := len(w.b)
	w.key(name)
	w.b = append(w.b, '{')
	opened := len(w.b)
	members()
	if len(w.b) == opened {
		w.b = w.b[:start]
		return
	}
	w.b = append(w.b, '}')
}

func (w *writer) str(name, value string) {
	if value != "" {
		w.key(name)
		w.quote(value)
	}
}

func (w *writer) num(name string, n int64) {
	w.key(name)
	w.b = strconv.AppendInt(w.b, n, 10)
}

// some writes a number that is left out when 0.
func (w *writer) some(name string, n int64) {
	if n != 0 {
		w.num(name, n)
	}
}

func (w *writer) flag(name string, set bool) {
	if set {
		w.key(name)
		w.b = append(w.b, "true"...)
	}
}

// strs writes a list of texts, without those that are empty.
func (w *writer) strs(name string, values ...string) {
	start := len(w.b)
	w.key(name)
	w.b = append(w.b, '[')
	opened := len(w.b)
	for _, v := range values {
		if v != "" {
			w.comma()
			w.quote(v)
		}
	}
	if len(w.b) == opened {
		w.b = w.b[:start]
		return
	}
	w.b = append(w.b, ']')
}

// objects writes a list of one object.
func (w *writer) objects(name string, members func()) {
	w.key(name)
	w.b = append(w.b, '[', '{')
	members()
	w.b = append(w.b, '}', ']')
}

func (w *writer) time(name string, t time.Time, layout string) {
	w.str(name, t.UTC().Format(layout))
}

const hexDigits = "0123456789abcdef"

// quote writes a JSON string. What is not printable ASCII is escaped by its
// UTF-16 code units; bytes that are not UTF-8 become U+FFFD, as they do in
// encoding/json. A number sign behind another is escaped, too: runners of CI jobs
// take "##[" in their log for a command.
func (w *writer) quote(s string) {
	w.b = append(w.b, '"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			w.b = append(w.b, '\\', byte(c))
		case c == '#' && w.b[len(w.b)-1] == '#':
			w.unit(c)
		case c >= ' ' && c <= '~':
			w.b = append(w.b, byte(c))
		case c > 0xffff:
			c -= 0x10000
			w.unit(0xd800 + c>>10)
			w.unit(0xdc00 + c&0x3ff)
		default:
			w.unit(c)
		}
	}
	w.b = append(w.b, '"')
}

func (w *writer) unit(c rune) {
	w.b = append(w.b, '\\', 'u', hexDigits[c>>12&15], hexDigits[c>>8&15], hexDigits[c>>4&15], hexDigits[c&15])
}

// cut is the beginning of s, at most so many bytes long, without half a
// character at its end.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
