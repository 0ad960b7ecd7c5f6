package answers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/policy"
)

// ask has egressd serve allow or deny patterns for a while.
func (o *options) ask(ctx context.Context, stdout, stderr io.Writer, lines []policy.Opening) error {
	if o.lasts < time.Second || o.lasts > 24*time.Hour {
		return hint.Misused(fmt.Errorf("--for %s is not from 1s to 24h", o.lasts), "--for 1h; what is to stay: "+o.saving(lines))
	}
	cfg, err := config.Load(o.Config)
	if err != nil {
		return err
	}
	if err := o.canAsk(cfg, lines); err != nil {
		return err
	}
	q := admin.GrantRequest{Verdict: o.verdict, Method: o.method, Path: o.path, Seconds: int64(o.lasts / time.Second), Sandbox: o.sandbox, OverDeny: o.overDeny}
	for _, l := range lines {
		q.Patterns = append(q.Patterns, l.Pattern.String())
	}
	if o.from != "" {
		s, exact, err := o.answered(cfg, lines)
		if err != nil {
			return err
		}
		if o.Run != "" {
			return o.runIsFixed(lines)
		}
		q.Patterns, q.Method, q.Path = []string{exact.Pattern.String()}, exact.Method, exact.Path
		if q.From = s.Flow; q.Sandbox == "" {
			q.Sandbox = s.Decisive.Sandbox
		}
	}
	c, err := o.dial()
	if err != nil {
		return err
	}
	var done admin.Granted
	if status, err := c.Send(ctx, http.MethodPost, "/v1/grants", q, &done); err != nil {
		return o.orSave(status, err, lines)
	}
	return o.say(stdout, stderr, &done)
}

// canAsk says why nobody can be asked, and what to type next.
func (o *options) canAsk(cfg *config.Config, lines []policy.Opening) error {
	switch {
	case o.Run != "":
		return o.runIsFixed(lines)
	case cfg.AdminName() == "":
		return hint.Failed(fmt.Errorf("cannot add a temporary rule: %s switches off the operator's listener", cfg.Path),
			o.saving(lines)+" changes the file instead; or take listen.admin out of the file and restart egressd serve")
	}
	return nil
}

// runIsFixed is the error for a temporary rule in the policy of an egressd run.
func (o *options) runIsFixed(lines []policy.Opening) error {
	return hint.Failed(errors.New("a run cannot change its policy while it runs"), o.saving(lines)+", then run it again")
}

// inRun is the command that allows the hosts for one run, for people who have no daemon. It opens whole hosts, so it is no
// command for requests of some methods or paths, or for the one request of --from.
func (o *options) inRun(lines []policy.Opening) string {
	if o.verdict != "allow" || o.from != "" || o.method != "" || o.path != "" || o.admin != "" {
		return ""
	}
	line := "; or for one run: egressd run"
	for _, l := range lines {
		line += " --allow " + shell.Pattern(l.Pattern.String())
	}
	return line + source.ConfigFlag(o.Config) + " -- COMMAND"
}

// orSave adds to what to type next where nobody has answered.
func (o *options) orSave(status int, err error, lines []policy.Opening) error {
	var f *hint.Error
	if status == 0 && errors.As(err, &f) {
		return &hint.Error{Code: f.Code, Err: f.Err, Hint: f.Hint + "; or for good: " + o.saving(lines) + o.inRun(lines)}
	}
	return err
}

// say tells what was granted.
func (o *options) say(stdout, stderr io.Writer, done *admin.Granted) error {
	for _, text := range done.Already {
		fmt.Fprintf(stderr, "egressd: %s is allowed already\n", printable.Text(text))
	}
	for _, w := range done.Warnings {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable.Text(w))
	}
	for i := range done.Grants {
		fmt.Fprintf(stderr, "egressd: %s\n", sentence(&done.Grants[i], time.Now()))
	}
	if done.Opens != "" {
		fmt.Fprintf(stderr, "egressd: that %s\n", printable.Text(done.Opens))
	}
	if len(done.Grants) > 0 {
		ids := done.Grants[0].ID
		for i := range done.Grants[1:] {
			ids += "," + done.Grants[1+i].ID
		}
		hint.Sayf(stderr, "egressd allow --undo %s%s takes that back; it ends with egressd serve, and --save is for good", ids, o.at())
	}
	if o.json {
		return cli.PrintJSON(stdout, done)
	}
	return nil
}

// at names the daemon that was asked in a command, with a space before it.
func (o *options) at() string {
	at := client.Place{Config: o.Config, Admin: o.admin}
	return at.Flags()
}

// sentence says what is granted to whom, and until when.
func sentence(g *admin.Grant, now time.Time) string {
	past := map[string]string{"allow": "allowed", "allow over deny": "allowed over deny", "deny": "denied"}[g.Does()]
	return printable.Text(fmt.Sprintf("%s is %s to %s for %s, until %s (%s)", g.Text(), past, whom(g), left(g), quantity.Clock(g.Until, now), g.ID))
}

func whom(g *admin.Grant) string {
	if g.Sandbox == "" {
		return "every sandbox"
	}
	return "sandbox " + g.Sandbox
}

func left(g *admin.Grant) string {
	return quantity.Span(time.Duration(g.Seconds * float64(time.Second)).Round(time.Second))
}
