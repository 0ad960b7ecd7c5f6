package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// maxGroups bounds what a sandbox can make the overview remember by asking
// for ever new names. What comes after counts under the destination "…".
const (
	maxGroups    = 10_000
	beyondGroups = "…"
)

// An overview counts decisions by what they have in common.
type overview struct {
	groups map[groupKey]*group
	shadow shadowGroups
	asking map[string]struct{} // the sandboxes that were seen
	flags  string              // for a fix to find the same log and policy
}

// A groupKey is what the decisions of one line have in common.
type groupKey struct{ action, destination, what, who, why string }

// A group is one line of the overview.
type group struct {
	groupKey
	count    int64
	last     time.Time
	fix      string // of the last
	up, down int64
	failed   int64
	refused  int64 // by the client, which did not trust our certificate
	cut      int64
	open     int64
}

func (o *overview) add(r *egress.Record) {
	if r.Decision == nil {
		return
	}
	o.shadow.add(r)
	if o.asking == nil {
		o.asking = map[string]struct{}{}
	}
	if r.Sandbox != "" {
		o.asking[r.Sandbox] = struct{}{}
	}
	key := groupKey{r.Decision.Action, recordDestination(r), recordWhat(r), recordWho(r), recordWhy(r)}
	g := o.group(key)
	g.count++
	if !r.Time.Before(g.last) {
		g.last, g.fix = r.Time, fixFor(r)
	}
	if r.Bytes != nil {
		g.up, g.down = g.up+r.Bytes.Up, g.down+r.Bytes.Down
	}
	switch {
	case r.Outcome == outcomeOpen:
		g.open++
	case r.Outcome == outcomeCut:
		g.cut++
	case strings.HasPrefix(r.Outcome, "network-"):
		g.failed++
	case r.Outcome == string(policy.CertificateRefused):
		g.refused++
	}
}

func (o *overview) group(key groupKey) *group {
	if o.groups == nil {
		o.groups = map[groupKey]*group{}
	}
	g := o.groups[key]
	if g == nil && len(o.groups) >= maxGroups {
		key.destination, key.what, key.who = beyondGroups, beyondGroups, beyondGroups
		g = o.groups[key]
	}
	if g == nil {
		g = &group{groupKey: key}
		o.groups[key] = g
	}
	return g
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
		groups := o.section(s.action)
		if len(groups) == 0 {
			continue
		}
		fmt.Fprintln(w, colours.paint(s.colour, s.title))
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(table, "  COUNT\tDESTINATION\tWHAT\tWHO\tWHY\tLAST\t%s\n", s.last)
		for _, g := range groups {
			fmt.Fprintf(table, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\n", g.count, cell(g.destination), cell(g.what),
				cell(o.who(g)), cell(g.why), clock(g.last, now), cell(g.remark(o.flags)))
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return o.shadow.print(w, now, colours)
}

// who is the program alone where all that is shown is of one sandbox.
func (o *overview) who(g *group) string {
	if _, program, found := strings.Cut(g.groupKey.who, "/"); found && len(o.asking) == 1 {
		return program
	}
	return g.groupKey.who
}

func (o *overview) section(action string) []*group {
	var groups []*group
	for g := range maps.Values(o.groups) {
		if g.action == action {
			groups = append(groups, g)
		}
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.count, a.count), b.last.Compare(a.last), cmp.Compare(a.destination, b.destination),
			cmp.Compare(a.what, b.what), cmp.Compare(a.who, b.who), cmp.Compare(a.why, b.why))
	})
	return groups
}

// remark is the last column: what to type next about a refusal, what passed
// where something did.
func (g *group) remark(flags string) string {
	switch {
	case g.action == "allow":
		return g.traffic()
	case g.fix == "" || g.destination == beyondGroups:
		return ""
	default:
		return g.fix + flags
	}
}

func (g *group) traffic() string {
	text := bytesText(g.down) + " down, " + bytesText(g.up) + " up"
	if g.failed > 0 {
		text += fmt.Sprintf(", %d failed", g.failed)
	}
	if g.refused > 0 {
		text += fmt.Sprintf(", %d did not trust our certificate", g.refused)
	}
	if g.cut > 0 {
		text += fmt.Sprintf(", %d cut", g.cut)
	}
	if g.open > 0 {
		text += fmt.Sprintf(", %d open", g.open)
	}
	return text
}

// cell makes text fit for one cell of a table.
func cell(s string) string {
	if s == "" {
		return "–"
	}
	return printable(s)
}

func recordDestination(r *egress.Record) string {
	switch {
	case r.Dst != nil && strings.Contains(r.Dst.Host, ":"):
		return fmt.Sprintf("[%s]:%d", r.Dst.Host, r.Dst.Port)
	case r.Dst != nil && r.Dst.Port != 0:
		return fmt.Sprintf("%s:%d", r.Dst.Host, r.Dst.Port)
	default:
		return recordHost(r)
	}
}

// recordWhat is the method where one was seen, else the way in.
func recordWhat(r *egress.Record) string {
	switch {
	case r.HTTP != nil && r.HTTP.Method != "":
		return r.HTTP.Method
	case r.DNS != nil && r.DNS.Type != "":
		return "dns " + r.DNS.Type
	default:
		return r.Via
	}
}

// recordWho is the sandbox, and the program in it where that is known.
func recordWho(r *egress.Record) string {
	program := recordProcess(r)
	switch {
	case program == "":
		return r.Sandbox
	case r.Sandbox == "" || r.Sandbox == "default":
		return program
	default:
		return r.Sandbox + "/" + program
	}
}

// recordWhy is the class of a refusal, or the rule that allowed; a refusal
// that names a rule or a kind of address says which.
func recordWhy(r *egress.Record) string {
	d := r.Decision
	switch {
	case d == nil:
		return ""
	case d.Class == "":
		return d.Rule
	case r.Dst != nil && r.Dst.Class != "":
		return d.Class + " (" + r.Dst.Class + ")"
	case d.Layer != "builtin" && d.Rule != "" && d.Rule != "default":
		return d.Class + " (" + d.Rule + ")"
	default:
		return d.Class
	}
}

// line is one record for a person who watches them come.
func line(r *egress.Record, now time.Time, colours palette) string {
	action := ""
	if r.Decision != nil && !isLookup(r) {
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
	if isLookup(r) {
		return []string{"lookup", r.DNS.Name, r.DNS.Type, r.Flow}
	}
	switch r.Kind {
	case egress.KindClose:
		return []string{"close", recordDestination(r), recordWhat(r), recordWho(r), trafficText(r), r.Outcome, r.Flow}
	case egress.KindOpen, egress.KindRequest, egress.KindDNS, egress.KindRefused:
		return []string{action, recordDestination(r), recordWhat(r), recordPath(r), recordWho(r), recordWhy(r), r.Flow, shadowMark(r)}
	default:
		return []string{string(r.Kind), r.Note}
	}
}

// isLookup reports whether r is a name that egressd looked up for a flow; the
// decision is the flow's own, in a record that follows.
func isLookup(r *egress.Record) bool {
	return r.Kind == egress.KindDNS && r.Via != string(policy.ViaDNS) && r.DNS != nil
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
