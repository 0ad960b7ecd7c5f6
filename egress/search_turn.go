package egress

import (
	"context"
	"runtime"

	"github.com/egressd/egressd/internal/turns"
	"github.com/egressd/egressd/policy"
)

// searching limits the searches of long heads for canaries. It leaves one processor to the event
// loops if the machine has several.
var searching = turns.New(max(1, runtime.GOMAXPROCS(0)-1))

// An event loop searches a shorter head itself. A head of 64 KiB takes up to 5 ms, and a sandbox can send hundreds
// at once: other searches take turns by sandbox, and never run on an event loop.
const longHead = 4 << 10

// searchTurn waits for the turn of a search. It returns a denial if egressd stops before. The caller calls end after the search.
func (f *Flow) searchTurn(ctx context.Context, r *policy.Request) (end func(), d *policy.Decision) {
	if searching.TakeNow() {
		return searching.Give, nil
	}
	ctx, cancel := f.gate.untilShut(context.WithoutCancel(ctx))
	defer cancel()
	if searching.Take(ctx, r.Sandbox.Name) != nil {
		refusal := stopping
		return nil, &refusal
	}
	return searching.Give, nil
}

// headSize is how many bytes of r are searched.
func headSize(r *policy.Request) int {
	n := len(r.Destination.Host)
	if r.TLS != nil {
		n += len(r.TLS.ServerName) + len(r.TLS.NoName)
	}
	if h := r.HTTP; h != nil {
		n += len(h.Method) + len(h.Path) + len(h.Query)
		for name, values := range h.Header {
			n += len(name)
			for _, value := range values {
				n += len(value)
			}
		}
	}
	return n
}
