package log

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/story"
	"github.com/egressd/egressd/record"
)

// An overview is what the log comes to, for a terminal.
type overview struct {
	*logs.Overview
	flags string // for a fix to find the same log and policy
	top   int    // lines of each table; all where it is 0
}

// sections are the tables of the overview, in the order in which they stand.
var sections = []struct{ action, title, colour, last string }{
	{"deny", "DENIED", "31", "FIX"},
	{"ask", "ASKED", "33", "FIX"},
	{"allow", "ALLOWED", "32", "TRAFFIC"},
}

// print writes the tables: what was most, first; among equals the newest.
func (o *overview) print(w io.Writer, now time.Time, colours cli.Palette) error {
	for _, s := range sections {
		groups := o.Section(s.action)
		if len(groups) == 0 {
			continue
		}
		fmt.Fprintln(w, colours.Paint(s.colour, s.title))
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(table, "  COUNT\tDESTINATION\tWHAT\tWHO\tWHY\tLAST\tID\t%s\n", s.last)
		shown := groups
		if o.top > 0 && len(groups) > o.top {
			shown = groups[:o.top]
		}
		for _, g := range shown {
			fmt.Fprintf(table, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Count, cli.CutHost(cli.Cell(g.Destination)), cli.Cut(cli.Cell(g.What), cli.LongestColumn),
				cli.Cut(cli.Cell(o.who(g)), cli.LongestColumn), cli.Cut(cli.Cell(g.Why), cli.LongestCell), quantity.Clock(g.Last, now), cli.Cell(g.Flow), cli.Cell(remark(g, o.flags)))
		}
		if err := table.Flush(); err != nil {
			return err
		}
		if n := len(groups) - len(shown); n > 0 {
			fmt.Fprintf(w, "  and %d more, see --top\n", n)
		}
	}
	return printShadows(w, o.Shadows(), now, colours)
}

// who is the program alone where all that is shown is of one sandbox.
func (o *overview) who(g *logs.Group) string {
	if _, program, found := strings.Cut(g.Who, "/"); found && o.OneSandbox() {
		return program
	}
	return g.Who
}

// remark is the last column: what to type next about a refusal, what passed
// where something did.
func remark(g *logs.Group, flags string) string {
	switch {
	case g.Action == "allow":
		return traffic(g)
	case g.Allow == "" || g.Destination == logs.Beyond:
		return ""
	default:
		return story.FixFor(g.Allow, g.Flow) + flags
	}
}

func traffic(g *logs.Group) string {
	text := quantity.Bytes(g.Down) + " down, " + quantity.Bytes(g.Up) + " up"
	if g.Failed > 0 {
		text += fmt.Sprintf(", %d failed", g.Failed)
	}
	if g.Refused > 0 {
		text += fmt.Sprintf(", %d did not trust our certificate", g.Refused)
	}
	if g.Cut > 0 {
		text += fmt.Sprintf(", %d cut", g.Cut)
	}
	if g.Open > 0 {
		text += fmt.Sprintf(", %d open", g.Open)
	}
	return text
}

// timesText is how many decisions a record stands for, where that is more than one.
func timesText(r *record.Record) string {
	if r.Times() == 1 {
		return ""
	}
	return fmt.Sprintf("×%d", r.Times())
}

// namesText is what a sum of denials of many names says of those.
func namesText(r *record.Record) string {
	if r.Names == nil {
		return ""
	}
	text := "first " + r.Names.First + ", last " + r.Names.Last
	if n := r.Names.Domains; n > 1 {
		text += fmt.Sprintf(", of %d domains", n)
	}
	return text
}

// signalText says what was noticed beside a decision.
func signalText(s *record.Signal) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%s %s in its %s (%s)", s.What, s.Name, s.Where, s.Encoding)
}

// line is one record for a person who watches them come.
func line(r *record.Record, now time.Time, colours cli.Palette) string {
	action := ""
	if logs.Decides(r) && !logs.IsLookup(r) {
		action = r.Decision.Action
	}
	fields := []string{quantity.Clock(r.Time, now), colours.Mark(action)}
	for _, s := range lineWords(r, action) {
		if s != "" {
			fields = append(fields, cli.Cut(printable.Word(s), longestField))
		}
	}
	return strings.Join(fields, "  ")
}

func lineWords(r *record.Record, action string) []string {
	if logs.IsLookup(r) {
		return []string{"lookup", r.DNS.Name, r.DNS.Type, r.Flow}
	}
	switch r.Kind {
	case record.KindClose:
		return []string{"close", logs.Destination(r), logs.What(r), lineWho(r), trafficText(r), string(r.Outcome), r.Flow}
	case record.KindOpen, record.KindRequest, record.KindDNS, record.KindRefused:
		return []string{action, logs.Destination(r), logs.What(r), recordPath(r), lineWho(r), logs.Why(r), timesText(r), namesText(r), r.Flow, shadowMark(r)}
	case record.KindSignal:
		return []string{"ALARM", signalText(r.Signal), logs.Destination(r), lineWho(r), r.Flow}
	case record.KindPolicy, record.KindStart, record.KindStop, record.KindRecovery, record.KindAdmin:
		return []string{string(r.Kind), timesText(r), r.Src, r.Note}
	case record.KindHeartbeat:
		return []string{string(r.Kind), heartbeatText(r.Log)}
	default: // a kind that a later version writes
		return []string{string(r.Kind), logs.Destination(r), recordPath(r), lineWho(r), r.Note, r.Flow}
	}
}

func heartbeatText(l *record.LogState) string {
	if l == nil {
		return ""
	}
	text := fmt.Sprintf("%d records", l.Size)
	if l.Follows != "" {
		text += fmt.Sprintf(", follows %s with %d", l.Follows, l.Had)
	}
	return text
}

// Bytes of a path, and characters of any other field, in a line. A sandbox may have chosen them. A host with its
// port always fits.
const (
	longestPath  = 100
	longestField = 260
)

// lineWho is who it was, as far as there is room in a line.
func lineWho(r *record.Record) string { return cli.Cut(logs.Who(r), cli.LongestCell) }

func recordPath(r *record.Record) string {
	switch {
	case r.HTTP == nil:
		return ""
	case len(r.HTTP.Path) > longestPath:
		return r.HTTP.Path[:longestPath] + "…"
	default:
		return r.HTTP.Path
	}
}

func trafficText(r *record.Record) string {
	up, down := int64(0), int64(0)
	if r.Bytes != nil {
		up, down = r.Bytes.Up, r.Bytes.Down
	}
	return fmt.Sprintf("%s down, %s up in %s", quantity.Bytes(down), quantity.Bytes(up), time.Duration(r.Duration)*time.Millisecond)
}
