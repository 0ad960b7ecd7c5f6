// Package spelling says how far one word is from another, for the hint that
// follows a word which nobody knows. Whether that is near enough is for the
// caller to say.
package spelling

import "strings"

// Distance is the number of bytes to insert, drop, change, or swap with a
// neighbour to get from a to b, each of them touched once. Case counts.
func Distance(a, b string) int {
	older, old, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		older, old, row = old, row, older
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := old[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(old[j]+1, row[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// Nearest returns the candidate that s is most likely a misspelling of, or "".
func Nearest(s string, candidates []string) string {
	best, limit := "", 1+len(s)/4
	for _, c := range candidates {
		if d := Distance(strings.ToLower(s), c); d <= limit {
			best, limit = c, d-1
		}
	}
	return best
}
