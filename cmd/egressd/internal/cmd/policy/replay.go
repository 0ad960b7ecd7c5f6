package policy

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newReplay(f *policyFlags) *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay [POLICY] [FILTER…]",
		Short: "Re-check recorded traffic against another policy",
		Long: `Replay decides the requests in the audit log again under POLICY, and prints those that
would change. POLICY is a YAML file, or a folder with an egressd.yaml; without it, the
policy file counts as it is now. It sends and resolves nothing: a name is judged by the
addresses that it had then.

POLICY is compared with what the log has. A request that POLICY decides as the policy
file does is no difference either, so that no old grant or answer of a person counts.
With --dir or without POLICY, only the log is compared.

Each request would be the same, denied, asked (a person is), looked into, or allowed.
"Looked into" is a tunnel that POLICY inspects: its requests are not in the log.

POLICY counts as if it observed nothing (mode: observe).

Replay covers recorded requests only; a program may behave differently after a new
denial. Query, headers and used budgets are not in the log, so rules about them
may decide otherwise. DNS questions and malformed requests are left out. Filters
are those of egressd log.

Exit codes: 0 nothing changes; 1 something changes; 2 it cannot tell.`,
		Example: `  egressd policy replay new.yaml since:24h
  egressd policy replay new.yaml --run last --json`,
		RunE: func(cmd *cobra.Command, words []string) error {
			o.Config, o.json = f.config, f.json
			err := o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
			var answer cli.Status
			if err == nil || errors.As(err, &answer) {
				return err
			}
			return hint.Unsure(err)
		},
	}
	cli.RunFlags(cmd, &o.Source)
	cli.FilterFlags(cmd, &o.Source)
	return cmd
}

type replayOptions struct {
	source.Source
	json bool
}

func (o *replayOptions) run(ctx context.Context, stdout, stderr io.Writer, words []string) error {
	judged := ""
	words, err := takePolicy(words, &judged)
	if err != nil {
		return err
	}
	if len(words) > 0 && judged == "" && !strings.Contains(words[0], ":") && isPath(words[0]) {
		return hint.Misused(fmt.Errorf("there is no policy file %s", words[0]), "egressd policy replay FILE")
	}
	cfg, err := config.Load(cmp.Or(judged, o.Config))
	if err != nil {
		return err
	}
	cfg.Patient = true
	p, err := cfg.Compile()
	if err != nil {
		return err
	}
	log, f, err := o.Ask(words)
	if err != nil {
		return err
	}
	defer log.Close()
	r := replay.New(cfg, p.Enforced())
	besides := ""
	if judged != "" && o.Dir == "" {
		if besides, err = o.beside(r, cfg); err != nil {
			return err
		}
	}
	if err := log.Decisions(f, func(record *record.Record) { r.Add(ctx, record) }); err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	if err := errors.Join(printReplay(out, r.Groups(), o.json), out.Flush()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "egressd: %s replayed with %s%s: %s\n", quantity.Plural(int(r.Decided), "request"), printable.Text(cfg.Path), printable.Text(besides), wordsOf(&r.Words))
	if r.Skipped > 0 {
		fmt.Fprintf(stderr, "egressd: warning: skipped %s that a policy cannot judge, such as malformed ones\n", quantity.Plural(int(r.Skipped), "request"))
	}
	if r.Changed > 0 {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}

// beside has r compare the judged file with the policy file in force instead of the log, if these are two files.
func (o *replayOptions) beside(r *replay.Replay, judged *config.Config) (besides string, err error) {
	old, err := config.Load(o.PolicyFile())
	var missing *config.NotFoundError
	if errors.As(err, &missing) && o.PolicyFile() == "" {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	one, err := os.Stat(old.Path)
	other, errOther := os.Stat(judged.Path)
	if err != nil || errOther != nil || os.SameFile(one, other) {
		return "", nil
	}
	old.Patient = true
	p, err := old.Compile()
	if err != nil {
		return "", err
	}
	r.Beside(old, p.Enforced())
	r.OrLog = true // the question may be whether a recorded run would pass
	return " beside " + old.Path, nil
}

// wordsOf says what another policy would do with the requests.
func wordsOf(c *replay.Words) string {
	text := fmt.Sprintf("%d the same, %d denied, %d asked, %d would be looked into", c.Same, c.Denied, c.Asked, c.LookedInto)
	if c.Allowed > 0 {
		text += fmt.Sprintf(", %d allowed", c.Allowed)
	}
	return text
}

func printReplay(w io.Writer, all []*replay.Group, asJSON bool) error {
	if asJSON {
		return cli.PrintEach(w, all)
	}
	if len(all) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "COUNT\tDESTINATION\tWHAT\tSANDBOX\tWAS\tWOULD BE\tLAST")
	for _, d := range all {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Count, cli.Cell(d.Destination), cli.Cell(d.What), cli.Cell(d.Sandbox),
			cli.Cell(wordOf(d.Was)+" by "+d.WasRule), cli.Cell(wordOf(d.Now)+" by "+d.NowRule), cli.Cell(d.Flow))
	}
	return table.Flush()
}

func wordOf(action string) string {
	if action == replay.LookedInto {
		return "looked into"
	}
	return action
}
