package answers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newApprove() *cobra.Command {
	o := answerOptions{what: "approve", counts: approvals.ApprovedFor}
	cmd := o.command()
	cmd.Use = "approve ID…"
	cmd.Short = "Approve a pending question"
	cmd.Long = `Approve lets the request of a question pass for an hour, or for as long as --for
says. The approval is for that sandbox, host, port and rule and, if the question
names them, that method and path. The rest of the policy still decides.

When the time is over, or after egressd reject, connections that only the approval
allowed are cut. Approvals are recorded. They change no file, and end when
egressd serve stops or the rule no longer asks.

Exit codes: 0 all are approved; 1 there was no such question, or egressd serve
does not answer.`
	cmd.Example = "  egressd questions\n  egressd approve 01KB6ZQ4SZ\n  egressd approve 01KB6ZQ4SZ --once"
	cmd.Flags().BoolVar(&o.once, "once", false, "approve only the requests that wait now; they too end with --for")
	return cmd
}

type answerOptions struct {
	what   string
	at     client.Place
	counts time.Duration
	once   bool
	json   bool
}

func (o *answerOptions) command() *cobra.Command {
	cmd := &cobra.Command{
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return o.complete(cmd.Context(), args, prefix), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cli.DaemonFlags(cmd, &o.at)
	cli.JSONFlag(cmd, &o.json)
	cli.DurationFlag(cmd, &o.counts, "for", o.counts, "how long the answer lasts, from 1s to 24h")
	return cmd
}

func (o *answerOptions) run(ctx context.Context, w, talk io.Writer, ids []string) error {
	if len(ids) == 0 {
		return hint.Misused(fmt.Errorf("there is nothing to %s", o.what), "egressd questions, then egressd "+o.what+" ID")
	}
	if o.counts < time.Second || o.counts > approvals.MaxAnswer {
		return hint.Misused(errors.New("--for is a duration from 1s to 24h"), "egressd "+o.what+" "+shell.Word(ids[0])+" --for 8h; a rule in the policy counts for longer")
	}
	for i, id := range ids {
		ids[i] = strings.ToUpper(id)
		if _, ok := record.ParseID(ids[i]); !ok {
			return hint.Misused(fmt.Errorf("%q is not the id of a question", id), "egressd questions, which lists them")
		}
	}
	c, err := client.Dial(o.at)
	if err != nil {
		return err
	}
	each := cli.Each[admin.Answer]{
		Client: c, Method: http.MethodPost, List: "egressd questions", JSON: o.json,
		Path: func(id string) string { return "/v1/questions/" + id + "/" + o.what + "?" + o.terms() },
		Say:  func(_ string, done *admin.Answer) string { return said(done) },
	}
	return each.Run(ctx, w, talk, ids)
}

func (o *answerOptions) terms() string {
	q := url.Values{"for": {o.counts.String()}}
	if o.once {
		q.Set("once", "true")
	}
	return q.Encode()
}

// said repeats what was answered, in words that show what that is about.
func said(a *admin.Answer) string {
	q := &a.Question
	may, undo := "may reach", "; undo: egressd reject "+q.ID
	if q.State == "rejected" {
		may, undo = "may not reach", ""
	}
	if q.Method != "" {
		may = strings.Replace(may, "reach", "send "+printable.Word(requestOf(q))+" to", 1)
	}
	return fmt.Sprintf("%s: sandbox %s %s %s (rule %s)%s", stateText(q), printable.Word(q.Sandbox), may, printable.Word(placeOf(q)), printable.Word(q.Rule), undo)
}

// complete lists the questions that can be answered.
func (o *answerOptions) complete(ctx context.Context, args []string, prefix string) (found []string) {
	c, err := client.Dial(o.at)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var all egress.Questions
	if _, err := c.Ask(ctx, http.MethodGet, "/v1/questions", &all); err != nil {
		return nil
	}
	given := " " + strings.ToUpper(strings.Join(args, " ")) + " "
	for i := range all.Questions {
		q := &all.Questions[i]
		if strings.HasPrefix(q.ID, strings.ToUpper(prefix)) && !strings.Contains(given, " "+q.ID+" ") {
			found = append(found, cobra.CompletionWithDesc(q.ID, printable.Word(q.State+" "+placeOf(q)+" "+requestOf(q))))
		}
	}
	return found
}
