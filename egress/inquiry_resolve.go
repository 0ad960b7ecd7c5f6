package egress

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
)

// asyncMost is for how long an answer of an [AsyncResolver] may take.
const asyncMost = 5 * time.Second

// Prepare runs the first part of Answer without waiting: it charges the budgets and adds the record to the batch. Use it if
// AnswerNow reports that it would wait, and call Resolve afterwards. The error is a [*Refusal], and is recorded.
func (i *Inquiry) Prepare() error {
	f := i.flow
	if f.gate.Names.async == nil || i.batch == nil || !i.decided || f.policy.Shadow() != nil {
		return nil
	}
	if refusal := i.mayAsk(context.Background()); refusal != nil {
		f.account().names.EndWaiting()
		return refusal
	}
	i.batch.add(i)
	i.recorded, i.prepared = true, true
	return nil
}

// Resolve answers a prepared inquiry after its batch was written. It removes the inquiry from the batch and calls done once,
// before it returns or on another goroutine; done must not block. It returns false for an inquiry that was not
// prepared; then call Answer on a goroutine.
func (i *Inquiry) Resolve(done func(Answer, error)) bool {
	err := i.Written()
	i.Leave()
	if !i.prepared {
		return false
	}
	if err != nil {
		i.flow.account().names.EndWaiting()
		done(Answer{}, err)
		return true
	}
	g, seq := i.flow.gate, i.flow.seq
	log := g.config.Log
	if known, err := log.Settled(seq); known {
		i.ask(err, done)
		return true
	}
	log.Durable(seq, func(err error) { g.Names.recorded.add(&g.tasks, func() { i.ask(err, done) }) })
	return true
}

// ask asks the resolver, once it is known whether the record is durable.
func (i *Inquiry) ask(err error, done func(Answer, error)) {
	f := i.flow
	if err != nil {
		f.account().names.EndWaiting()
		done(Answer{}, f.refusal(unavailable))
		return
	}
	f.gate.Names.async.Ask(f.request.Destination.Host, func(addrs []netip.Addr, aliases []string, err error) {
		f.account().names.EndWaiting()
		f.hurried = true
		answer, failed := i.answer(addrs, aliases, err)
		f.hurried = false
		if failed == error(wouldWait) { // a policy has come that takes its time
			f.gate.tasks.start(func() { done(i.answer(addrs, aliases, err)) })
			return
		}
		done(answer, failed)
	})
}

// answer decides what the resolver said. One answer must not end the service of all. The error
// is a [*Refusal].
func (i *Inquiry) answer(addrs []netip.Addr, aliases []string, err error) (a Answer, failed error) {
	defer recovered.Log("deciding what a resolver has answered", func() {
		a, failed = Answer{}, i.flow.refusal(broken)
	})
	if refusal := i.resolved(addrs, aliases, err); refusal != nil {
		return Answer{}, refusal
	}
	a, refusal := i.judge(context.Background())
	return a, errorOf(refusal)
}

// broken is the refusal of what a mistake of egressd's own has kept from being decided.
var broken = policy.Decision{Class: policy.PolicyError, Rule: "gate", Layer: policy.Builtin, Reason: "the answer could not be decided"}

// A resolveQueue has the questions whose records have just become durable with one sync. It frees the syncing goroutine
// for the next sync. The zero value is empty.
type resolveQueue struct {
	mu      sync.Mutex // guards what follows
	running bool
	waiting []func()
}

// add has ask called soon, by a task that runs while there are any.
func (q *resolveQueue) add(t *tasks, ask func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, ask)
	if !q.running {
		q.running = true
		t.start(q.run)
	}
}

func (q *resolveQueue) run() {
	var all []func()
	for {
		q.mu.Lock()
		clear(all)
		all, q.waiting = q.waiting, all[:0]
		if len(all) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		for _, ask := range all {
			ask()
		}
	}
}
