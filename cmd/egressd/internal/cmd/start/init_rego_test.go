package start

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestTheStarterOfRegoIsWhole has every file of the starter be written.
func TestTheStarterOfRegoIsWhole(t *testing.T) {
	root := "starter"
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if !slices.ContainsFunc(regoStarter[:], func(f struct{ from, to string }) bool { return f.from == name }) {
			t.Errorf("%s is written nowhere", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
