package audit

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestNoKeyThatSignedARecordStays: who takes over a log in which nothing happens, or
// that is closed, finds no key that could sign its last records anew.
func TestNoKeyThatSignedARecordStays(t *testing.T) {
	for what, end := range map[string]func(*Log){
		"idle":   func(*Log) { time.Sleep(3 * time.Hour) },
		"closed": func(l *Log) { closeLog(t, l) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "audit")
				l := create(t, dir, Options{})
				origin, key := l.Origin()
				appendTo(t, l, named("one"))
				if _, err := l.Checkpoint(); err != nil {
					t.Fatal(err)
				}
				end(l)
				stays, err := readKeys(keyPath(keyFolder(dir, ""), origin, ".key"))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := readNotes(notePath(dir, 1), func(n []byte, c *checkpoint) error {
					if signedBy(n, stays.now.public()) {
						t.Errorf("the key that is left signed the checkpoint of %d records", c.size)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if what == "idle" {
					closeLog(t, l)
				}
				r, err := Verify(dir, key, nil)
				if err != nil || r.Code != Good || r.Epochs != 2 {
					t.Errorf("%+v, %v; want two epochs", r, err)
				}
				closeLog(t, open(t, dir, Options{}))
				if r, err = Verify(dir, key, nil); err != nil || r.Code != Good || r.Epochs != 2 {
					t.Errorf("opened again: %+v, %v; want two epochs", r, err)
				}
			})
		})
	}
}
