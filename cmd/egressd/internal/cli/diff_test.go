package cli

import (
	"strings"
	"testing"
)

func TestUnifiedDiff(t *testing.T) {
	old := "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n"
	for _, row := range []struct{ name, old, new, want string }{
		{"no change", old, old, ""},
		{"a new file", "", "a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n"},
		{"an emptied file", "a\n", "", "@@ -1,1 +0,0 @@\n-a\n"},
		{"one line", "a\nb\nc\n", "a\nB\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"},
		{
			"two hunks", old, strings.Replace(strings.Replace(old, "2\n", "two\n", 1), "15\n", "", 1),
			"@@ -1,5 +1,5 @@\n 1\n-2\n+two\n 3\n 4\n 5\n@@ -12,5 +12,4 @@\n 12\n 13\n 14\n-15\n 16\n",
		},
		{
			"near changes share a hunk", "1\n2\n3\n4\n5\n6\n7\n8\n", "x\n2\n3\n4\n5\n6\n7\ny\n",
			"@@ -1,8 +1,8 @@\n-1\n+x\n 2\n 3\n 4\n 5\n 6\n 7\n-8\n+y\n",
		},
	} {
		want := "--- a\n+++ b\n" + row.want
		if got := UnifiedDiff("a", "b", row.old, row.new); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", row.name, got, want)
		}
	}
}

// TestUnifiedDiffOfWhatNoPersonWrote has files of which every pair of lines would take 32 GiB.
func TestUnifiedDiffOfWhatNoPersonWrote(t *testing.T) {
	const lines = 1 << 16
	old := "first\n" + strings.Repeat("\n", lines) + "last\n"
	for says, row := range map[string]struct{ new, want string }{
		"a line is added":    {strings.Replace(old, "last", "more\nlast", 1), "@@ -65535,4 +65535,5 @@\n \n \n \n+more\n last\n"},
		"a line is left out": {strings.TrimPrefix(old, "first\n"), "@@ -1,4 +1,3 @@\n-first\n \n \n \n"},
		"most is something else": {"first\n" + strings.Repeat("x\n", lines) + "last\n",
			"@@ -1,65538 +1,65538 @@\n first\n" + strings.Repeat("-\n", lines) + strings.Repeat("+x\n", lines) + " last\n"},
	} {
		if got := UnifiedDiff("a", "b", old, row.new); got != "--- a\n+++ b\n"+row.want {
			t.Errorf("%s: %d bytes, %.200q", says, len(got), got)
		}
	}
}
