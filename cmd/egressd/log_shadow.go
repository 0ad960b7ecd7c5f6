package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/egress"
)

// shadowGroups counts the decisions that the policy in shadow would have made
// otherwise, at most [maxGroups] kinds of them.
type shadowGroups map[shadowKey]*shadowGroup

// A shadowKey is what the decisions of one line have in common.
type shadowKey struct{ destination, what, who, now, would, why string }

type shadowGroup struct {
	shadowKey
	count int64
	last  time.Time
}

func (s *shadowGroups) add(r *egress.Record) {
	if r.Shadow == nil || r.Shadow.Action == "" { // a load only says that there is one
		return
	}
	key := shadowKey{recordDestination(r), recordWhat(r), recordWho(r), r.Decision.Action, shadowAction(r.Shadow), shadowWhy(r.Shadow)}
	if *s == nil {
		*s = shadowGroups{}
	}
	if (*s)[key] == nil && len(*s) >= maxGroups {
		key.destination, key.what, key.who = beyondGroups, beyondGroups, beyondGroups
	}
	if (*s)[key] == nil {
		(*s)[key] = &shadowGroup{shadowKey: key}
	}
	g := (*s)[key]
	g.count++
	if !r.Time.Before(g.last) {
		g.last = r.Time
	}
}

// shadowWhy is the class of a refusal with its rule, or the rule that would allow.
func shadowWhy(s *egress.RecordShadow) string {
	switch {
	case s.Class == "":
		return s.Rule
	case s.Layer == "builtin":
		return s.Class
	}
	return s.Class + " (" + s.Rule + ")"
}

// shadowMark ends a line about a decision that the shadow would have made otherwise.
func shadowMark(r *egress.Record) string {
	if r.Shadow == nil {
		return ""
	}
	return "shadow:" + shadowAction(r.Shadow) + " " + shadowWhy(r.Shadow)
}

// print writes the table: what was most, first; among equals the newest.
func (s shadowGroups) print(w io.Writer, now time.Time, colours palette) error {
	if len(s) == 0 {
		return nil
	}
	fmt.Fprintln(w, colours.paint("35", "SHADOW"))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  COUNT\tDESTINATION\tWHAT\tWHO\tNOW\tWOULD\tWHY\tLAST")
	for _, g := range slices.SortedFunc(maps.Values(s), compareShadows) {
		fmt.Fprintf(table, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.count, cell(g.destination), cell(g.what), cell(g.who),
			cell(g.now), cell(g.would), cell(g.why), clock(g.last, now))
	}
	return table.Flush()
}

func compareShadows(a, b *shadowGroup) int {
	return cmp.Or(cmp.Compare(b.count, a.count), b.last.Compare(a.last), cmp.Compare(a.destination, b.destination),
		cmp.Compare(a.what, b.what), cmp.Compare(a.who, b.who), cmp.Compare(a.now, b.now), cmp.Compare(a.would, b.would), cmp.Compare(a.why, b.why))
}
