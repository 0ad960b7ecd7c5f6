package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/egressd/egressd/internal/printable"
)

// answering says that there is an operator's listener, at which what the policy asks is
// answered, until stop is called. How long flows are held is read at the start, as all limits.
func (o *operator) answering() (stop func()) {
	wait := o.daemon.Config.File.Limits.AskWait
	o.daemon.Gate.Approvals.Open(true, wait)
	return func() { o.daemon.Gate.Approvals.Open(false, wait) }
}

// announceEvery is how long announceQuestions rests after a new question, so that a flood of them costs little.
const announceEvery = 250 * time.Millisecond

// announceQuestions writes a line for each new question, until ctx is done.
func (o *operator) announceQuestions(ctx context.Context) {
	told := map[string]bool{}
	for version := ^uint64(0); ctx.Err() == nil; {
		all := o.daemon.Gate.Approvals.Questions(ctx, version)
		version = all.Version
		now, news := make(map[string]bool, len(all.Questions)), false
		for i := range all.Questions {
			q := &all.Questions[i]
			if now[q.ID] = true; q.State == "pending" && !told[q.ID] {
				fmt.Fprintf(o.daemon.Talk, "egressd: question: %s\n", printable.Text(q.Ask(o.daemon.flag)))
				news = true
			}
		}
		if told = now; !news {
			continue
		}
		select {
		case <-time.After(announceEvery):
		case <-ctx.Done():
		}
	}
}
