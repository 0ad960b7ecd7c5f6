package hostpaths

import (
	"os"
	"path/filepath"
	"testing"
)

// TestAFileThatIsMountedByItselfIsKnown looks at a mount point that each Linux has, and at an ordinary file.
func TestAFileThatIsMountedByItselfIsKnown(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/proc": true, plain: false, plain + ".missing": true} {
		if got := isMounted(path); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
}
