package edit

import (
	"bytes"
	"strings"

	"github.com/egressd/egressd/internal/printable"
	"github.com/rogpeppe/go-internal/diff"
)

// UnifiedDiff returns the changes from old to new in the unified format that patch(1) reads, or "" if
// there are none. A stranger may have written names and lines, so both are made printable. Tabs stay.
func UnifiedDiff(oldName, newName, old, new string) string {
	text := diff.Diff(printable.Text(oldName), []byte(old), printable.Text(newName), []byte(new))
	_, text, _ = bytes.Cut(text, []byte("\n")) // the line "diff OLD NEW"
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		for i := range cells {
			cells[i] = printable.Text(cells[i])
		}
		b.WriteString(strings.Join(cells, "\t") + "\n")
	}
	return b.String()
}
