package run

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/tty"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
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

// followDenials reads the log of the daemon beside this run, and reports denied places of the sandbox to
// [runner.tellDenials], until ctx is done. Another run of the same sandbox counts as this one.
func (r *runner) followDenials(ctx context.Context) {
	log := r.records
	if log == nil {
		return
	}
	defer log.Close()
	name, known := cmp.Or(r.beside.handed.Answer.Sandbox, r.name), map[string]bool{}
	var joiner logs.Joiner
	_ = log.Follow(ctx, &joiner, new(logs.Filter), func(_ string, d *record.Record) error {
		if d.Sandbox != name || d.Kind == record.KindDNS || d.Decision == nil || d.Decision.Action != "deny" || d.Dst == nil {
			return nil
		}
		if at := logs.Destination(d); !known[at] && len(known) < tellWaiting {
			known[at] = true
			r.tally.First(egress.DeniedHost{Host: logs.Host(d), Times: 1, Port: d.Dst.Port, Class: policy.Class(d.Decision.Class), Reason: strings.Clone(d.Decision.Reason)})
		}
		return nil
	})
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
		if !r.awaitLines(ctx) {
			return
		}
		var said strings.Builder
		fmt.Fprintf(&said, "egressd: denied: %s\n", (&deniedPlace{DeniedHost: d.DeniedHost}).text())
		if len(told) == 1 {
			sayMessage(&said, r.denyMessage())
		}
		r.sayBesidePrompts(said.String())
	}
	if r.awaitLines(ctx) {
		r.sayBesidePrompts("egressd: further denied destinations are named at the end, and by " + r.logCommand() + "\n")
	}
}

const linesLook = 300 * time.Millisecond // between two looks at the terminal's mode

// awaitLines waits while the program on the terminal takes single keys, as full-screen programs and line editors do: a line of
// egressd would stand in the middle of what they draw. It reports false once ctx is done.
func (r *runner) awaitLines(ctx context.Context) bool {
	out, ok := r.talk.To.(*os.File)
	for ok && tty.TakesKeys(out) {
		select {
		case <-time.After(linesLook):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// sayBesidePrompts writes text at once, or when the person who is being asked has answered.
func (r *runner) sayBesidePrompts(text string) {
	r.prompt.Lock()
	defer r.prompt.Unlock()
	r.talk.Say(text)
}
