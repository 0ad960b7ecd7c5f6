package doctor

import (
	"context"
	"net/http"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/daemon/policystatus"
)

// askWithin is how long a running daemon may take to say what came of its messages.
const askWithin = 2 * time.Second

// notifyFindings are about who is told of questions, as a running egressd serve has it.
func notifyFindings(c *config.Config) (all []Finding) {
	const check = "notify"
	if len(c.File.Notify.To) == 0 {
		return nil
	}
	at, err := client.Dial(client.Place{Config: c.Path})
	var s policystatus.Status
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), askWithin)
		defer cancel()
		_, err = at.Ask(ctx, http.MethodGet, "/v1/policy", &s)
	}
	if err != nil {
		return []Finding{{Check: check, Says: "nobody is told of questions until egressd serve runs"}}
	}
	for _, to := range s.Notified {
		switch {
		case to.Error != "":
			all = append(all, Finding{check, to.Name + " was not told: " + to.Error, "look after the receiver, and after notify.to in " + c.Path})
		case to.Last.IsZero():
			all = append(all, Finding{Check: check, Says: to.Name + " is told of the next question"})
		default:
			all = append(all, Finding{Check: check, Says: to.Name + " was told last at " + to.Last.Local().Format(time.DateTime)})
		}
	}
	return all
}
