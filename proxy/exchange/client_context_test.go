package exchange

import (
	"net"
	"testing"
	"time"
)

// TestAPresenceIsDoneWhenItHasAnError as [context.Context] wants it: whoever reads from Done after
// Err has returned an error does not wait.
func TestAPresenceIsDoneWhenItHasAnError(t *testing.T) {
	for _, asked := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		far, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		near, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		p := (&Client{Raw: near}).Context()
		if asked { // somebody waits already
			p.Done()
		}
		if err := p.Err(); err != nil {
			t.Fatalf("the client is there: %v", err)
		}
		far.Close()
		for p.Err() == nil {
			time.Sleep(time.Millisecond) // for the end to arrive
		}
		select {
		case <-p.Done():
		default:
			t.Errorf("Err told of the end before Done, asked before: %v", asked)
		}
		p.Release()
		if p.Err() == nil {
			t.Error("it has no error any more")
		}
	}
}
