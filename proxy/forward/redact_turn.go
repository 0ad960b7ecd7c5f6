package forward

import (
	"context"
	"runtime"

	"github.com/egressd/egressd/internal/turns"
)

// redacting limits how many responses are redacted at once, 35 to 600 MB a second. It leaves one processor free on a
// machine with several. Sandboxes take turns, part by part.
var redacting = turns.New(max(1, runtime.GOMAXPROCS(0)-1))

// A shorter part of a response is redacted at once.
const longPart = 4 << 10

// redactTurn waits for the turn of a sandbox in which so many bytes are redacted. The caller calls end afterwards. A turn
// only computes, and so no wait needs a limit.
func redactTurn(sandbox string, size int) (end func()) {
	if size < longPart || redacting.Take(context.Background(), sandbox) != nil {
		return func() {}
	}
	return redacting.Give
}
