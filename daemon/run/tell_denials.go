package run

import (
	"cmp"
	"context"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

const (
	tellAfter   = 2 * time.Second // a program that ends sooner has its denials in the summary alone
	tellMost    = 20              // lines of one run
	tellWaiting = 64              // denied places that wait for their line; more are left to the summary
)

// A denial is a place that was denied for the first time.
type denial struct {
	egress.DeniedHost
	at time.Time
}

// noteDenials has the tally report denied places to [runner.tellDenials].
func (r *runner) noteDenials() {
	r.denied = make(chan denial, tellWaiting)
	r.tally.First = func(d egress.DeniedHost) {
		select {
		case r.denied <- denial{d, time.Now()}:
		default:
		}
	}
}

// tellDenials writes a line for each denied destination while the program still runs, until ctx is done. Names below one
// registered domain have one line: a program can ask for any number of them.
func (r *runner) tellDenials(ctx context.Context) {
	told := map[string]bool{}
	for len(told) < tellMost {
		var d denial
		select {
		case d = <-r.denied:
		case <-ctx.Done():
			return
		}
		domain := cmp.Or(policy.Registrable(d.Host), d.Host)
		if told[domain] {
			continue
		}
		told[domain] = true
		select {
		case <-time.After(time.Until(d.at.Add(tellAfter))):
		case <-ctx.Done():
			return
		}
		r.talk.Say("egressd: denied: " + (&deniedPlace{DeniedHost: d.DeniedHost}).text() + "\n")
	}
	r.talk.Say("egressd: further denied destinations are named at the end, and by " + r.logCommand() + "\n")
}
