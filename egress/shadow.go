package egress

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy"
)

// compare has the shadow of the policy that decided asked about r, before the
// record is written. Whoever calls it can wait, and has the flow to itself.
func (f *Flow) compare(ctx context.Context, r *policy.Request) {
	if f.policy.Shadow() == nil {
		return
	}
	f.decision = f.gate.shared.of(f.policy.Compare(ctx, f.approved(r), *f.decision))
}

// denied compares what the policy refuses, and records it. Nothing is to be recorded of what
// has to be decided once more.
func (f *Flow) denied(ctx context.Context, refusal *Refusal) *Refusal {
	if refusal == wouldWait {
		return wouldWait
	}
	f.compare(ctx, f.request)
	return f.refuse(*f.decision)
}

// A comparison is under way while the flow goes on, on an event loop that cannot
// wait for it. A flow that ends meanwhile has its close record written after it.
type comparison struct {
	running int
	ended   *ending // nil while the flow is open
}

// An ending is what a close record says of how a flow ended.
type ending struct {
	end  End
	took time.Duration
}

// end keeps what the close record will say.
func (c *comparison) end(e ending) { c.ended = &e }

// comparisons are those that are under way, of the few flows that have one. What is
// in a comparison is guarded by the lock of its flow.
type comparisons struct {
	n atomic.Int64 // how many there are: none costs no lock

	mu    sync.Mutex // guards what follows
	under map[*Flow]*comparison
}

// find returns the comparison of a flow, or nil.
func (c *comparisons) find(f *Flow) *comparison {
	if c.n.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.under[f]
}

// begin counts one more question about a flow.
func (c *comparisons) begin(f *Flow) *comparison {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.under == nil {
		c.under = map[*Flow]*comparison{}
	}
	if c.under[f] == nil {
		c.under[f] = new(comparison)
		c.n.Add(1)
	}
	c.under[f].running++
	return c.under[f]
}

func (c *comparisons) drop(f *Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.under, f)
	c.n.Add(-1)
}

// compareBeside is compare where nobody can wait. The caller holds f.mu.
func (f *Flow) compareBeside(ctx context.Context, r *policy.Request) {
	if f.policy.Shadow() == nil {
		return
	}
	c := f.gate.compared.begin(f)
	p, decided, asked := f.policy, f.decision, *f.approved(r)
	go func() { // ends when Compare's time is over
		d := p.Compare(ctx, &asked, *decided)
		f.mu.Lock()
		if f.decision == decided { // it was not decided again meanwhile
			f.decision = f.gate.shared.of(d)
		}
		if c.running--; c.running > 0 {
			f.mu.Unlock()
			return
		}
		f.settle()
	}()
}

// settle ends the comparison and writes the close record that waits for it, if
// one does. The caller holds f.mu, which settle releases.
func (f *Flow) settle() {
	c := f.gate.compared.find(f)
	if c == nil {
		f.mu.Unlock()
		return
	}
	f.gate.compared.drop(f)
	if c.ended != nil {
		f.recordEnd(*c.ended)
	}
	f.mu.Unlock()
	if c.ended != nil {
		f.gate.remove(f)
	}
}
