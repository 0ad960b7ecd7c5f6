package proxy

import (
	"strings"
	"testing"
)

// TestAHeadThatTricklesInIsSearchedOnce gives a head byte by byte, and destroys what was searched already: who looks at
// it again finds a bare LF and refuses.
func TestAHeadThatTricklesInIsSearchedOnce(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	w.Server.start.Do(w.Server.prepare)
	for says, more := range map[string]func(c *conn, piece string) bool{
		"to the proxy": func(c *conn, piece string) bool { return c.read([]byte(piece)) },
		"captured": func(c *conn, piece string) bool {
			c.head = append(c.head, piece...)
			return (&capture{conn: c}).understandHTTP(c.head, false)
		},
	} {
		c := newConn(nil, new(setup))
		c.connHolder = &connHolder{server: w.Server}
		if more(c, "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nX-Long: a") {
			t.Fatalf("%s: a head that is not whole was taken", says)
		}
		c.head[3] = '\n'
		for range strings.Repeat("a", 1000) {
			if more(c, "a") {
				t.Fatalf("%s: what was searched was looked at again", says)
			}
		}
	}
}
