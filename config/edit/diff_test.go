package edit

import "testing"

func TestUnifiedDiff(t *testing.T) {
	for _, row := range []struct{ name, old, new, want string }{
		{"no change", "a\n", "a\n", ""},
		{"a new file", "", "a\nb\n", "--- a\n+++ b\n@@ -0,0 +1,2 @@\n+a\n+b\n"},
		{"one line", "a\nb\nc\n", "a\nB\nc\n", "--- a\n+++ b\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"},
		{"a line that a terminal would act on", "", "\x1b[2J\n", "--- a\n+++ b\n@@ -0,0 +1,1 @@\n+\\x1b[2J\n"},
	} {
		if got := UnifiedDiff("a", "b", row.old, row.new); got != row.want {
			t.Errorf("%s:\n%s\nwant\n%s", row.name, got, row.want)
		}
	}
}
