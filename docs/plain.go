package docs

import (
	"path"
	"regexp"
	"strings"
	"sync"
)

var (
	link    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`!?\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)`) })
	ruler   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\|[-| :]+\|$`) })
	notCell = strings.NewReplacer(`\|`, "\x00")
	cell    = strings.NewReplacer("\x00", "|")
)

// plain writes a page for a terminal. A row of a table becomes its first cell, and a line below it for each other cell.
// A link to a page becomes its text and the name of the topic. Code stays as it is, without its fences.
func plain(page string) string {
	var b strings.Builder
	var header []string // of the table that the lines are in
	inside := false     // a block of code
	for line := range strings.Lines(linked(page)) {
		line = strings.TrimSuffix(line, "\n")
		trimmed := strings.TrimLeft(line, " ")
		switch {
		case strings.HasPrefix(trimmed, "```"):
			inside = !inside
			continue
		case inside:
			b.WriteString("    " + line + "\n")
			continue
		case strings.HasPrefix(trimmed, "|") && header == nil:
			header = cells(trimmed)
			continue
		case strings.HasPrefix(trimmed, "|"):
			if !ruler().MatchString(trimmed) {
				row(&b, line[:len(line)-len(trimmed)], header, cells(trimmed))
			}
			continue
		}
		header = nil
		b.WriteString(line + "\n")
	}
	return b.String()
}

// cells are the texts between the bars of a line.
func cells(line string) []string {
	parts := strings.Split(strings.Trim(notCell.Replace(line), "|"), "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(cell.Replace(parts[i]))
	}
	return parts
}

func row(b *strings.Builder, indent string, header, row []string) {
	for i, text := range row {
		switch {
		case text == "":
		case i == 0:
			b.WriteString(indent + "- " + text + "\n")
		case i < len(header) && header[i] != "":
			b.WriteString(indent + "    " + header[i] + ": " + text + "\n")
		default:
			b.WriteString(indent + "    " + text + "\n")
		}
	}
}

// linked writes the links of a page out, except in blocks of code. A link may go over the end of a line.
func linked(page string) string {
	parts := strings.SplitAfter(page, "```")
	for i := 0; i < len(parts); i += 2 {
		parts[i] = link().ReplaceAllStringFunc(parts[i], linkText)
	}
	return strings.Join(parts, "")
}

func linkText(text string) string {
	m := link().FindStringSubmatch(text)
	target, _, _ := strings.Cut(m[2], "#")
	topic, isPage := strings.CutSuffix(path.Base(target), ".md")
	switch {
	case strings.HasPrefix(text, "!"):
		return ""
	case strings.Contains(m[2], "://"):
		return m[1] + " (" + m[2] + ")"
	case !isPage || !isTopic(topic):
		return m[1]
	}
	return m[1] + " (egressd help " + topic + ")"
}

func isTopic(name string) bool {
	for _, folder := range []string{"how-to", "reference", "explanation"} {
		if _, err := pages.Open(path.Join(folder, name+".md")); err == nil {
			return true
		}
	}
	return false
}
