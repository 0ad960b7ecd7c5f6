package run

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestWhatStandsIsNotRemovedByARunThatEnds has runs begin while others end.
func TestWhatStandsIsNotRemovedByARunThatEnds(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 500 {
				r := &repository{}
				r.keepCommon(dir)
				r.keepEmpty(filepath.Join(dir, "hooks"))
				r.closeFolder(filepath.Join(dir, "worktrees"))
				for _, name := range []string{"commondir", "hooks", "worktrees"} {
					if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
						t.Error(err)
					}
				}
				if len(r.held) != 3 {
					t.Errorf("%d of 3 are held", len(r.held))
				}
				r.release(false)
			}
		})
	}
	all.Wait()
}
