package proxy

import (
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fair"
)

// empty waits until no sandbox holds anything.
func empty(t *testing.T, q *fair.MemoryQuota, when string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		held, sandboxes := q.Held()
		switch {
		case sandboxes == 0:
			return
		case time.Now().After(deadline):
			t.Fatalf("%s: %d sandboxes still hold %d bytes", when, sandboxes, held)
		}
	}
}

// holds waits until all sandboxes together hold so many bytes.
func holds(t *testing.T, q *fair.MemoryQuota, want int64) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		held, _ := q.Held()
		switch {
		case held == want:
			return
		case time.Now().After(deadline):
			t.Fatalf("%d bytes are held, want %d", held, want)
		}
	}
}
