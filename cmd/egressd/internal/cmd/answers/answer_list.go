package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
)

// questionsOptions are how questions are listed.
type questionsOptions struct {
	at           client.Place
	sandbox      string
	json, follow bool
	notify       bool

	told   map[string]shown
	turned map[string]int64 // by sandbox
}

func (o *questionsOptions) run(ctx context.Context, w, talk io.Writer) error {
	if err := o.canNotify(); err != nil {
		return err
	}
	c, err := client.Dial(o.at)
	if err != nil {
		return err
	}
	o.told, o.turned = map[string]shown{}, map[string]int64{}
	var all egress.Questions
	if _, err := c.Ask(ctx, http.MethodGet, "/v1/questions", &all); err != nil {
		return err
	}
	if err := o.write(w, talk, &all, true); err != nil || !o.follow {
		return err
	}
	for {
		next := egress.Questions{}
		_, err := c.Ask(ctx, http.MethodGet, "/v1/questions?after="+strconv.FormatUint(all.Version, 10), &next)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		all = next
		if err := o.write(w, talk, &all, false); err != nil {
			return err
		}
	}
}

// write writes what was not written yet.
func (o *questionsOptions) write(w, talk io.Writer, all *egress.Questions, head bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if head && !o.json && len(all.Questions) == 0 {
		fmt.Fprintln(talk, "egressd: nothing is asked, and no answer is in force")
	} else if head && !o.json {
		fmt.Fprintln(table, "ID\tSTATE\tDESTINATION\tREQUEST\tSANDBOX\tRULE\tWAITING\tPROGRAM")
	}
	there := map[string]shown{}
	for i := range all.Questions {
		q := &all.Questions[i]
		if o.sandbox != "" && q.Sandbox != o.sandbox {
			continue
		}
		was := o.told[q.ID]
		now := shown{*q, was.note}
		if was.State != q.State {
			if err := o.line(w, table, q); err != nil {
				return err
			}
			switch {
			case !o.notify:
			case q.State == "pending":
				now.note = o.tell(talk, q)
			default:
				o.untell(was.note)
				now.note = ""
			}
		}
		there[q.ID] = now
	}
	if err := o.gone(w, table, there); err != nil {
		return err
	}
	o.told = there
	if err := table.Flush(); err != nil {
		return err
	}
	return o.away(w, talk, all.Turned)
}

// A shown is a question as it was written last.
type shown struct {
	egress.Question
	note string // of the notification, or ""
}

// gone writes a line for each question that waited when it was written, and is no longer listed.
func (o *questionsOptions) gone(w, table io.Writer, there map[string]shown) error {
	var over []egress.Question
	for id, was := range o.told {
		if _, is := there[id]; !is && was.State == "pending" {
			o.untell(was.note)
			was.State, was.Waiting = "gone", 0
			over = append(over, was.Question)
		}
	}
	slices.SortFunc(over, func(a, b egress.Question) int { return cmp.Compare(a.ID, b.ID) })
	for i := range over {
		if err := o.line(w, table, &over[i]); err != nil {
			return err
		}
	}
	return nil
}

// notifier is the program that shows notifications of the desktop.
const notifier = "notify-send"

// canNotify returns an error if --notify can show nothing.
func (o *questionsOptions) canNotify() error {
	if !o.notify {
		return nil
	}
	if !o.follow {
		return hint.Misused(errors.New("--notify is for questions to come"), "egressd answer -f --notify")
	}
	if _, err := exec.LookPath(notifier); err != nil {
		return hint.Failed(fmt.Errorf("--notify: %w", err), "install "+notifier+" (package libnotify-bin), or egressd answer -f, or egressd ui")
	}
	return nil
}

