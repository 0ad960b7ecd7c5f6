package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// observing ends the observations of the policy in force at their time ("mode: observe" with "until"), and says so. The
// policy itself lets nothing more pass from that moment on.
type observing struct {
	daemon *Daemon
	ends   endings // ends.mu guards of and lasting

	of      *policy.Policy // that watch has looked at last
	lasting int            // observations of it that had not ended

	noted map[string]bool // ends that are recorded, by the text of the observation; of the goroutine that reloads
	again time.Time       // when to retry an end that could not be recorded; of that goroutine
}

// begin is called when a policy from files is in force. What had ended before needs no record.
func (o *observing) begin() {
	o.noted = map[string]bool{}
	for _, one := range o.daemon.policy.Observed() {
		o.noted[one.Text()] = !one.Lasts()
	}
	o.watch()
}

// watch cuts what is open only because of an observation that has ended, and is called again when the next one ends.
// Any goroutine may call it.
func (o *observing) watch() {
	now := o.daemon.current.Load()
	if now == nil {
		return
	}
	e := &o.ends
	e.mu.Lock()
	all := now.policy.Observed()
	lasting, wait := len(all), time.Duration(0)
	for _, one := range all {
		if one.Left == nil {
			continue
		}
		if left := one.Left(); left == 0 {
			lasting--
		} else if wait == 0 || left < wait {
			wait = left
		}
	}
	due := lasting < len(all) && (o.of != now.policy || lasting < o.lasting)
	o.of, o.lasting = now.policy, lasting
	e.wake(min(wait, lookEvery), o.watch) // timers stand still while the machine sleeps
	e.mu.Unlock()
	if due {
		o.daemon.Gate.Recheck(context.Background())
	}
}

// expire records the ends of observations. Only the goroutine that reloads may call it.
func (o *observing) expire(ctx context.Context) {
	if o.daemon.policy == nil || time.Now().Before(o.again) {
		return
	}
	for _, one := range o.daemon.policy.Observed() {
		text := one.Text()
		if one.Lasts() || o.noted[text] {
			continue
		}
		note := "observing " + text + " has ended, and the rules are enforced"
		again := *o.daemon.policy // the same one, and to the gate another
		if err := o.daemon.Gate.SetPolicy(ctx, &again, clipped(note)); err != nil {
			o.again = time.Now().Add(retryEnd)
			o.daemon.Complain(fmt.Errorf("record the end of mode: observe: %w", err))
			return
		}
		o.noted[text] = true
		now := *o.daemon.current.Load() // another one to those who keep what sandboxes may reach
		o.daemon.current.Store(&now)
		fmt.Fprintf(o.daemon.Talk, "egressd: %s\n", printable.Text(note))
	}
}

// nextEnd tells when an observation ends; never where none has an end.
func (o *observing) nextEnd() <-chan time.Time {
	wait := time.Duration(0)
	for _, one := range o.daemon.policy.Observed() {
		if one.Left == nil || o.noted[one.Text()] {
			continue
		}
		left := min(max(one.Left(), time.Until(o.again), 10*time.Millisecond), lookEvery)
		if wait == 0 || left < wait {
			wait = left
		}
	}
	if wait == 0 {
		return nil
	}
	return time.After(wait)
}

// say tells the operator and the log what the policy observes, after a reload. A start says it with all other warnings.
func (o *observing) say() error {
	for _, doubt := range o.daemon.Config.File.ModeDoubts() {
		err := o.daemon.Gate.Records.Note(record.KindPolicy, clipped("warning: "+doubt.String()))
		fmt.Fprintf(o.daemon.Talk, "egressd: warning: %s\n", printable.Text(doubt.String()))
		if err != nil {
			return fmt.Errorf("record what is observed: %w", err)
		}
	}
	return nil
}
