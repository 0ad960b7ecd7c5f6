package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/records"
)

// An overview is what the log comes to, for a terminal.
type overview struct {
	*records.Overview
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
func (o *overview) print(w io.Writer, now time.Time, colours palette) error {
	for _, s := range sections {
		groups := o.Section(s.action)
		if len(groups) == 0 {
			continue
		}
		fmt.Fprintln(w, colours.paint(s.colour, s.title))
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(table, "  COUNT\tDESTINATION\tWHAT\tWHO\tWHY\tLAST\t%s\n", s.last)
		shown := groups
		if o.top > 0 && len(groups) > o.top {
			shown = groups[:o.top]
		}
		for _, g := range shown {
			fmt.Fprintf(table, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Count, cutHost(cell(g.Destination)), cut(cell(g.What), longestColumn),
				cut(cell(o.who(g)), longestColumn), cut(cell(g.Why), longestCell), clock(g.Last, now), cell(remark(g, o.flags)))
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
func (o *overview) who(g *records.Group) string {
	if _, program, found := strings.Cut(g.Who, "/"); found && o.OneSandbox() {
		return program
	}
	return g.Who
}

// remark is the last column: what to type next about a refusal, what passed
// where something did.
func remark(g *records.Group, flags string) string {
	switch {
	case g.Action == "allow":
		return traffic(g)
	case g.Allow == "" || g.Destination == records.Beyond:
		return ""
	default:
		return fixText(g.Allow, g.Flow) + flags
	}
}

func traffic(g *records.Group) string {
	text := bytesText(g.Down) + " down, " + bytesText(g.Up) + " up"
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

// cell makes text fit for one cell of a table: each of its characters takes the
// place of one.
func cell(s string) string {
	switch s {
	case "":
		return "–"
	case records.Beyond:
		return s
	}
	var b strings.Builder
	for _, r := range printable(s) {
		if r > widest {
			fmt.Fprintf(&b, `\u{%x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// widest is the last character before those that terminals may draw in two
// columns.
const widest = 0x10ff

// How much of a text, which a sandbox may choose, stands in a column.
const (
	longestColumn = 32
	longestCell   = 64
)

// cut shortens text to most characters.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// cutHost shortens a destination in its middle: its end says whose it is.
func cutHost(s string) string {
	const head = 20
	if r := []rune(s); len(r) > longestCell {
		return string(r[:head]) + "…" + string(r[len(r)-(longestCell-head-1):])
	}
	return s
}

// timesText is how many decisions a record stands for, where that is more than one.
func timesText(r *egress.Record) string {
	if r.Times() == 1 {
		return ""
	}
	return fmt.Sprintf("×%d", r.Times())
}

// signalText says what was noticed beside a decision.
func signalText(s *egress.RecordSignal) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%s %s in its %s (%s)", s.What, s.Name, s.Where, s.Encoding)
}

// line is one record for a person who watches them come.
func line(r *egress.Record, now time.Time, colours palette) string {
	action := ""
	if records.Decides(r) && !records.IsLookup(r) {
		action = r.Decision.Action
	}
	fields := []string{clock(r.Time, now), colours.mark(action)}
	for _, s := range lineWords(r, action) {
		if s != "" {
			fields = append(fields, printable(s))
		}
	}
	return strings.Join(fields, "  ")
}

func lineWords(r *egress.Record, action string) []string {
	if records.IsLookup(r) {
		return []string{"lookup", r.DNS.Name, r.DNS.Type, r.Flow}
	}
	switch r.Kind {
	case egress.KindClose:
		return []string{"close", records.Destination(r), records.What(r), records.Who(r), trafficText(r), r.Outcome, r.Flow}
	case egress.KindOpen, egress.KindRequest, egress.KindDNS, egress.KindRefused:
		return []string{action, records.Destination(r), records.What(r), recordPath(r), records.Who(r), records.Why(r), timesText(r), r.Flow, shadowMark(r)}
	case egress.KindSignal:
		return []string{"ALARM", signalText(r.Signal), records.Destination(r), records.Who(r), r.Flow}
	case egress.KindPolicy, egress.KindStart, egress.KindStop, egress.KindRecovery:
		return []string{string(r.Kind), r.Note}
	default: // a kind that a later version writes
		return []string{string(r.Kind), records.Destination(r), recordPath(r), records.Who(r), r.Note, r.Flow}
	}
}

// longestPath is how much of a path, which a sandbox chooses, stands in a line.
const longestPath = 100

func recordPath(r *egress.Record) string {
	switch {
	case r.HTTP == nil:
		return ""
	case len(r.HTTP.Path) > longestPath:
		return r.HTTP.Path[:longestPath] + "…"
	default:
		return r.HTTP.Path
	}
}

func trafficText(r *egress.Record) string {
	up, down := int64(0), int64(0)
	if r.Bytes != nil {
		up, down = r.Bytes.Up, r.Bytes.Down
	}
	return fmt.Sprintf("%s down, %s up in %s", bytesText(down), bytesText(up), time.Duration(r.Duration)*time.Millisecond)
}

// clock is the time of day in the reader's zone, with the day where it is not
// today's.
func clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateOnly + " " + time.TimeOnly)
}

// bytesText is n for a person, in powers of 1000.
func bytesText(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB", "TB", "PB"} {
		if value /= 1000; value < 999.5 {
			break
		}
	}
	if value < 9.95 {
		return fmt.Sprintf("%.1f %s", value, unit)
	}
	return fmt.Sprintf("%.0f %s", value, unit)
}
