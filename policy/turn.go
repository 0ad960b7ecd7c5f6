package policy

import (
	"context"
	"runtime"

	"github.com/egressd/egressd/internal/fair"
)

// workPerTurn is how many bytes of paths are compared with patterns in one turn. It takes less than
// a millisecond.
const workPerTurn = 64 << 10

// comparing limits the long evaluations of all lists in the process. It leaves one processor to the event
// loops if the machine has several. Rego and the searches for canaries have turns of their own: a turn of Rego
// takes up to 100 ms, and one of these takes less than a millisecond. In common turns, 64 KiB of a long path or
// of a body would wait for 100 ms each.
var comparing = fair.NewTurns(max(1, runtime.GOMAXPROCS(0)-1))

// An evaluationTurn is one evaluation of a list. Hundreds of path patterns take milliseconds for one long path, and
// a sandbox can send hundreds of such requests at once. Such an evaluation therefore takes turns by
// sandbox. A short evaluation never waits.
type evaluationTurn struct {
	ctx     context.Context
	sandbox *Sandbox
	work    int // since it last looked whether others wait
	held    bool
	err     error // of ctx, which ended the wait
}

// spend is called before work is done, in bytes of paths times patterns. It reports false if ctx has
// ended; the evaluation ends then. A nil turn never waits.
func (t *evaluationTurn) spend(work int) bool {
	if t == nil {
		return true
	}
	if t.work += work; t.err != nil || t.work <= workPerTurn {
		return t.err == nil
	}
	t.work = 0
	if t.held && comparing.Waiting() == 0 {
		return true
	}
	t.end()
	t.err = comparing.Take(t.ctx, t.sandbox.Holder(), t.sandbox.Name)
	t.held = t.err == nil
	return t.held
}

func (t *evaluationTurn) end() {
	if t.held {
		t.held = false
		comparing.Give()
	}
}
