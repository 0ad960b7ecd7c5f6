package log

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// shadowMark ends a line about a decision that the shadow would have made otherwise.
func shadowMark(r *record.Record) string {
	if r.Shadow == nil {
		return ""
	}
	return "shadow:" + logs.ShadowAction(r.Shadow) + " " + logs.ShadowWhy(r.Shadow)
}

// printShadows writes the table of what the policy in shadow would do.
func printShadows(w io.Writer, groups []*logs.ShadowGroup, now time.Time, colours cli.Palette) error {
	if len(groups) == 0 {
		return nil
	}
	fmt.Fprintln(w, colours.Paint("35", "SHADOW"))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  COUNT\tDESTINATION\tWHAT\tWHO\tNOW\tWOULD\tWHY\tLAST")
	for _, g := range groups {
		fmt.Fprintf(table, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Count, cli.CutHost(cli.Cell(g.Destination)), cli.Cut(cli.Cell(g.What), cli.LongestColumn), cli.Cut(cli.Cell(g.Who), cli.LongestColumn),
			cli.Cell(g.Now), cli.Cell(g.Would), cli.Cut(cli.Cell(g.Why), cli.LongestCell), quantity.Clock(g.Last, now))
	}
	return table.Flush()
}
