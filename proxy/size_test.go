package proxy

import (
	"testing"
	"unsafe"
)

// TestAConnectionIsSmall guards the memory of idle tunnels. The Go runtime
// rounds 177 bytes up to 192.
func TestAConnectionIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(conn{}); size > 176 {
		t.Errorf("a connection has %d bytes", size)
	}
}
