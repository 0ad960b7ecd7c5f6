// Package printable makes text that a sandbox or a stranger wrote safe to show: on a terminal,
// in a table, in the log of a CI job.
package printable

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Text returns s with every character escaped that a terminal could take
// for a command or that could make a line read otherwise than it is: control
// characters, direction overrides, combining marks, letters without a shape, and
// broken UTF-8. The number signs of "##[" and "##vso[" are escaped, too: runners of CI jobs
// take them for commands wherever in their log they stand.
func Text(s string) string {
	var b strings.Builder
	last := rune(0)
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '#' && last == '#' && runnerCommand().MatchString(s[n:]):
			b.WriteString(`\x23`)
			r = 0
		case unicode.IsPrint(r) && !unicode.IsMark(r) && !unicode.Is(blank, r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
		s, last = s[n:], r
	}
	return b.String()
}

// runnerCommand is what follows "##" in a command for the runner of a CI job.
var runnerCommand = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z]*\[`) })

// Word is text that a sandbox chose, to stand between others in a line: printable,
// without gaps that look like the space between two columns, and, in front of a
// line, no command for the runner of a CI job, which is "::name::".
func Word(s string) string {
	s = Text(s)
	if rest, found := strings.CutPrefix(s, "::"); found && strings.Contains(rest, "::") {
		s = `\x3a:` + rest
	}
	var b strings.Builder
	for i, r := range s {
		if r == ' ' && (i == 0 || s[i-1] == ' ' || i == len(s)-1) {
			b.WriteString(`\x20`)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// blank are characters that count as letters and symbols, and show nothing.
var blank = &unicode.RangeTable{R16: []unicode.Range16{{0x115f, 0x1160, 1}, {0x2800, 0x2800, 1}, {0x3164, 0x3164, 1}, {0xffa0, 0xffa0, 1}}}

// JSON returns a line of JSON with every non-ASCII character, and each number
// sign behind another, written as its escape: the same value, and nothing that a
// terminal or the runner of a CI job acts on, see [Text].
func JSON(line []byte) []byte {
	out := line[:0:0]
	for i := 0; i < len(line); {
		r, n := utf8.DecodeRune(line[i:])
		switch {
		case r == '#' && i > 0 && line[i-1] == '#':
			out = append(out, `\u0023`...)
		case r < 0x7f:
			out = append(out, line[i])
		case r > 0xffff:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += n
	}
	return out
}

// Rule returns the name of a rule with its layer, as tables and sentences show both.
func Rule(rule, layer string) string {
	if layer == "" {
		return rule
	}
	return rule + " (" + layer + ")"
}
