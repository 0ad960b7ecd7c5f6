package logs

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/record/count"
)

// MaxGroups bounds the memory of an overview, because a sandbox can ask for any number of names. An
// [Overview] keeps that many lines, and for short periods twice as many. It counts the rest under the
// destination [Beyond].
const (
	MaxGroups = 10_000
	Beyond    = "…"
)

// An Overview groups and counts decisions. Its zero value is empty.
//
// [MaxGroups] bounds its memory. If there are more lines, the overview first merges the lines of a
// registrable domain that has many names. If that is not enough, it ranks the lines of each sandbox and
// verdict separately. A sandbox therefore cannot hide the traffic of another sandbox, nor its allowed
// traffic behind denials. Half of the remaining lines are those with the highest counts, half those with
// the most bytes sent. A line that was dropped may return with too small a count, see [Overview.Exact].
type Overview struct {
	First, Last time.Time // times of the first and the last decision

	groups    map[string]*Group
	byDomain  map[string]*Group // merged lines, by domainKey
	rest      map[string]*Group // lines for Beyond
	fixed     bool              // no line may be added
	max       int               // maximum number of lines; [MaxGroups] if 0
	dropped   bool              // lines were dropped, so counts may be too small
	key       []byte            // buffer for the key of a lookup
	shadow    shadowGroups
	sandboxes map[string]struct{} // up to two sandboxes that made decisions
}

// A GroupKey holds the values that the decisions of one line share.
type GroupKey struct{ Action, Destination, What, Who, Why string }

// A Group is one line of the overview.
type Group struct {
	GroupKey
	Count    int64
	Last     time.Time
	Flow     string // the id of the last flow; if possible one that no other request shares
	Allow    string // the pattern that would allow the last flow, see [Allowable]
	Up, Down int64
	Failed   int64
	Refused  int64 // by the client, which does not trust egressd's CA
	Cut      int64
	Open     int64

	key           string // key in Overview.groups
	sandbox, host string
	port          uint16
	domain        string    // see domainKey
	domainKnown   bool      // domain has been computed
	many          bool      // the line covers several destinations
	inexact       bool      // no rule can name the last request alone
	flow          []byte    // see Flow
	shared        bool      // other requests share flow
	refusal       [4]string // class, layer, rule and address class of the last decision
}

// Many reports whether the line covers more than one destination.
func (g *Group) Many() bool { return g.many }

// IsName reports whether the line is of questions to a name server, which no connection followed.
func (k *GroupKey) IsName() bool { return k.What == "dns" || strings.HasPrefix(k.What, "dns ") }

// namedSandbox returns the sandbox, or "" for the default sandbox.
func namedSandbox(r *record.Record) string {
	if r.Sandbox == "default" {
		return ""
	}
	return r.Sandbox
}

// Decides reports whether r holds a decision about a sandbox's traffic.
func Decides(r *record.Record) bool {
	switch r.Kind {
	case record.KindOpen, record.KindRequest, record.KindDNS, record.KindRefused, record.KindClose:
		return r.Decision != nil
	}
	return false
}

// Add counts one request of a [DecisionJoiner]. It keeps no memory of r.
func (o *Overview) Add(r *record.Record) {
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
	if _, known := o.sandboxes[r.Sandbox]; !known && r.Sandbox != "" && len(o.sandboxes) < 2 {
		if o.sandboxes == nil {
			o.sandboxes = map[string]struct{}{}
		}
		o.sandboxes[strings.Clone(r.Sandbox)] = struct{}{}
	}
	o.group(r).add(r)
}

func (g *Group) add(r *record.Record) {
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
	case r.Outcome == record.OutcomeCut:
		g.Cut += n
	case count.Failed(r.Outcome):
		g.Failed += n
	case r.Outcome == count.Distrusted:
		g.Refused += n
	}
}

func (g *Group) latest(r *record.Record) {
	g.Last = r.Time
	if r.Shared && !g.shared && len(g.flow) > 0 {
		return
	}
	g.flow, g.shared = append(g.flow[:0], r.Flow...), r.Shared
	refusal := [4]string{r.Decision.Class, r.Decision.Layer, r.Decision.Rule, part(r.Dst).Class}
	g.inexact = !namesOne(r)
	if g.refusal != refusal {
		for i := range refusal {
			refusal[i] = strings.Clone(refusal[i])
		}
		g.refusal = refusal
	}
}

