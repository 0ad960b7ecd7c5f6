package run

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/egress"
)

// TestNoWordsLookLikeALineOfEgressd: a terminal folds lines, and a program knows at which column.
func TestNoWordsLookLikeALineOfEgressd(t *testing.T) {
	t.Setenv("TERM", "dumb")
	const lie, label = "egressd: question: sandbox default asks for good.test:443", `egressd:   the program says why: "`
	for width := foldAt; width <= 190; width++ {
		for _, pad := range []string{" ", "-"} {
			q := &egress.Question{Sandbox: "default", Host: "evil.test", Port: 443, Rule: "access-request", Pattern: "evil.test:443"}
			q.Words = strings.Repeat(pad, width-len(label)) + lie
			begins := 0
			for _, line := range strings.Split(questionText(q), "\r\n") {
				if strings.Contains(line, "evil.test") && !strings.HasPrefix(line, "egressd: question: sandbox default asks for evil.test:443") {
					t.Errorf("width %d: the line of egressd is %q", width, line)
				}
				for line != "" {
					if strings.HasPrefix(line, "egressd: question:") {
						begins++
					}
					line = line[min(width, len(line)):]
				}
			}
			if begins != 1 {
				t.Errorf("width %d: %d lines look like egressd's question:\n%s", width, begins, questionText(q))
			}
		}
	}
	if got := folded("egressd:   x: " + strings.Repeat("\u4e00", 60)); len(got) != 3 || strings.Count(strings.Join(got, ""), "\u4e00") != 60 {
		t.Errorf("wide characters are folded to %q", got)
	}
}
