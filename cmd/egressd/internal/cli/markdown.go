package cli

import (
	"strings"

	"github.com/egressd/egressd/internal/printable"
)

// MarkdownCode is text as code in a cell of a table, cut to what fits.
func MarkdownCode(s string) string {
	return MarkdownWhole(Cut(printable.Word(s), LongestCell))
}

// MarkdownWhole is text as code, all of it: half a command is another one. In a code
// span nothing is markup, a link, an address of mail or a mention, for any renderer;
// what ends it, or the cell, is escaped as [printable.Text] does.
func MarkdownWhole(s string) string {
	if s == "" {
		return "–"
	}
	return "`" + markdownEnds.Replace(printable.Word(s)) + "`"
}

var markdownEnds = strings.NewReplacer("`", `\x60`, "|", `\x7c`)
