package egressd_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var longForm = regexp.MustCompile(`"EGRESSD_((?:E2E|AUDIT|SIGNALS|BENCH)_[A-Z]+|SEEDS)"`)

// TestLongFormsAreListed: CONTRIBUTING.md names each variable by which a test does more.
func TestLongFormsAreListed(t *testing.T) {
	list, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	err = filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range longForm.FindAllStringSubmatch(string(text), -1) {
			found++
			name := "EGRESSD_" + match[1]
			short := strings.TrimPrefix(name, "EGRESSD_SIGNALS")
			if !strings.Contains(string(list), "`"+name) && !strings.Contains(string(list), "`"+short+"`") {
				t.Errorf("%s: %s is not in CONTRIBUTING.md", path, name)
			}
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("%d variables were found, %v", found, err)
	}
}
