package rego

import (
	"fmt"
	"sync"
	"time"
)

const (
	// restTime is how long a policy that used up its deadline is not evaluated again for the same sandbox.
	restTime = time.Second

	// maxResting bounds the sandboxes that are remembered. Beyond it, the policy rests for all of them.
	maxResting = 1024
)

// rests remembers for which sandboxes a policy has used up its deadline within the last second. Their
// requests fail at once, so a policy that never ends takes the processor from its own decisions and not
// from those of other policies. A sandbox cannot make it rest for another one.
type rests struct {
	mu    sync.Mutex // guards until
	until map[string]time.Time
}

func newRests() *rests { return &rests{until: map[string]time.Time{}} }

// begin lets the policy rest for a sandbox.
func (r *rests) begin(sandbox string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.until) >= maxResting {
		for name, end := range r.until {
			if now.After(end) {
				delete(r.until, name)
			}
		}
	}
	if len(r.until) >= maxResting {
		sandbox = everySandbox
	}
	r.until[sandbox] = now.Add(restTime)
}

// everySandbox is not the name of a sandbox.
const everySandbox = " "

// check returns an error while the policy rests.
func (r *rests) check(sandbox string, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.until) > 0 && (now.Before(r.until[sandbox]) || now.Before(r.until[everySandbox])) {
		return fmt.Errorf("an evaluation for this sandbox took too long within the last %v, so the policy is not asked", restTime)
	}
	return nil
}
