package logs

import (
	"strings"
	"time"
)

// maxNumber is the largest number of eighteen digits; more may not fit.
const maxNumber = 999_999_999_999_999_999

// members goes over the members of one object.
type members struct {
	rest []string // that may still come
	name string   // of the one at hand
	some bool     // there was one
}

func (c *canonical) object(names []string) members {
	c.take('{')
	return members{rest: names}
}

// next goes on to the value of the next member, or behind the object.
func (c *canonical) next(m *members) bool {
	if c.bad || c.at >= len(c.line) {
		c.bad = true
		return false
	}
	if c.line[c.at] == '}' {
		c.at++
		return false
	}
	if m.some {
		c.take(',')
	}
	m.some = true
	c.take('"')
	if c.bad {
		return false
	}
	for i, name := range m.rest {
		if strings.HasPrefix(c.line[c.at:], name) && strings.HasPrefix(c.line[c.at+len(name):], `":`) {
			c.at += len(name) + len(`":`)
			m.name, m.rest = name, m.rest[i+1:]
			return true
		}
	}
	c.bad = true // unknown, twice, or out of order
	return false
}

// take goes over one byte, which has to be b.
func (c *canonical) take(b byte) {
	if c.at >= len(c.line) || c.line[c.at] != b {
		c.bad = true
		return
	}
	c.at++
}

// text reads a string.
func (c *canonical) text() string {
	c.take('"')
	end := -1
	if !c.bad {
		end = strings.IndexByte(c.line[c.at:], '"')
	}
	if end < 0 {
		c.bad = true
		return ""
	}
	s := c.line[c.at : c.at+end]
	if c.escapes && strings.IndexByte(s, '\\') >= 0 {
		return c.unescape()
	}
	c.at += end + 1
	return s
}

// unescape reads the rest of a string in which there are escapes.
func (c *canonical) unescape() string {
	var b strings.Builder
	for c.at < len(c.line) {
		rest := c.line[c.at:]
		switch {
		case rest[0] == '"':
			c.at++
			return b.String()
		case rest[0] != '\\':
			b.WriteByte(rest[0])
			c.at++
		case len(rest) > 1 && (rest[1] == '"' || rest[1] == '\\'):
			b.WriteByte(rest[1])
			c.at += 2
		case len(rest) >= 6 && rest[1:4] == "u00" && hexDigit(rest[4]) >= 0 && hexDigit(rest[5]) >= 0:
			b.WriteRune(rune(hexDigit(rest[4])<<4 | hexDigit(rest[5])))
			c.at += 6
		default:
			c.bad = true
			return ""
		}
	}
	c.bad = true
	return ""
}

func hexDigit(b byte) int {
	switch {
	case b >= '0' && b <= '9':
		return int(b - '0')
	case b >= 'a' && b <= 'f':
		return int(b-'a') + 10
	case b >= 'A' && b <= 'F':
		return int(b-'A') + 10
	default:
		return -1
	}
}

// number reads digits, without a sign and without a zero before others.
func (c *canonical) number(most int64) int64 {
	start, n := c.at, int64(0)
	for c.at < len(c.line) && c.line[c.at]-'0' <= 9 && c.at-start < 18 {
		n = n*10 + int64(c.line[c.at]-'0')
		c.at++
	}
	if c.at == start || n > most || c.line[start] == '0' && c.at > start+1 {
		c.bad = true
	}
	return n
}

// flag reads true, the only value that a flag is written with.
func (c *canonical) flag() bool {
	if !strings.HasPrefix(c.line[min(c.at, len(c.line)):], "true") {
		c.bad = true
		return false
	}
	c.at += len("true")
	return true
}

// list reads an array of strings into one of the rooms.
func (c *canonical) list(room int) []string {
	c.take('[')
	all := c.room[room][:0]
	for first := true; !c.bad; first = false {
		if first && c.at < len(c.line) && c.line[c.at] == ']' {
			c.at++
			return []string{}
		}
		all = append(all, c.text())
		if c.at < len(c.line) && c.line[c.at] == ']' {
			c.at++
			c.room[room] = all
			return all
		}
		c.take(',')
	}
	return nil
}

const dateLength = len("2006-01-02")

// time reads a time as the log writes it, in UTC and with six digits below
// the second.
func (c *canonical) time() time.Time {
	const form = `"2006-01-02T15:04:05.000000Z"`
	if len(c.line)-c.at < len(form) {
		c.bad = true
		return time.Time{}
	}
	t := c.line[c.at : c.at+len(form)]
	c.at += len(form)
	hour, minute, second := digits(t[12:14]), digits(t[15:17]), digits(t[18:20])
	micros := digits(t[21:27])
	if t[0] != '"' || t[11] != 'T' || t[14] != ':' || t[17] != ':' || t[20] != '.' || t[27:] != `Z"` ||
		hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 || micros < 0 || !c.begin(t[1:1+dateLength]) {
		c.bad = true
		return time.Time{}
	}
	return time.Unix(c.day+int64(hour*3600+minute*60+second), int64(micros)*1000).UTC()
}

// begin has c.day be the beginning of a date, and reports whether there is such
// a day. Records that follow each other are mostly of the same.
func (c *canonical) begin(date string) bool {
	if date == c.date {
		return true
	}
	t, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return false
	}
	c.date, c.day = strings.Clone(date), t.Unix()
	return true
}

// digits is the number that s stands for, or -1.
func digits(s string) int {
	n := 0
	for i := range len(s) {
		d := s[i] - '0'
		if d > 9 {
			return -1
		}
		n = n*10 + int(d)
	}
	return n
}

// plainText reports whether s is printable ASCII, and whether there is a
// backslash in it.
func plainText(s string) (plain, escapes bool) {
	const (
		ones  = 0x0101010101010101
		highs = ones << 7
	)
	rest := s
	for ; len(rest) >= 8; rest = rest[8:] {
		w := uint64(rest[0]) | uint64(rest[1])<<8 | uint64(rest[2])<<16 | uint64(rest[3])<<24 |
			uint64(rest[4])<<32 | uint64(rest[5])<<40 | uint64(rest[6])<<48 | uint64(rest[7])<<56
		if (w|(w-ones*' ')|(w+ones))&highs != 0 {
			return false, false
		}
	}
	for i := range len(rest) {
		if rest[i] < ' ' || rest[i] > '~' {
			return false, false
		}
	}
	return true, strings.IndexByte(s, '\\') >= 0
}
