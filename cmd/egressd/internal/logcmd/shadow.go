package logcmd

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/logs"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/records"
)

// shadowMark ends a line about a decision that the shadow would have made otherwise.
func shadowMark(r *egress.Record) string {
	if r.Shadow == nil {
		return ""
	}
	return "shadow:" + records.ShadowAction(r.Shadow) + " " + records.ShadowWhy(r.Shadow)
}

// printShadows writes the table of what the policy in shadow would do.
func printShadows(w io.Writer, groups []*records.ShadowGroup, now time.Time, colours cli.Palette) error {
	if len(groups) == 0 {
		return nil
	}
	fmt.Fprintln(w, colours.Paint("35", "SHADOW"))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  COUNT\tDESTINATION\tWHAT\tWHO\tNOW\tWOULD\tWHY\tLAST")
	for _, g := range groups {
		fmt.Fprintf(table, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Count, logs.CutHost(logs.Cell(g.Destination)), logs.Cut(logs.Cell(g.What), logs.LongestColumn), logs.Cut(logs.Cell(g.Who), logs.LongestColumn),
			logs.Cell(g.Now), logs.Cell(g.Would), logs.Cut(logs.Cell(g.Why), logs.LongestCell), quantity.Clock(g.Last, now))
	}
	return table.Flush()
}
