package confine

import (
	"strings"
	"syscall"
	"testing"
)

// TestTooFewFilesAreSaid: one sandbox used up half of what 20,000 files allow, and nothing had been said.
func TestTooFewFilesAreSaid(t *testing.T) {
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) })
	for _, c := range []struct {
		files uint64
		most  int
		said  bool
	}{{20000, 20000, true}, {1000, 100, false}} {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: min(c.files, was.Max), Max: was.Max}); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		WarnFiles(&out, c.most)
		if said := out.Len() > 0; said != c.said {
			t.Errorf("%d files, %d connections: %q", c.files, c.most, out.String())
		}
	}
}
