package cli

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/internal/printable"
)

// diffContext is how many unchanged lines stand around a change.
const diffContext = 3

// UnifiedDiff returns the changes from old to new in the unified format that
// patch(1) reads: the fewest that there are where the part that has changed has up to
// a few thousand lines, as in files that a person writes, and else all of that part.
func UnifiedDiff(oldName, newName, old, new string) string {
	edits := diffLines(splitLines(old), splitLines(new))
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", printable.Text(oldName), printable.Text(newName))
	oldLine, newLine := 1, 1
	for start := 0; start < len(edits); {
		from, to := nextHunk(edits, start)
		for _, e := range edits[start:from] {
			oldLine, newLine = e.advance(oldLine, newLine)
		}
		if from == to {
			break
		}
		oldLine, newLine = writeHunk(&b, edits[from:to], oldLine, newLine)
		start = to
	}
	return b.String()
}

// An edit is one line of a difference: ' ' kept, '-' removed, '+' added.
type edit struct {
	sign byte
	text string
}

func (e edit) advance(oldLine, newLine int) (int, int) {
	if e.sign != '+' {
		oldLine++
	}
	if e.sign != '-' {
		newLine++
	}
	return oldLine, newLine
}

// nextHunk returns the range of the first changes from start on that belong
// into one hunk, context included; an empty one where there are none.
func nextHunk(edits []edit, start int) (from, to int) {
	first := start
	for first < len(edits) && edits[first].sign == ' ' {
		first++
	}
	if first == len(edits) {
		return first, first
	}
	last := first
	for i := first; i < len(edits) && i-last <= 2*diffContext+1; i++ {
		if edits[i].sign != ' ' {
			last = i
		}
	}
	return max(start, first-diffContext), min(len(edits), last+1+diffContext)
}

func writeHunk(b *strings.Builder, edits []edit, oldLine, newLine int) (int, int) {
	oldEnd, newEnd := oldLine, newLine
	for _, e := range edits {
		oldEnd, newEnd = e.advance(oldEnd, newEnd)
	}
	fmt.Fprintf(b, "@@ -%s +%s @@\n", hunkRange(oldLine, oldEnd), hunkRange(newLine, newEnd))
	for _, e := range edits {
		fmt.Fprintf(b, "%c%s\n", e.sign, printable.Text(e.text))
	}
	return oldEnd, newEnd
}

// hunkRange is "first,count"; an empty range stands after the line before it.
func hunkRange(start, end int) string {
	if start == end {
		start, end = start-1, end-1
	}
	return fmt.Sprintf("%d,%d", start, end-start)
}

func splitLines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// mostCompared is how many pairs of lines are compared.
const mostCompared = 1 << 22

// diffLines returns the shortest list of edits from a to b, or a longer one where it would take
// too much to find that.
func diffLines(a, b []string) (edits []edit) {
	same := 0
	for same < min(len(a), len(b)) && a[same] == b[same] {
		edits = append(edits, edit{' ', a[same]})
		same++
	}
	a, b = a[same:], b[same:]
	end := 0
	for end < min(len(a), len(b)) && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	rest := a[len(a)-end:]
	a, b = a[:len(a)-end], b[:len(b)-end]
	if len(b) > 0 && len(a) > mostCompared/len(b) {
		edits = append(edits, allOf('-', a)...)
		edits = append(edits, allOf('+', b)...)
	} else {
		edits = append(edits, shortest(a, b)...)
	}
	return append(edits, allOf(' ', rest)...)
}

func allOf(sign byte, lines []string) []edit {
	edits := make([]edit, len(lines))
	for i, line := range lines {
		edits[i] = edit{sign, line}
	}
	return edits
}

// shortest compares every line of a with every one of b.
func shortest(a, b []string) []edit {
	common := make([][]int, len(a)+1) // lengths of longest common subsequences of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var edits []edit
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			edits = append(edits, edit{' ', a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			edits = append(edits, edit{'-', a[i]})
			i++
		default:
			edits = append(edits, edit{'+', b[j]})
			j++
		}
	}
	return edits
}
