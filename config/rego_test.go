package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRegoThatIsTooLarge(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.json")
	f, err := os.Create(big)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(maxRegoBytes + 1); err != nil { // takes no room on disk
		t.Fatal(err)
	}
	f.Close()
	if _, err := ReadRego([]string{dir}); err == nil || !strings.Contains(err.Error(), "larger than 64 MiB together") {
		t.Error(err)
	}
}
