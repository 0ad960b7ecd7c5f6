package answers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
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
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newAnswer() *cobra.Command {
	var o answerOptions
	cmd := &cobra.Command{
		Use:   "answer [ID… yes|no [instead]]",
		Short: "List and answer requests that wait for a person",
		Long: `Without arguments, answer lists requests that a rule under "ask" holds for a person,
and those that programs ask for themselves (http://egressd.internal/ in the sandbox), oldest first,
with the answers that still count. It asks the running egressd serve.
A question is about one sandbox, one host and port, and one rule. If the rule asks only
about some requests, the question also names one method and path. Hosts, paths,
programs and reasons (says why) are shown as the sandbox gave them.

ID yes lets the request of a question pass for an hour, ID no denies it and further
ones for ten minutes, without asking again. Other scopes:

  --for once    a yes for the requests that wait now; the next one asks again
  --for 8h      for that long, from 1s to 24h, also for the next run of the sandbox
  --for run     until the run, container or network that asked ends, 24h at most
  --for good    a yes in the policy file: a line for that sandbox. answer shows the
                change, and at a terminal asks before it is written. Nothing is
                written that would open something to another sandbox

--all lists what waits, asks you once, and answers exactly that list: a question that
comes meanwhile, or that somebody else has answered, is not in it. Several ids do the
same without a terminal.

The first answer counts: if somebody has answered, the command says so. ID no instead
replaces that answer, for example to take a yes back, and so does ID yes instead.

The rest of the policy still decides. When the time of a yes is over, or after a no,
egressd cuts connections that only the yes allowed. A yes to what a program asked for
itself is a grant for that time (egressd allow --list). Answers are recorded. All but
--for good change no file, and end when egressd serve stops or the rule no longer asks.

Exit codes: 0 done; 1 there was no such question, or egressd serve does not answer.`,
		Example: `  egressd answer
  egressd answer -f --notify
  egressd answer 01KB6ZQ4SZ yes
  egressd answer 01KB6ZQ4SZ yes --for once
  egressd answer 01KB6ZQ4SZ yes --for good
  egressd answer --all yes --for run
  egressd answer 01KB6ZQ4SZ no --for 8h
  egressd answer 01KB6ZQ4SZ no instead
  egressd answer --json | jq -r 'select(.state == "pending").id'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.stdin = cmd.InOrStdin()
			if o.all {
				return o.answerAll(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
			}
			if len(args) == 0 {
				return o.show(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return o.answer(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return o.complete(cmd.Context(), args, prefix), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cli.DaemonFlags(cmd, &o.at)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().Var(&o.counts, "for", "`SCOPE` of the answer: once, a time such as 8h, run, or good (default: yes 1h, no 10m)")
	cmd.Flags().BoolVar(&o.once, "once", false, "the same as --for once")
	_ = cmd.Flags().MarkHidden("once")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"once", "15m", "1h", "8h", "run", "good"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&o.all, "all", false, "answer all that waits, after you have seen it")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "list, or answer with --all, only those of the sandbox `NAME`")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "keep printing new questions and answers until interrupted")
	cmd.Flags().BoolVar(&o.notify, "notify", false, "with -f, show each new question as a notification of the desktop (notify-send)")
	for _, one := range []string{"once", "all"} {
		cmd.MarkFlagsMutuallyExclusive(one, "follow")
	}
	return cmd
}

type answerOptions struct {
	questionsOptions
	counts answerScope
	once   bool
	change bool // replaces an answer
	all    bool
	stdin  io.Reader
}

// An answerScope is for what an answer counts: "once", "run", "good", or "" for a time. The zero value is the usual time.
type answerScope struct {
	what string
	time time.Duration
}

// String, Type and Set implement pflag.Value.
func (s *answerScope) String() string {
	if s.what != "" || s.time == 0 {
		return s.what
	}
	return quantity.Span(s.time)
}

func (s *answerScope) Type() string { return "scope" }

func (s *answerScope) Set(text string) (err error) {
	*s = answerScope{}
	switch text {
	case "once", "run", "good":
		s.what = text
		return nil
	}
	s.time, err = quantity.ParseDuration(text)
	return err
}

// isSet reports whether somebody said for what the answer counts.
func (s *answerScope) isSet() bool { return *s != answerScope{} }

// answers are the words that answer a question, with what the daemon calls them.
var answers = map[string]string{"yes": "approve", "no": "reject"}

// show lists the questions.
func (o *answerOptions) show(ctx context.Context, w, talk io.Writer) error {
	if o.once || o.counts.isSet() {
		return hint.Misused(errors.New("--for is about an answer"), "egressd answer"+o.at.Flags()+", then egressd answer ID yes"+o.at.Flags())
	}
	return o.run(ctx, w, talk)
}

// answer answers the questions whose ids stand before yes or no.
func (o *answerOptions) answer(ctx context.Context, w, talk io.Writer, words []string) error {
	if last := len(words) - 1; last > 0 && words[last] == "instead" {
		o.change, words = true, words[:last]
	}
	ids, word := words[:len(words)-1], words[len(words)-1]
	at := o.at.Flags()
	switch {
	case answers[word] == "" || len(ids) == 0:
		id := "ID"
		if _, ok := record.ParseID(strings.ToUpper(words[0])); ok {
			id = strings.ToUpper(words[0])
		}
		return hint.Misused(fmt.Errorf("%q is no answer", word), "egressd answer "+id+" yes"+at+", or egressd answer "+id+" no"+at)
	case o.follow || o.sandbox != "":
		return hint.Misused(errors.New("--follow and --sandbox are about the list of questions"), "egressd answer "+shell.Word(ids[0])+" "+word+at)
	}
	if err := o.settle(shell.Word(ids[0]), word); err != nil {
		return err
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
	if o.counts.what == "good" {
		return o.saveEach(ctx, c, w, talk, ids)
	}
	return o.send(ctx, c, w, talk, answers[word], ids, func(string) url.Values { return o.terms() })
}

// settle fills in for what the answer counts, and says what does not go together.
func (o *answerOptions) settle(id, word string) error {
	at := o.at.Flags()
	if o.once && o.counts.isSet() && o.counts.what != "once" && o.counts.what != "" {
		return hint.Misused(errors.New("--once is --for once"), "egressd answer "+id+" yes --for once"+at)
	}
	if o.once {
		o.counts.what = "once"
	}
	switch {
	case o.counts.what == "once" && word == "no":
		return hint.Misused(errors.New("once is for yes"), "egressd answer "+id+" no --for 1m"+at)
	case o.counts.what == "good" && word == "no":
		return hint.Misused(errors.New("for good is for yes"), "egressd deny HOST --save, for every sandbox; or egressd answer "+id+" no --for 24h"+at)
	case o.counts.time != 0:
	case o.counts.what == "run":
		o.counts.time = approvals.MaxAnswer
	case word == "no":
		o.counts.time = approvals.RejectedFor
	default:
		o.counts.time = approvals.ApprovedFor
	}
	if o.counts.time < time.Second || o.counts.time > approvals.MaxAnswer {
		return hint.Misused(errors.New("--for is a duration from 1s to 24h"), "egressd answer "+id+" "+word+" --for 8h"+at+"; or yes --for good")
	}
	return nil
}

// send sends one answer for each id, with the parameters that with returns.
func (o *answerOptions) send(ctx context.Context, c *client.Client, w, talk io.Writer, what string, ids []string, with func(id string) url.Values) error {
	each := cli.Each[admin.Answer]{
		Client: c, Method: http.MethodPost, List: "egressd answer" + o.at.Flags(), JSON: o.json,
		Path: func(id string) string { return "/v1/questions/" + id + "/" + what + "?" + with(id).Encode() },
		Say:  func(_ string, done *admin.Answer) string { return said(done, o.at.Flags()) },
		Next: func(said string) string { return said + o.at.Flags() },
	}
	return each.Run(ctx, w, talk, ids)
}

// terms are the parameters of an answer that changes no file.
func (o *answerOptions) terms() url.Values {
	q := url.Values{"for": {o.counts.time.String()}, "first": {strconv.FormatBool(!o.change)}}
	switch o.counts.what {
	case "once":
		q.Set("once", "true")
	case "run":
		q.Set("this_run", "true")
	}
	return q
}

// saveEach approves questions for good, one after another: each change is shown before it is written, and stands on those before.
func (o *answerOptions) saveEach(ctx context.Context, c *client.Client, w, talk io.Writer, ids []string) error {
	for _, id := range ids {
		var change admin.Saved
		if _, err := c.Ask(ctx, http.MethodGet, "/v1/questions/"+id+"/save", &change); err != nil {
			return err
		}
		fmt.Fprint(talk, change.Diff)
		for _, warning := range change.Warnings {
			fmt.Fprintf(talk, "egressd: warning: %s\n", printable.Text(warning))
		}
		fmt.Fprintf(talk, "egressd: for %s; that %s\n", printable.Text(change.To()), printable.Text(change.Opens))
		if o.atTerminal() && !o.confirms(talk, "write that into "+printable.Text(change.Path)+"?") {
			return hint.Failed(errors.New("nothing was written, and nothing was answered"), "egressd answer "+id+" yes --for run"+o.at.Flags())
		}
		err := o.send(ctx, c, w, talk, "approve", []string{id}, func(string) url.Values { return url.Values{"save": {change.Digest}} })
		if err != nil {
			return err
		}
	}
	return nil
}

// answerAll shows what waits, has the person confirm a yes, and answers exactly that.
func (o *answerOptions) answerAll(ctx context.Context, w, talk io.Writer, words []string) error {
	at := o.at.Flags()
	if len(words) != 1 || answers[words[0]] == "" {
		return hint.Misused(errors.New("--all takes one answer, and no ids"), "egressd answer --all yes"+at+", or egressd answer --all no"+at)
	}
	if o.counts.what == "good" {
		return hint.Misused(errors.New("for good, questions are answered one by one, since each changes the file"), "egressd answer ID yes --for good"+at)
	}
	if err := o.settle("ID", words[0]); err != nil {
		return err
	}
	c, err := client.Dial(o.at)
	if err != nil {
		return err
	}
	var all egress.Questions
	if _, err := c.Ask(ctx, http.MethodGet, "/v1/questions", &all); err != nil {
		return err
	}
	terms := map[string]string{} // by id
	var ids []string
	for _, q := range all.Questions {
		if q.State == "pending" && (o.sandbox == "" || q.Sandbox == o.sandbox) {
			terms[q.ID], ids = q.Terms, append(ids, q.ID)
		}
	}
	if len(ids) == 0 {
		fmt.Fprintln(talk, "egressd: nothing waits for an answer")
		return nil
	}
	all.Questions = slices.DeleteFunc(all.Questions, func(q egress.Question) bool { return terms[q.ID] == "" })
	list := o.questionsOptions
	list.json, list.notify, list.told, list.turned = false, false, map[string]shown{}, map[string]int64{}
	if err := list.write(talk, talk, &all, true); err != nil {
		return err
	}
	if words[0] == "yes" {
		if !o.atTerminal() {
			return hint.Failed(errors.New("nobody at a terminal has seen this list, so nothing was answered"), o.same(ids))
		}
		if !o.confirms(talk, fmt.Sprintf("let all %d pass %s?", len(ids), o.counts.says())) {
			return hint.Failed(errors.New("nothing was answered"), o.same(ids))
		}
	}
	return o.send(ctx, c, w, talk, answers[words[0]], ids, func(id string) url.Values {
		q := o.terms()
		q.Set("terms", terms[id])
		return q
	})
}

// same is the command that answers just these questions with yes.
func (o *answerOptions) same(ids []string) string {
	return "egressd answer " + strings.Join(ids, " ") + " yes" + o.at.Flags()
}

// atTerminal reports whether a person may be asked.
func (o *answerOptions) atTerminal() bool { return cli.IsTerminal(o.stdin) }

// confirms asks the person at the terminal.
func (o *answerOptions) confirms(talk io.Writer, what string) bool {
	fmt.Fprintf(talk, "egressd: %s [y/N] ", what)
	line, _ := bufio.NewReader(o.stdin).ReadString('\n')
	line = strings.TrimSpace(line)
	return line == "y" || line == "yes"
}

// says is the scope in words.
func (s *answerScope) says() string {
	switch s.what {
	case "once":
		return "once, only what waits now"
	case "run":
		return "until the run that asked ends, " + quantity.Span(s.time) + " at most"
	}
	return "for " + quantity.Span(s.time)
}

// said repeats what was answered, in words that show what that is about.
func said(a *admin.Answer, at string) string {
	q := &a.Question
	may, undo := "may reach", "; undo: "+shell.Program()+" answer "+q.ID+" no instead"+at
	if q.State == "rejected" {
		may, undo = "may not reach", ""
	}
	if q.Method != "" || q.Path != "" {
		may = strings.Replace(may, "reach", "send "+printable.Word(requestOf(q))+" to", 1)
	}
	if a.Saved != nil {
		undo = fmt.Sprintf("; %s has that now, for %s: undo there", printable.Text(a.Saved.Path), printable.Text(a.Saved.To()))
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
