package logsource

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs"
)

// Cell makes text fit for one cell of a table: each of its characters takes the
// place of one.
func Cell(s string) string {
	switch s {
	case "":
		return "–"
	case logs.Beyond:
		return s
	}
	var b strings.Builder
	for _, r := range printable.Word(s) {
		if r > widest {
			fmt.Fprintf(&b, `\u{%x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// widest is the last character before those that terminals may draw in two
// columns.
const widest = 0x10ff

// How much of a text, which a sandbox may choose, stands in a column.
const (
	LongestColumn = 32
	LongestCell   = 64
)

// Cut shortens text to most characters.
func Cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// CutHost shortens a destination in its middle: its end says whose it is.
func CutHost(s string) string {
	const head = 20
	if r := []rune(s); len(r) > LongestCell {
		return string(r[:head]) + "…" + string(r[len(r)-(LongestCell-head-1):])
	}
	return s
}
