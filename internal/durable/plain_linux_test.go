package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPlainReadsNothingOfTheKernel: /proc and the like are full of what looks like plain
// files, and some have no end, or wait for something to happen. A link is what it leads to.
func TestPlainReadsNothingOfTheKernel(t *testing.T) {
	for _, path := range []string{"/proc/kmsg", "/proc/self/pagemap", "/proc/self/mountinfo", "/proc/version", "/proc/sys/kernel/ostype"} {
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{path, link} {
			text, err := Plain(name, 1<<20)
			if err == nil || len(text) > 0 || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "no plain file") {
				t.Errorf("%s: %q, %v", name, text, err)
			}
		}
	}
}
