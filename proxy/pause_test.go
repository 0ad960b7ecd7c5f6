package proxy

import (
	"context"
	"encoding/base64"
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/sandbox"
)

// TestShutdownEndsThePauseAfterAWrongToken, which has grown to its longest.
func TestShutdownEndsThePauseAfterAWrongToken(t *testing.T) {
	basic := base64.StdEncoding.EncodeToString([]byte("one:wrong"))
	for name, say := range map[string]func(c *testClient){
		"HTTP": func(c *testClient) {
			c.send("GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nProxy-Authorization: Basic " + basic + "\r\n\r\n")
		},
		"SOCKS5": func(c *testClient) { c.send("\x05\x01\x02").expect("\x05\x02").send("\x01\x03one\x05wrong") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, openPolicy, []sandbox.Entry{{Name: "one", Token: "right"}}, nil, nil)
			for range 8 {
				w.Sandboxes.Failed(sandbox.Peer{Addr: netip.MustParseAddrPort("127.0.0.1:1")}, time.Now())
			}
			c := w.dial(t)
			say(c)
			for len(w.records(t)) < 2 { // the refusal comes before the pause
				time.Sleep(time.Millisecond)
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			began := time.Now()
			w.Shutdown(ctx)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
