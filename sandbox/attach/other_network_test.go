//go:build linux

package attach

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoThreadStaysInAnothersNetwork has many networks be entered at a time: by each
// thread but the first one, which would not leave, and be what is compared with the
// network of the next container.
func TestNoThreadStaysInAnothersNetwork(t *testing.T) {
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			onThread(func() {
				if unix.Gettid() == unix.Getpid() {
					t.Error("on the first thread")
				}
			})
		})
	}
	all.Wait()
}
