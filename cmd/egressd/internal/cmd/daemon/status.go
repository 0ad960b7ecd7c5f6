package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/client"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/shell"
	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether egressd serve is ready, its policy and its connections",
		Long: `Status asks the running egressd serve whether it is ready, which policy is in force,
and how many connections are open. egressd policy show tells more about the policy,
and needs no daemon.

--connections lists the open tunnels and requests, oldest first. --sinks lists the
receivers to which egressd serve sends its log (audit.sinks), how far behind each is,
and its last error. Its figures are up to a second old, and it needs no daemon.

Exit codes: 0 ready; 1 not ready, no answer, a stale bundle, or a rejected reload;
2 cannot tell. With --connections or --sinks: 0 listed; 1 not.`,
		Example: `  egressd status
  egressd status --connections --sandbox ci
  egressd status --sinks --json`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.sinks:
				return o.listSinks(cmd.OutOrStdout(), cmd.ErrOrStderr())
			case o.dir != "":
				return hint.Misused(errors.New("--dir is for --sinks: the other answers come from the running egressd serve"), "egressd status --sinks --dir "+shell.Word(o.dir))
			case o.connections:
				return o.listConnections(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			case o.sandbox != "":
				return hint.Misused(errors.New("--sandbox is for --connections"), "egressd status --connections --sandbox "+shell.Word(o.sandbox))
			}
			return status(cmd.Context(), cmd.OutOrStdout(), o.at, o.json)
		},
	}
	cli.DaemonFlags(cmd, &o.at)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().BoolVar(&o.connections, "connections", false, "list the open connections")
	cmd.Flags().StringVar(&o.sandbox, "sandbox", "", "with --connections: only those of the sandbox `NAME`")
	cmd.Flags().BoolVar(&o.sinks, "sinks", false, "list the receivers of the log, and how far behind each is")
	cmd.Flags().StringVar(&o.dir, "dir", "", "with --sinks: `DIR` of the audit log (default: the policy's audit.dir)")
	cmd.MarkFlagsMutuallyExclusive("connections", "sinks")
	return cmd
}

type statusOptions struct {
	at                 client.Place
	json               bool
	connections, sinks bool
	sandbox, dir       string
}

// A statusView is what is said of a daemon.
type statusView struct {
	admin.Readiness
	Open   int             `json:"open"`      // flows
	Asked  int             `json:"questions"` // that wait for an answer
	Policy json.RawMessage `json:"policy"`
}

func status(ctx context.Context, w io.Writer, at client.Place, asJSON bool) error {
	c, err := client.Dial(at)
	if err != nil {
		return err
	}
	var s statusView
	if _, err := c.Ask(ctx, http.MethodGet, "/readyz", &s.Readiness, http.StatusServiceUnavailable); err != nil {
		return err
	}
	var page admin.Page
	if _, err := c.Ask(ctx, http.MethodGet, "/v1/flows?limit=1", &page); err != nil {
		return err
	}
	s.Open = page.Open
	var asked egress.Questions
	if _, err := c.Ask(ctx, http.MethodGet, "/v1/questions", &asked); err != nil {
		return err
	}
	for i := range asked.Questions {
		if asked.Questions[i].State == "pending" {
			s.Asked++
		}
	}
	if _, err := c.Ask(ctx, http.MethodGet, "/v1/policy", &s.Policy); err != nil {
		return err
	}
	var p policystatus.Status
	if err := json.Unmarshal(s.Policy, &p); err != nil {
		return hint.Failed(fmt.Errorf("what answers at %s is no egressd: %w", c.At, err), "egressd doctor")
	}
	if asJSON {
		err = cli.PrintJSON(w, s)
	} else {
		_, err = io.WriteString(w, s.text(&p, cli.PaletteFor(w), time.Now()))
	}
	if err != nil || s.Ready && p.OK {
		return err
	}
	return cli.Status(cli.ExitFailed)
}

func (s *statusView) text(p *policystatus.Status, colours cli.Palette, now time.Time) string {
	var b strings.Builder
	if s.Ready {
		fmt.Fprintf(&b, "%s ready, %s open\n", colours.Mark("allow"), quantity.Plural(s.Open, "flow"))
	} else {
		fmt.Fprintf(&b, "%s not ready: %s\n", colours.Mark("deny"), printable.Text(strings.Join(s.Why, "; ")))
	}
	fmt.Fprintf(&b, "%s policy %s in force since %s\n    %s\n", colours.Mark("allow"), printable.Text(p.Policy), quantity.Clock(p.Since, now), printable.Text(p.Source))
	for _, o := range s.Observing {
		fmt.Fprintf(&b, "%s observing %s: everything public passes that no rule is about\n", colours.Mark("ask"), printable.Text(o.Text()))
	}
	if s.Asked > 0 {
		fmt.Fprintf(&b, "%s %s: egressd answer\n", colours.Mark("ask"), quantity.Plural(s.Asked, "question"))
	}
	for _, to := range p.Notified {
		mark, text := colours.Mark("allow"), "nothing sent yet"
		if !to.Last.IsZero() {
			text = quantity.Plural(int(to.Sent), "message") + ", the last " + quantity.Clock(to.Last, now)
		}
		if to.Error != "" {
			mark, text = colours.Mark("deny"), text+"; the last attempt failed: "+to.Error
		}
		fmt.Fprintf(&b, "%s notify %s (%s): %s\n", mark, printable.Text(to.Name), printable.Text(to.Type), printable.Text(text))
	}
	if r := p.Rejected; r != nil && r.Current {
		fmt.Fprintf(&b, "%s the last reload was rejected, %s:\n    %s\n", colours.Mark("deny"), quantity.Clock(r.Time, now), printable.Text(r.Reason))
	}
	if up := p.Upstream; up != nil {
		fmt.Fprintf(&b, "%s connects through %s\n", colours.Mark("allow"), printable.Text(up.Proxy))
		if up.GivesUp != "" {
			fmt.Fprintf(&b, "    %s\n", printable.Text(up.GivesUp))
		}
	}
	for _, one := range p.Bundles {
		mark, more := colours.Mark("allow"), ""
		if one.Stale != "" {
			mark, more = colours.Mark("deny"), ", stale: "+one.Stale
		} else if one.Error != "" {
			mark, more = colours.Mark("deny"), ": "+one.Error
		}
		fmt.Fprintf(&b, "%s bundle %s, revision %q%s\n", mark, printable.Text(one.Source), one.Revision, printable.Text(more))
	}
	return b.String()
}
