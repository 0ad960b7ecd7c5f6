package answers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
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

func newAnswer() *cobra.Command {
	var o answerOptions
	cmd := &cobra.Command{
		Use:   "answer [ID… yes|no]",
		Short: "List and answer requests that wait for a person",
		Long: `Without arguments, answer lists requests that a rule under "ask" holds for a person,
and those that programs ask for themselves (http://egressd.internal/ in the sandbox), oldest first,
with the answers that still count. It asks the running egressd serve.
A question is about one sandbox, one host and port, and one rule. If the rule asks only
about some requests, the question also names one method and path. Hosts, paths,
programs and reasons (says why) are shown as the sandbox gave them.

ID yes lets the request of a question pass for an hour, ID no denies it and further
ones for ten minutes, without asking again: both for that question alone, or for as
long as --for says. The first answer counts: if somebody has answered, the command says
so, and --change replaces that answer, for example to take a yes back. The rest of the
policy still decides. When the time of a yes is over, or after a no, egressd cuts connections that only the yes allowed. A yes to what
a program asked for itself is a grant for that time (egressd allow --list). Answers are
recorded. They change no file, and end when egressd serve stops or the rule no longer
asks.

Exit codes: 0 done; 1 there was no such question, or egressd serve does not answer.`,
		Example: `  egressd answer
  egressd answer -f --notify
  egressd answer 01KB6ZQ4SZ yes
  egressd answer 01KB6ZQ4SZ yes --once
  egressd answer 01KB6ZQ4SZ no --for 8h
  egressd answer 01KB6ZQ4SZ no --change
  egressd answer --json | jq -r 'select(.state == "pending").id'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return o.show(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), cmd.Flags().Changed("for"))
			}
			return o.answer(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args, cmd.Flags().Changed("for"))
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return o.complete(cmd.Context(), args, prefix), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cli.DaemonFlags(cmd, &o.at)
	cli.JSONFlag(cmd, &o.json)
	cli.DurationFlag(cmd, &o.counts, "for", approvals.ApprovedFor, "how long the answer lasts, from 1s to 24h; a no lasts 10m unless you say")
	cmd.Flags().BoolVar(&o.once, "once", false, "with yes: only the requests that wait now; they too end with --for")
	cmd.Flags().BoolVar(&o.change, "change", false, "replace the answer that somebody has given")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "list only those of the sandbox `NAME`")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "keep printing new questions and answers until interrupted")
	cmd.Flags().BoolVar(&o.notify, "notify", false, "with -f, show each new question as a notification of the desktop (notify-send)")
	cmd.MarkFlagsMutuallyExclusive("once", "follow")
	cmd.MarkFlagsMutuallyExclusive("change", "follow")
	return cmd
}

type answerOptions struct {
	questionsOptions
	counts time.Duration
	once   bool
	change bool
}

// answers are the words that answer a question, with what the daemon calls them.
var answers = map[string]string{"yes": "approve", "no": "reject"}

// show lists the questions.
func (o *answerOptions) show(ctx context.Context, w, talk io.Writer, timed bool) error {
	if o.once || timed || o.change {
		return hint.Misused(errors.New("--once, --for and --change are about an answer"), "egressd answer"+o.at.Flags()+", then egressd answer ID yes"+o.at.Flags())
	}
	return o.run(ctx, w, talk)
}

// answer answers the questions whose ids stand before yes or no.
func (o *answerOptions) answer(ctx context.Context, w, talk io.Writer, words []string, timed bool) error {
	ids, word := words[:len(words)-1], words[len(words)-1]
	what, at := answers[word], o.at.Flags()
	switch {
	case what == "" || len(ids) == 0:
		id := "ID"
		if _, ok := record.ParseID(strings.ToUpper(words[0])); ok {
			id = strings.ToUpper(words[0])
		}
		return hint.Misused(fmt.Errorf("%q is no answer", word), "egressd answer "+id+" yes"+at+", or egressd answer "+id+" no"+at)
	case o.follow || o.sandbox != "":
		return hint.Misused(errors.New("--follow and --sandbox are about the list of questions"), "egressd answer "+shell.Word(ids[0])+" "+word+at)
	case o.once && what == "reject":
		return hint.Misused(errors.New("--once is for yes"), "egressd answer "+shell.Word(ids[0])+" no --for 1m"+at)
	}
	if !timed && what == "reject" {
		o.counts = approvals.RejectedFor
	}
	if o.counts < time.Second || o.counts > approvals.MaxAnswer {
		return hint.Misused(errors.New("--for is a duration from 1s to 24h"), "egressd answer "+shell.Word(ids[0])+" "+word+" --for 8h"+at+"; a rule in the policy counts for longer")
	}
	for i, id := range ids {
		ids[i] = strings.ToUpper(id)
		if _, ok := record.ParseID(ids[i]); !ok {
			return hint.Misused(fmt.Errorf("%q is not the id of a question", id), "egressd answer"+at+", which lists them")
		}
	}
	c, err := client.Dial(o.at)
	if err != nil {
		return err
	}
	each := cli.Each[admin.Answer]{
		Client: c, Method: http.MethodPost, List: "egressd answer" + o.at.Flags(), JSON: o.json,
		Path: func(id string) string { return "/v1/questions/" + id + "/" + what + "?" + o.terms() },
		Say:  func(_ string, done *admin.Answer) string { return said(done, o.at.Flags()) },
		Next: func(said string) string { return said + at },
	}
	return each.Run(ctx, w, talk, ids)
}

func (o *answerOptions) terms() string {
	q := url.Values{"for": {o.counts.String()}, "first": {strconv.FormatBool(!o.change)}}
	if o.once {
		q.Set("once", "true")
	}
	return q.Encode()
}

// said repeats what was answered, in words that show what that is about.
func said(a *admin.Answer, at string) string {
	q := &a.Question
	may, undo := "may reach", "; undo: "+shell.Program()+" answer "+q.ID+" no --change"+at
	if q.State == "rejected" {
		may, undo = "may not reach", ""
	}
	if q.Method != "" || q.Path != "" {
		may = strings.Replace(may, "reach", "send "+printable.Word(requestOf(q))+" to", 1)
	}
	if a.Was != "" && a.Was != "pending" {
		undo = ", and was " + printable.Word(a.Was) + " before" + undo
	}
	if a.Opens != "" {
		undo = "; that " + printable.Text(a.Opens) + undo
	}
	return fmt.Sprintf("%s: sandbox %s %s %s (rule %s)%s", stateText(q), printable.Word(q.Sandbox), may, printable.Word(placeOf(q)), printable.Word(q.Rule), undo)
}

// complete lists the questions that can be answered, and behind an id the answers.
func (o *answerOptions) complete(ctx context.Context, args []string, prefix string) (found []string) {
	if len(args) > 0 {
		found = append(found, "yes", "no")
	}
	c, err := client.Dial(o.at)
	if err != nil {
		return found
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var all egress.Questions
	if _, err := c.Ask(ctx, http.MethodGet, "/v1/questions", &all); err != nil {
		return found
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
