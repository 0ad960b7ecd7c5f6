package run

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/printable"
)

// questionsAgain is how long tellQuestions waits after an error.
const questionsAgain = 2 * time.Second

// tellQuestions writes a line for each question of this run's sandbox that the daemon asks, until ctx is done. It writes at
// once, since the program waits for the answer.
func (r *runner) tellQuestions(ctx context.Context) {
	told, name := map[string]bool{}, cmp.Or(r.beside.handed.Answer.Sandbox, r.name)
	for path := "/v1/questions"; ctx.Err() == nil; {
		var all egress.Questions
		c, err := client.Dial(client.Place{Config: r.options.Config})
		if err == nil {
			_, err = c.Ask(ctx, http.MethodGet, path, &all)
		}
		if err != nil {
			select {
			case <-time.After(questionsAgain):
			case <-ctx.Done():
			}
			continue
		}
		path = "/v1/questions?after=" + strconv.FormatUint(all.Version, 10)
		now := map[string]bool{}
		for i := range all.Questions {
			q := &all.Questions[i]
			if now[q.ID] = true; q.Sandbox == name && q.State == "pending" && !told[q.ID] {
				r.talk.Say("egressd: question: " + printable.Text(q.Ask(daemon.ConfigFlag(r.options.Config))) + "\n")
			}
		}
		told = now
	}
}
