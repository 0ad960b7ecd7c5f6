package exchange

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/egressd/egressd/internal/fair"
)

// TestADroppedBodyHoldsNothing, whoever still has it.
func TestADroppedBodyHoldsNothing(t *testing.T) {
	r := new(fair.MemoryQuota)
	r.SetMost(1 << 20)
	held := &bodyScanner{handedOut: true, memory: r.Reserve("a", "a")}
	held.memory.Grow(1000)
	b := newBody(bytes.NewReader(nil), held, func(int) error { return nil }, func() {})
	b.ready = make([]byte, 1000)
	if n, err := b.Read(make([]byte, 100)); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	if held, _ := r.Held(); held != 1000 {
		t.Errorf("%d bytes are held", held)
	}
	b.Drop()
	if n, err := b.Read(make([]byte, 100)); n != 0 || !errors.Is(err, net.ErrClosed) || b.ready != nil || b.filter != nil {
		t.Errorf("there is more: %d, %v", n, err)
	}
	held.memory.Release()
	if held, sandboxes := r.Held(); held != 0 || sandboxes != 0 {
		t.Errorf("%d sandboxes still hold %d bytes", sandboxes, held)
	}
}