// finish sets the exported fields that are computed only when somebody reads them.
func (g *Group) finish() {
	g.Flow, g.Allow = string(g.flow), ""
	if g.many || g.inexact || g.Count == 0 {
		return
	}
	g.Allow = Allowable(&record.Record{
		Flow: g.Flow, Shared: g.shared, Dst: &record.Destination{Host: g.host, Port: g.port, Class: g.refusal[3]},
		Decision: &record.Decision{Class: g.refusal[0], Layer: g.refusal[1], Rule: g.refusal[2]},
	})
}

// group returns the line that counts r.
func (o *Overview) group(r *record.Record) *Group {
	o.key = appendKey(o.key[:0], r)
	if g := o.groups[string(o.key)]; g != nil {
		return g
	}
	if len(o.byDomain) > 0 {
		if g := o.byDomain[domainKey(keyOf(r), Host(r), namedSandbox(r), part(r.Dst).Port)]; g != nil {
			return g
		}
	}
	if o.fixed {
		return o.beyond(r.Decision.Action, Why(r), namedSandbox(r))
	}
	if o.groups == nil {
		o.groups = map[string]*Group{}
	}
	g := &Group{GroupKey: keyOf(r), key: string(o.key), sandbox: strings.Clone(namedSandbox(r)), host: strings.Clone(Host(r)), port: part(r.Dst).Port, many: r.Names != nil}
	g.Action = strings.Clone(g.Action)
	o.groups[g.key] = g
	if len(o.groups) > 2*o.limit() {
		g.add(r) // the ranking needs the count
		o.shrink()
		return &Group{}
	}
	return g
}

// appendKey appends a key that all records of one line share. The separator 0xff occurs in no string of a
// record.
func appendKey(b []byte, r *record.Record) []byte {
	b = append(append(b, r.Decision.Action...), '\xff')
	b = append(appendDestination(b, r), '\xff')
	b = append(appendWhat(b, r), '\xff')
	b = append(appendWho(b, r), '\xff')
	return appendWhy(b, r)
}

func (o *Overview) limit() int { return cmp.Or(o.max, MaxGroups) }

func keyOf(r *record.Record) GroupKey {
	return GroupKey{r.Decision.Action, Destination(r), What(r), Who(r), Why(r)}
}

// beyond returns the line that sums the dropped lines of a sandbox.
func (o *Overview) beyond(action, why, sandbox string) *Group {
	o.key = append(append(append(append(append(o.key[:0], action...), '\xff'), why...), '\xff'), sandbox...)
	if g := o.rest[string(o.key)]; g != nil {
		return g
	}
	if len(o.rest) >= o.limit() && why != Beyond { // a foreign log may hold any number of rules and sandboxes
		return o.beyond(action, Beyond, "")
	}
	if o.rest == nil {
		o.rest = map[string]*Group{}
	}
	sandbox = strings.Clone(sandbox)
	g := &Group{GroupKey: GroupKey{strings.Clone(action), Beyond, Beyond, cmp.Or(sandbox, Beyond), strings.Clone(why)}, sandbox: sandbox, many: true}
	o.rest[string(o.key)] = g
	return g
}

// Len returns the number of lines.
func (o *Overview) Len() int { return len(o.groups) + len(o.byDomain) + len(o.rest) }

// OneSandbox reports whether all decisions were made for the same sandbox.
func (o *Overview) OneSandbox() bool { return len(o.sandboxes) == 1 }

