package records

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// MaxGroups bounds what a sandbox can make an overview remember by asking
// for ever new names. What comes after counts under the destination [Beyond].
const (
	MaxGroups = 10_000
	Beyond    = "…"
)

// An Overview counts decisions by what they have in common. Its zero value is
// empty.
type Overview struct {
	groups map[GroupKey]*Group
	shadow shadowGroups
	asking map[string]struct{} // the sandboxes that were seen
}

// A GroupKey is what the decisions of one line have in common.
type GroupKey struct{ Action, Destination, What, Who, Why string }

// A Group is one line of the overview.
type Group struct {
	GroupKey
	Count    int64
	Last     time.Time
	Flow     string // of the last
	Allow    string // the pattern that would let the last one pass, see [Allowable]
	Up, Down int64
	Failed   int64
	Refused  int64 // by the client, which did not trust our certificate
	Cut      int64
	Open     int64
}

// Add takes in one decision, as a [Tally] hands it on.
func (o *Overview) Add(r *egress.Record) {
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
	key := GroupKey{r.Decision.Action, Destination(r), What(r), Who(r), Why(r)}
	g := o.group(key)
	g.Count++
	if !r.Time.Before(g.Last) {
		g.Last, g.Flow, g.Allow = r.Time, r.Flow, Allowable(r)
	}
	if r.Bytes != nil {
		g.Up, g.Down = g.Up+r.Bytes.Up, g.Down+r.Bytes.Down
	}
	switch {
	case r.Outcome == OutcomeOpen:
		g.Open++
	case r.Outcome == OutcomeCut:
		g.Cut++
	case strings.HasPrefix(r.Outcome, "network-"):
		g.Failed++
	case r.Outcome == string(policy.CertificateRefused):
		g.Refused++
	}
}

func (o *Overview) group(key GroupKey) *Group {
	if o.groups == nil {
		o.groups = map[GroupKey]*Group{}
	}
	g := o.groups[key]
	if g == nil && len(o.groups) >= MaxGroups {
		key.Destination, key.What, key.Who = Beyond, Beyond, Beyond
		g = o.groups[key]
	}
	if g == nil {
		g = &Group{GroupKey: key}
		o.groups[key] = g
	}
	return g
}

// Len is the number of groups.
func (o *Overview) Len() int { return len(o.groups) }

// OneSandbox reports whether all that was added is of one sandbox.
func (o *Overview) OneSandbox() bool { return len(o.asking) == 1 }

// Section returns the groups of an action: what was most, first; among equals
// the newest.
func (o *Overview) Section(action string) []*Group {
	var groups []*Group
	for g := range maps.Values(o.groups) {
		if g.Action == action {
			groups = append(groups, g)
		}
	}
	slices.SortFunc(groups, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last), cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.What, b.What), cmp.Compare(a.Who, b.Who), cmp.Compare(a.Why, b.Why))
	})
	return groups
}

// Shadows returns the decisions that the policy in shadow would have made
// otherwise, in the same order.
func (o *Overview) Shadows() []*ShadowGroup {
	return slices.SortedFunc(maps.Values(o.shadow), compareShadows)
}
