package logcmd

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs/source"
	"github.com/spf13/cobra"
)

func newRuns() *cobra.Command {
	var o runsOptions
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List the runs of egressd run",
		Long: `Runs lists your runs, the newest first, with their results and denials. A run whose
network an egressd serve had is listed too: its records are in the log of that daemon.`,
		Example: `  egressd runs
  egressd log --run 20261123-200401.055-841fcc`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	cli.ConfigFlag(cmd, &o.Config)
	cli.JSONFlag(cmd, &o.json)
	cmd.Flags().IntVarP(&o.most, "tail", "n", 20, "list at most the newest `N` runs; 0 for all")
	return cmd
}

type runsOptions struct {
	source.Source
	json bool
	most int
}

func (o *runsOptions) run(stdout, stderr io.Writer) error {
	if o.most < 0 {
		return hint.Misused(fmt.Errorf("--tail %d is less than nothing", o.most), "egressd runs --tail 0")
	}
	all, err := o.ListRuns(o.most)
	if err != nil {
		return err
	}
	if o.json {
		return cli.PrintEach(stdout, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(stderr, "egressd: no run yet")
		fmt.Fprintln(stderr, "egressd: hint: egressd run -- COMMAND")
		return nil
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RUN\tBEGAN\tSANDBOX\tPROGRAM\tRESULT\tDENIED\tREQUESTS\tLOG")
	for i := range all {
		r := &all[i]
		log, denied, requests := "own", fmt.Sprint(r.Denied), fmt.Sprint(r.Requests)
		if r.Daemon {
			log = "serve"
		}
		if r.Ended == nil {
			denied, requests = "–", "–"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.Cell(r.ID), quantity.Clock(r.Began, time.Now()), cli.Cell(r.Sandbox), cli.Cell(r.Program), result(r), denied, requests, log)
	}
	return table.Flush()
}

func result(r *source.Run) string {
	switch {
	case r.Running:
		return "running"
	case r.Code == nil:
		return "unknown"
	default:
		return fmt.Sprintf("exit %d after %s", *r.Code, quantity.Duration(r.Ended.Sub(r.Began)))
	}
}