// Section returns the lines of one action, highest count first. Lines with equal counts are ordered newest
// first.
func (o *Overview) Section(action string) []*Group {
	var groups []*Group
	for _, all := range []map[string]*Group{o.groups, o.byDomain, o.rest} {
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

// Shadows returns the decisions that the shadow policy would have made differently, in the order of
// [Overview.Section].
func (o *Overview) Shadows() []*ShadowGroup {
	return slices.SortedFunc(maps.Values(o.shadow), compareShadows)
}

// manyNames is the number of names below one domain at which their lines are merged.
const manyNames = 50

// Exact reports whether all counts are complete. If not, the caller adds the same decisions to
// [Overview.Again].
func (o *Overview) Exact() bool { return !o.dropped }

// Again returns an overview with the lines of o and zero counts. It takes no further lines, so its counts
// are exact. All other decisions are counted under [Beyond].
func (o *Overview) Again() *Overview {
	again := &Overview{fixed: true, groups: map[string]*Group{}, byDomain: map[string]*Group{}}
	for key, g := range o.groups {
		again.groups[key] = g.empty()
	}
	for key, g := range o.byDomain {
		again.byDomain[key] = g.empty()
	}
	return again
}

func (g *Group) empty() *Group {
	return &Group{GroupKey: g.GroupKey, key: g.key, sandbox: g.sandbox, host: g.host, port: g.port, many: g.many}
}

// shrink reduces the number of lines to the limit.
func (o *Overview) shrink() {
	o.mergeDomains()
	if len(o.groups) > o.limit() {
		o.drop()
	}
}

// domainKey returns a key that all lines of one registrable domain share. It returns "" for addresses and
// for hosts outside registrable domains.
func domainKey(k GroupKey, host, sandbox string, port uint16) string {
	if host == "" || strings.Contains(host, ":") || host[len(host)-1] >= '0' && host[len(host)-1] <= '9' { // an address
		return ""
	}
	domain := policy.Registrable(host)
	if domain == "" || domain == host {
		return ""
	}
	return strings.Join([]string{domain, strconv.Itoa(int(port)), k.Action, k.What, k.Who, k.Why, sandbox}, "\xff")
}

// mergeDomains merges the lines of each domain that has manyNames lines.
func (o *Overview) mergeDomains() {
	domains := map[string][]*Group{}
	for _, g := range o.groups {
		if !g.domainKnown {
			g.domainKnown, g.domain = true, domainKey(g.GroupKey, g.host, g.sandbox, g.port)
		}
		if g.domain != "" {
			domains[g.domain] = append(domains[g.domain], g)
		}
	}
	for domain, groups := range domains {
		if len(groups) < manyNames {
			continue
		}
		if o.byDomain == nil {
			o.byDomain = map[string]*Group{}
		}
		whole := o.byDomain[domain]
		if whole == nil {
			whole = groups[0].domainLine()
			o.byDomain[domain] = whole
		}
		for _, g := range groups {
			whole.merge(g)
			delete(o.groups, g.key)
		}
	}
}

func (g *Group) domainLine() *Group {
	whole := g.empty()
	name, _, _ := strings.Cut(g.domain, "\xff")
	whole.Destination, whole.many = "*."+name, true
	if g.port != 0 {
		whole.Destination += ":" + strconv.Itoa(int(g.port))
	}
	return whole
}

// merge adds the counts of other to g. Afterwards g covers many names, so it suggests no rule.
func (g *Group) merge(other *Group) {
	if other.Last.After(g.Last) {
		g.Last, g.flow = other.Last, append(g.flow[:0], other.flow...)
	}
	g.many, g.Allow = true, ""
	g.Count, g.Up, g.Down = g.Count+other.Count, g.Up+other.Up, g.Down+other.Down
	g.Failed, g.Refused, g.Cut, g.Open = g.Failed+other.Failed, g.Refused+other.Refused, g.Cut+other.Cut, g.Open+other.Open
}

// drop removes lines until o holds at most its limit. Each pair of sandbox and action keeps an equal
// number of lines. Lines that a pair does not need go to the others.
func (o *Overview) drop() {
	type part struct{ action, sandbox string }
	parts := map[part][]*Group{}
	for _, g := range o.groups {
		p := part{g.Action, g.sandbox}
		parts[p] = append(parts[p], g)
	}
	free, left := o.limit(), len(parts)
	for _, groups := range slices.SortedFunc(maps.Values(parts), func(a, b []*Group) int { return cmp.Compare(len(a), len(b)) }) {
		keep := free / left
		for _, g := range lowestGroups(groups, keep) {
			o.beyond(g.Action, g.Why, g.sandbox).merge(g)
			delete(o.groups, g.key)
		}
		free, left = free-min(keep, len(groups)), left-1
	}
	o.dropped = true
}

// lowestGroups returns the lines to drop so that keep lines remain. Half of those have the highest counts, half
// have sent the most bytes.
func lowestGroups(groups []*Group, keep int) []*Group {
	if len(groups) <= keep {
		return nil
	}
	slices.SortFunc(groups, func(a, b *Group) int { return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last)) })
	rest := groups[keep/2:]
	slices.SortStableFunc(rest, func(a, b *Group) int { return cmp.Compare(b.Up, a.Up) })
	return rest[keep-keep/2:]
}