// tell shows a question as a notification, and returns its number. The words of the sandbox are escaped, also for servers that read
// markup.
func (o *questionsOptions) tell(talk io.Writer, q *egress.Question) (note string) {
	cmd := exec.Command(notifier, "--app-name=egressd", "--print-id", "--", "egressd: a question", html.EscapeString(printable.Text(q.Ask(o.flags()))))
	out, err := cmd.Output()
	if err != nil {
		fmt.Fprintf(talk, "egressd: warning: --notify: %s: %v\n", notifier, err)
		return ""
	}
	note = strings.TrimSpace(string(out))
	if _, err := strconv.ParseUint(note, 10, 32); err != nil {
		return ""
	}
	return note
}

// untell replaces the notification of a question that needs no answer any more. The new one goes by itself.
func (o *questionsOptions) untell(note string) {
	if note != "" {
		_ = exec.Command(notifier, "--app-name=egressd", "--replace-id="+note, "--expire-time=2000", "--", "egressd: answered").Run()
	}
}

// flags name the daemon in a command, each with a space before it.
func (o *questionsOptions) flags() string {
	if o.at.Admin != "" {
		return " --admin " + shell.Word(o.at.Admin)
	}
	return daemon.ConfigFlag(o.at.Config)
}

func (o *questionsOptions) line(w, table io.Writer, q *egress.Question) error {
	if o.json {
		return cli.PrintJSON(w, q)
	}
	_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n",
		printable.Word(q.ID), stateText(q), printable.Word(placeOf(q)), printable.Word(requestOf(q)), printable.Word(q.Sandbox), printable.Word(q.Rule), q.Waiting, printable.Word(programOf(q)))
	return err
}

// away says how often there was no room for what a sandbox asked.
func (o *questionsOptions) away(w, talk io.Writer, all []approvals.Turned) error {
	for _, t := range all {
		if o.sandbox != "" && t.Sandbox != o.sandbox || o.turned[t.Sandbox] == t.Count {
			continue
		}
		o.turned[t.Sandbox] = t.Count
		if o.json {
			if err := cli.PrintJSON(w, map[string]approvals.Turned{"turned_away": t}); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(talk, "egressd: %s of sandbox %s found no room among its questions, the last at %s\n",
			quantity.Plural(int(t.Count), "request"), printable.Word(t.Sandbox), t.Last.Local().Format(time.TimeOnly))
	}
	return nil
}

func stateText(q *egress.Question) string {
	state := printable.Word(q.State)
	switch scope := q.Scope(); {
	case q.Saved:
		return state + " " + scope
	case scope != "":
		state += " " + scope
	}
	switch {
	case q.State == "gone":
	case q.State != "pending":
		state += " until " + quantity.Clock(q.Until, time.Now())
	case q.GivesUp != nil:
		state += ", gives up at " + quantity.Clock(*q.GivesUp, time.Now())
	}
	return state
}

func placeOf(q *egress.Question) string { return net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port))) }

// requestOf is the request that is asked about.
func requestOf(q *egress.Question) string {
	if q.Method == "" && q.Path == "" {
		return "any"
	}
	return clip(strings.TrimSpace(cmp.Or(q.Method, "any method")+" "+q.Path), requestMost)
}

// Lengths of what a sandbox chose, in bytes, on one line. With --json all of it is there.
const (
	requestMost = 200
	programMost = 80
)

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + fmt.Sprintf(" (and %d more bytes: --json)", len(s)-most)
}

// programOf is which program asked first, as far as that is known, and what it says.
func programOf(q *egress.Question) string {
	var parts []string
	if p := q.Process; p != nil && p.Exe != "" {
		text := p.Exe
		if len(p.Argv) > 1 {
			text += " " + strings.Join(p.Argv[1:], " ")
		}
		parts = append(parts, clip(text, programMost))
	}
	if c := q.Container; c != nil {
		parts = append(parts, "container "+clip(c.Name+" "+c.ID, programMost))
	}
	if q.Words != "" {
		parts = append(parts, "says why: "+clip(strconv.QuoteToASCII(q.Words), requestMost))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}
