package policycmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs/replay"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

func newReplay() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay --policy FILE [FILTER…]",
		Short: "Re-check recorded traffic against another policy",
		Long: `Replay decides the requests in the audit log again under another policy, and prints
those that would change. It sends and resolves nothing: a name is judged by the
addresses that it had then.

Replay covers recorded requests only; a program may behave differently after a new
denial. Query, headers and used budgets are not in the log, so rules about them
may decide otherwise. DNS questions and malformed requests are left out. Filters
are those of egressd log.

Exit codes: 0 nothing changes; 1 something changes; 2 it cannot tell.`,
		Example: `  egressd replay --policy new.yaml since:24h
  egressd replay --policy new.yaml --run last --json`,
		RunE: func(cmd *cobra.Command, words []string) error {
			err := o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), words)
			var answer cli.Status
			if err == nil || errors.As(err, &answer) {
				return err
			}
			return hint.Unsure(err)
		},
	}
	cli.FilterFlags(cmd, &o.Source)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().StringVar(&o.policy, "policy", "", "policy `FILE` to check against")
	return cmd
}

type replayOptions struct {
	source.Source
	policy string
	json   bool
}

func (o *replayOptions) run(ctx context.Context, stdout, stderr io.Writer, words []string) error {
	if o.policy == "" {
		return hint.Misused(errors.New("replay needs a policy to check against"), "egressd replay --policy FILE")
	}
	cfg, err := config.Load(o.policy)
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
	r := replay.New(cfg, p)
	if err := log.Decisions(f, func(record *record.Record) { r.Add(ctx, record) }); err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	if err := errors.Join(printReplay(out, r.Groups(), o.json), out.Flush()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "egressd: %s replayed with %s, %d would change\n", quantity.Plural(int(r.Decided), "request"), cfg.Path, r.Changed)
	if r.Skipped > 0 {
		fmt.Fprintf(stderr, "egressd: warning: skipped %s that a policy cannot judge, such as malformed ones\n", quantity.Plural(int(r.Skipped), "request"))
	}
	if r.Changed > 0 {
		return cli.Status(cli.ExitFailed)
	}
	return nil
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
			cli.Cell(d.Was+" by "+d.WasRule), cli.Cell(d.Now+" by "+d.NowRule), cli.Cell(d.Flow))
	}
	return table.Flush()
}
