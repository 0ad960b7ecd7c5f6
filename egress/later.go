package egress

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
)

// askMost is for how long an answer of an [Asker] may take.
const askMost = 5 * time.Second

// Prepare runs the first part of Answer without waiting: it charges the budgets and adds the record to the round. Use it if
// AnswerNow reports that it would wait, and call Later afterwards. The error is a [*Refusal], and is recorded.
func (i *Inquiry) Prepare() error {
	f := i.flow
	if f.gate.asker == nil || i.round == nil || !i.decided || f.policy.Shadow() != nil {
		return nil
	}
	if refusal := i.mayAsk(context.Background()); refusal != nil {
		f.slot().doneWaiting()
		return refusal
	}
	i.round.add(i)
	i.recorded, i.prepared = true, true
	return nil
}

// Later answers a prepared inquiry after its round was written. It removes the inquiry from the round and calls done once,
// before it returns or on another goroutine; done must not block. It returns false for an inquiry that was not
// prepared; then call Answer on a goroutine.
func (i *Inquiry) Later(done func(Answer, error)) bool {
	err := i.Written()
	i.Leave()
	if !i.prepared {
		return false
	}
	if err != nil {
		i.flow.slot().doneWaiting()
		done(Answer{}, err)
		return true
	}
	g, seq := i.flow.gate, i.flow.seq
	log := g.config.Log
	if known, err := log.Settled(seq); known {
		i.ask(err, done)
		return true
	}
	log.Durable(seq, func(err error) { g.asks.add(&g.crew, func() { i.ask(err, done) }) })
	return true
}

// ask asks the resolver, once it is known whether the record is durable.
func (i *Inquiry) ask(err error, done func(Answer, error)) {
	f := i.flow
	if err != nil {
		f.slot().doneWaiting()
		done(Answer{}, f.refusal(unavailable))
		return
	}
	f.gate.asker.Ask(f.request.Destination.Host, func(addrs []netip.Addr, aliases []string, err error) {
		f.slot().doneWaiting()
		f.hurried = true
		told, failed := i.answer(addrs, aliases, err)
		f.hurried = false
		if failed == error(wouldWait) { // a policy has come that takes its time
			f.gate.crew.do(func() { done(i.answer(addrs, aliases, err)) })
			return
		}
		done(told, failed)
	})
}

// answer decides what the resolver said. One answer must not end the service of all. The error
// is a [*Refusal].
func (i *Inquiry) answer(addrs []netip.Addr, aliases []string, err error) (told Answer, failed error) {
	defer recovered.Log("deciding what a resolver has answered", func() {
		told, failed = Answer{}, i.flow.refusal(broken)
	})
	if refusal := i.resolved(addrs, aliases, err); refusal != nil {
		return Answer{}, refusal
	}
	a, refusal := i.judge(context.Background())
	return a, errorOf(refusal)
}

// broken is the refusal of what a mistake of egressd's own has kept from being decided.
var broken = policy.Decision{Class: policy.PolicyError, Rule: "gate", Layer: policy.Builtin, Reason: "the answer could not be decided"}

// asks is a queue of questions whose records have just become durable with one sync. It frees the syncing goroutine for the
// next sync. The zero value is ready to use.
type asks struct {
	mu      sync.Mutex // guards what follows
	running bool
	waiting []func()
}

// add has ask called soon by a goroutine of c that is there as long as there are any.
func (a *asks) add(c *crew, ask func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = append(a.waiting, ask)
	if !a.running {
		a.running = true
		c.do(a.run)
	}
}

func (a *asks) run() {
	var all []func()
	for {
		a.mu.Lock()
		clear(all)
		all, a.waiting = a.waiting, all[:0]
		if len(all) == 0 {
			a.running = false
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		for _, ask := range all {
			ask()
		}
	}
}
