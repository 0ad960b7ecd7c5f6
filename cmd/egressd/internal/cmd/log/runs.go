package log

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/quantity"
)

// usualRuns is how many runs a list has where nobody says.
const usualRuns = 20

// listRuns prints the runs of egressd run, the newest first.
func (o *logOptions) listRuns(stdout, stderr io.Writer, words []string, topped bool) error {
	most := usualRuns
	switch {
	case len(words) > 0 || o.Run != "":
		return hint.Misused(errors.New("log --runs lists all runs, and takes no filter"), "egressd log --run ID 'FILTER', for the records of one")
	case topped:
		if err := checkTop(o.top, "egressd log --runs"); err != nil {
			return err
		}
		most = o.top
	}
	all, err := o.ListRuns(most)
	if err != nil {
		return err
	}
	if o.json {
		return cli.PrintEach(stdout, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(stderr, "egressd: no run yet")
		hint.Sayf(stderr, "egressd run -- COMMAND")
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.Cell(r.ID), quantity.Clock(r.Began, time.Now()), cli.Cell(r.Sandbox), cli.Cell(r.Program), r.Result(), denied, requests, log)
	}
	return table.Flush()
}
