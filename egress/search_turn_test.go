package egress

import (
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestSearchesTakeTurns takes all turns, and then has requests opened with heads of two sizes.
func TestSearchesTakeTurns(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.setCanary(t)
	withHead := func(size int) policy.Request {
		r := ask(t, "127.0.0.1:80")
		r.Via = policy.ViaHTTP
		r.HTTP = &policy.HTTPRequest{Method: "GET", Path: "/", Header: http.Header{"X-Text": {strings.Repeat("a", size)}}}
		return r
	}
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		if !searching.TakeNow() {
			t.Fatal("no turn is free")
		}
		defer searching.Give()
	}
	opened := make(chan error, 2)
	for _, size := range []int{1 << 10, 8 << 10} { // of short ones there can be any number
		go func() {
			_, err := w.Open(t.Context(), peer, withHead(size))
			opened <- err
		}()
	}
	for searching.Waiting() < cap(opened) {
		select {
		case err := <-opened:
			t.Fatalf("a head was searched without a turn: %v", err)
		default:
			runtime.Gosched()
		}
	}
	w.Shut() // ends the waits, too
	for range cap(opened) {
		refusalOf(t, <-opened, policy.PolicyNotLoaded)
	}
}
