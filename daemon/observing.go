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
	ends   endings // ends.mu guards what follows

	of      *policy.Policy  // that watch has looked at last
	lasting int             // observations of it that had not ended
	noted   map[string]bool // ends that are recorded, by the text of the observation
}

// begin is called when a policy from files is in force. What had ended before needs no record.
func (o *observing) begin() {
	noted := map[string]bool{}
	for _, one := range o.daemon.policy.Observed() {
		noted[one.Text()] = !one.Lasts()
	}
	o.ends.mu.Lock()
	o.noted = noted
	o.ends.mu.Unlock()
	o.watch()
}

// watch cuts the connections that only an ended observation allowed. It runs again when the next observation ends, and as long as
// an end is not recorded. Any goroutine may call it.
func (o *observing) watch() {
	now := o.daemon.current.Load()
	if now == nil {
		return
	}
	e := &o.ends
	e.mu.Lock()
	all := now.policy.Observed()
	lasting, over, wait := len(all), false, time.Duration(0)
	for _, one := range all {
		if one.Left == nil {
			continue
		}
		left := one.Left()
		if left == 0 {
			lasting--
			if o.noted[one.Text()] {
				continue
			}
			over, left = true, retryEnd
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	cut := lasting < len(all) && (o.of != now.policy || lasting < o.lasting)
	o.of, o.lasting = now.policy, lasting
	e.wake(min(wait, lookEvery), o.watch) // timers stand still while the machine sleeps
	e.mu.Unlock()
	if cut {
		o.daemon.Gate.Recheck(context.Background())
	}
	if over {
		e.tell()
	}
}

// expire records the ends of observations. Only the goroutine that reloads may call it.
func (o *observing) expire(ctx context.Context) {
	for _, one := range o.daemon.policy.Observed() {
		text := one.Text()
		if one.Lasts() || o.isNoted(text) {
			continue
		}
		note := "observing " + text + " has ended, and the rules are enforced"
		again := *o.daemon.policy // the same one, and to the gate another
		if err := o.daemon.Gate.SetPolicy(ctx, &again, clipped(note)); err != nil {
			o.daemon.Complain(fmt.Errorf("record the end of mode: observe: %w", err)) // and it is tried again
			return
		}
		o.ends.mu.Lock()
		o.noted[text] = true
		o.ends.mu.Unlock()
		now := *o.daemon.current.Load() // another one to those who keep what sandboxes may reach
		o.daemon.current.Store(&now)
		fmt.Fprintf(o.daemon.Talk, "egressd: %s\n", printable.Text(note))
	}
}

func (o *observing) isNoted(text string) bool {
	o.ends.mu.Lock()
	defer o.ends.mu.Unlock()
	return o.noted[text]
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
