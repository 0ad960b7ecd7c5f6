package confine

import (
	"strings"
	"testing"
)

// TestTooFewFilesAreSaid: one sandbox used up half of what 20,000 files allow, and nothing had been said.
func TestTooFewFilesAreSaid(t *testing.T) {
	for _, c := range []struct {
		fit, most int
		says      string
	}{{6645, 20_000, "enough for 6645 connections, 3322 of one sandbox; limits.connections says 20000"}, {100, 100, ""}} {
		var out strings.Builder
		WarnFiles(&out, c.fit, c.most)
		if !strings.Contains(out.String(), c.says) || (out.Len() > 0) != (c.says != "") {
			t.Errorf("%d of %d connections: %q", c.fit, c.most, out.String())
		}
	}
}
