package proxy

import (
	"errors"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/http1"
)

// TestAHeadThatTricklesInIsSearchedOnce gives a head byte by byte, and destroys what was searched already: who looks at
// it again finds a bare LF and refuses.
func TestAHeadThatTricklesInIsSearchedOnce(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	w.Server.start.Do(w.Server.prepare)
	c := &conn{server: w.Server}
	head := []byte("GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nX-Long: a")
	var scanner http1.Scanner
	if _, _, err := c.parseHead(&scanner, head); !errors.Is(err, http1.ErrShort) {
		t.Fatal("a head that is not whole was taken")
	}
	head[3] = '\n'
	for range strings.Repeat("a", 1000) {
		head = append(head, 'a')
		if _, _, err := c.parseHead(&scanner, head); !errors.Is(err, http1.ErrShort) {
			t.Fatal("what was searched was looked at again")
		}
	}
}
