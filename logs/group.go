package logs

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
// for ever new names: that many lines are kept, and at times twice as many. What
// the others come to is counted under the destination [Beyond].
const (
	MaxGroups = 10_000
	Beyond    = "…"
)

// An Overview counts decisions by what they have in common. Its zero value is
// empty.
//
// Its memory is bounded, see [MaxGroups]. When there are too many lines, those for
// many names below one registered domain become one for the domain. If that is
// not enough, the lines of each sandbox and verdict are ranked, so that no sandbox
// hides what another one did, or what it was allowed behind what it was refused:
// half of the room is for those that were most, half for those that sent most. A
// line that was dropped may turn up again, and its count is then too small, see
// [Overview.Exact].
type Overview struct {
	First, Last time.Time // when decisions were made

	groups  map[string]*Group
	folded  map[string]*Group // by domain, see domainKey
	rest    map[string]*Group // what is counted under Beyond
	fixed   bool              // there is to be no new line
	most    int               // lines; [MaxGroups] where it is 0
	dropped bool              // lines were dropped
	text    []byte            // the key that is looked up
	shadow  shadowGroups
	asking  map[string]struct{} // the first two sandboxes that were seen
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

	key           string // of the overview's groups
	sandbox, host string
	port          uint16
	domain        string    // see domainKey
	split         bool      // whether domain is known
	many          bool      // it is about more than one destination
	flow          []byte    // of the last
	refusal       [3]string // class, layer and class of the address of the last
}

// Many reports whether the line is about more than one destination.
func (g *Group) Many() bool { return g.many }

// named is the sandbox as far as a line tells it.
func named(r *egress.Record) string {
	if r.Sandbox == "default" {
		return ""
	}
	return r.Sandbox
}

func portOf(r *egress.Record) uint16 {
	if r.Dst == nil {
		return 0
	}
	return r.Dst.Port
}

// Decides reports whether r holds a decision about what a sandbox did.
func Decides(r *egress.Record) bool {
	switch r.Kind {
	case egress.KindOpen, egress.KindRequest, egress.KindDNS, egress.KindRefused, egress.KindClose:
		return r.Decision != nil
	}
	return false
}

// Add takes in one decision, as a [Tally] hands it on, and keeps nothing of
// r's.
func (o *Overview) Add(r *egress.Record) {
	if !Decides(r) {
		return
	}
	o.shadow.add(r)
	if o.First.IsZero() || r.Time.Before(o.First) {
		o.First = r.Time
	}
	if r.Time.After(o.Last) {
		o.Last = r.Time
	}
	if _, known := o.asking[r.Sandbox]; !known && r.Sandbox != "" && len(o.asking) < 2 {
		if o.asking == nil {
			o.asking = map[string]struct{}{}
		}
		o.asking[strings.Clone(r.Sandbox)] = struct{}{}
	}
	o.group(r).add(r)
}

func (g *Group) add(r *egress.Record) {
	n := r.Times()
	g.Count += n
	if !r.Time.Before(g.Last) {
		g.latest(r)
	}
	if r.Bytes != nil {
		g.Up, g.Down = g.Up+r.Bytes.Up, g.Down+r.Bytes.Down
	}
	switch {
	case r.Outcome == OutcomeOpen:
		g.Open += n
	case r.Outcome == OutcomeCut:
		g.Cut += n
	case strings.HasPrefix(r.Outcome, "network-"):
		g.Failed += n
	case r.Outcome == string(policy.CertificateRefused):
		g.Refused += n
	}
}

// latest takes note of the last decision.
func (g *Group) latest(r *egress.Record) {
	g.Last, g.flow = r.Time, append(g.flow[:0], r.Flow...)
	refusal := [3]string{r.Decision.Class, r.Decision.Layer}
	if r.Dst != nil {
		refusal[2] = r.Dst.Class
	}
	if g.refusal != refusal {
		for i := range refusal {
			refusal[i] = strings.Clone(refusal[i])
		}
		g.refusal = refusal
	}
}

// finish makes what is for readers of what is kept.
func (g *Group) finish() {
	g.Flow, g.Allow = string(g.flow), ""
	if g.many || g.Count == 0 {
		return
	}
	g.Allow = Allowable(&egress.Record{
		Flow: g.Flow, Dst: &egress.RecordDst{Host: g.host, Port: g.port, Class: g.refusal[2]},
		Decision: &egress.RecordDecision{Class: g.refusal[0], Layer: g.refusal[1]},
	})
}

// group returns the line that r belongs to.
func (o *Overview) group(r *egress.Record) *Group {
	o.text = appendKey(o.text[:0], r)
	if g := o.groups[string(o.text)]; g != nil {
		return g
	}
	if len(o.folded) > 0 {
		if g := o.folded[domainKey(keyOf(r), Host(r), named(r), portOf(r))]; g != nil {
			return g
		}
	}
	if o.fixed {
		return o.beyond(r.Decision.Action, Why(r), named(r))
	}
	if o.groups == nil {
		o.groups = map[string]*Group{}
	}
	g := &Group{GroupKey: keyOf(r), key: string(o.text), sandbox: strings.Clone(named(r)), host: strings.Clone(Host(r)), port: portOf(r), many: r.Names != nil}
	g.Action = strings.Clone(g.Action)
	o.groups[g.key] = g
	if len(o.groups) > 2*o.room() {
		g.add(r) // so that it is ranked by it
		o.shrink()
		return &Group{}
	}
	return g
}

// appendKey appends a text that is the same for all records of one line. No
// string of a record holds the byte that separates its parts.
func appendKey(b []byte, r *egress.Record) []byte {
	b = append(append(b, r.Decision.Action...), '\xff')
	b = append(appendDestination(b, r), '\xff')
	b = append(appendWhat(b, r), '\xff')
	b = append(appendWho(b, r), '\xff')
	return appendWhy(b, r)
}

func (o *Overview) room() int { return cmp.Or(o.most, MaxGroups) }

func keyOf(r *egress.Record) GroupKey {
	return GroupKey{r.Decision.Action, Destination(r), What(r), Who(r), Why(r)}
}

// beyond is what is counted together of a sandbox.
func (o *Overview) beyond(action, why, sandbox string) *Group {
	o.text = append(append(append(append(append(o.text[:0], action...), '\xff'), why...), '\xff'), sandbox...)
	if g := o.rest[string(o.text)]; g != nil {
		return g
	}
	if len(o.rest) >= o.room() && why != Beyond { // of ever new rules or sandboxes, in a log of somebody else
		return o.beyond(action, Beyond, "")
	}
	if o.rest == nil {
		o.rest = map[string]*Group{}
	}
	sandbox = strings.Clone(sandbox)
	g := &Group{GroupKey: GroupKey{strings.Clone(action), Beyond, Beyond, cmp.Or(sandbox, Beyond), strings.Clone(why)}, sandbox: sandbox, many: true}
	o.rest[string(o.text)] = g
	return g
}

// Len is the number of groups.
func (o *Overview) Len() int { return len(o.groups) + len(o.folded) + len(o.rest) }

// OneSandbox reports whether all that was added is of one sandbox.
func (o *Overview) OneSandbox() bool { return len(o.asking) == 1 }

// Section returns the groups of an action: what was most, first; among equals
// the newest.
func (o *Overview) Section(action string) []*Group {
	var groups []*Group
	for _, all := range []map[string]*Group{o.groups, o.folded, o.rest} {
		for g := range maps.Values(all) {
			if g.Action == action && g.Count > 0 {
				g.finish()
				groups = append(groups, g)
			}
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
