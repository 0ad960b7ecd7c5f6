package cli

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// Cell returns s for one cell of a table: printable, one column per character, and "–" if s is empty.
func Cell(s string) string {
	switch s {
	case "":
		return "–"
	case logs.Beyond:
		return s
	}
	var b strings.Builder
	for _, r := range printable.Word(s) {
		if r > lastNarrow {
			fmt.Fprintf(&b, `\u{%x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// lastNarrow is the last character before the first that terminals may draw two columns wide.
const lastNarrow = 0x10ff

// Characters of a text that a table shows. A sandbox may have chosen the text.
const (
	LongestColumn = 32
	LongestCell   = 64
)

// Cut shortens s to most characters.
func Cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// CutHost shortens a host in the middle, because the end of a name says who owns it.
func CutHost(s string) string {
	const head = 20
	if r := []rune(s); len(r) > LongestCell {
		return string(r[:head]) + "…" + string(r[len(r)-(LongestCell-head-1):])
	}
	return s
}

// ShadowText says what the shadow policy would have done, and why.
func ShadowText(s *record.Shadow) string {
	text := "would " + logs.ShadowAction(s)
	if s.Class != "" {
		text += " (" + s.Class + ")"
	}
	text += " by rule " + printable.Rule(s.Rule, s.Layer)
	if s.Reason != "" && !strings.Contains(s.Reason, s.Rule) {
		text += ": " + s.Reason
	}
	return text
}
