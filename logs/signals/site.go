package signals

import (
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
)

// A site is what one program did with one destination.
type site struct {
	first, last time.Time
	since       int64 // the first by its place in the log

	allowed, denied int64
	published       int64 // requests that leave something there, or tunnels that may be one
	publishedUp     int64
	looked          int64 // otherwise

	lanes   map[string]*lane // by host
	small   pulse            // flows of little in both directions
	fetched pulse            // and of more
	when    hours            // of flows that are small or uploads

	names       distinct // below the registered domain
	asked       [4]int64 // how often one was asked for, new or not, by what was asked
	told        int64    // names that information is of
	information float64  // bits that these can tell
	longestName int
	overBudget  int64 // that the name server refused for it
	carriers    int64 // questions of types that hold what one likes

	canary *egress.RecordSignal
	ids    [maxIDs]example
}

// An example is a record that shows what a site is about.
type example struct {
	id     string
	weight float64
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// add takes in a decision: place is its number among all flows and own among those of its sandbox, denied when its program was last
// denied another destination.
func (s *site) add(r *egress.Record, place, own int64, denied time.Time) {
	if s.first.IsZero() {
		s.since = place
	}
	s.first, s.last = earliest(s.first, r.Time), latest(s.last, r.Time)
	weight := 1.0
	switch {
	case r.Signal != nil:
		s.canary = &egress.RecordSignal{
			Name: strings.Clone(r.Signal.Name), Where: strings.Clone(r.Signal.Where), Encoding: strings.Clone(r.Signal.Encoding),
		}
		s.show(r.Flow, 1e18)
		return
	case r.Decision.Action != "allow":
		s.denied += r.Times()
		weight = 2
	default:
		s.allowed += r.Times()
	}
	if r.Decision.Class == string(policy.DNSBudget) {
		s.overBudget += r.Times()
		weight = 1e6
	}
	weight += s.addName(r)
	if r.DNS == nil {
		weight += s.addBytes(r, place, own, denied)
	}
	s.show(r.Flow, weight)
}

// addName counts what the labels below a registered domain can tell.
func (s *site) addName(r *egress.Record) (weight float64) {
	host := logs.Host(r)
	domain := policy.Registrable(host)
	if domain == "" || host == domain || below(reverseZones, host) != "" {
		return 0
	}
	s.asked[askedFor(r)] += r.Times()
	if isCarrier(r) {
		s.carriers += r.Times()
	}
	labels := strings.TrimSuffix(strings.TrimSuffix(host, domain), ".")
	if !s.names.add(host) {
		return 0
	}
	s.longestName = max(s.longestName, len(labels))
	s.told++
	told := egress.InformationOf(labels)
	s.information += told
	return told
}

func (s *site) addBytes(r *egress.Record, place, own int64, denied time.Time) (weight float64) {
	host := logs.Host(r)
	l := loadOf(r)
	if place := below(publishers, host); place != "" || destination(r) == gists {
		if writes(r) || r.HTTP == nil && (l.sends() || r.Decision.Action != "allow" || pushes(r)) {
			s.published += r.Times()
			s.publishedUp += l.up
			weight = float64(l.up) + 1000
		} else {
			s.looked += r.Times()
		}
	}
	if r.Bytes == nil || r.Decision.Action != "allow" {
		return weight
	}
	if l.isSmall() || l.sends() {
		s.when.add(r.Time, 1)
	}
	if l.isSmall() {
		s.small.add(r.Time)
	} else if !l.sends() {
		s.fetched.add(r.Time)
	}
	since := r.Time.Sub(denied)
	s.lane(laneOf(host), place, own).add(r, l, place, since >= 0 && since <= soon)
	if !l.sends() {
		return weight
	}
	return weight + float64(l.up)
}

// show keeps the records that weigh most.
func (s *site) show(id string, weight float64) {
	if id == "" {
		return
	}
	least := 0
	for i, e := range s.ids {
		if e.id == id {
			s.ids[i].weight = max(e.weight, weight)
			return
		}
		if e.weight < s.ids[least].weight {
			least = i
		}
	}
	if s.ids[least].weight < weight {
		s.ids[least] = example{strings.Clone(id), weight}
	}
}

func (s *site) shown() (ids []string) {
	for _, e := range s.ids {
		if e.id != "" {
			ids = append(ids, e.id)
		}
	}
	return ids
}

func (s *site) merge(o *site) {
	if s.first.IsZero() {
		s.since = o.since
	}
	s.since = min(s.since, o.since)
	s.first, s.last = earliest(s.first, o.first), latest(s.last, o.last)
	s.allowed, s.denied = s.allowed+o.allowed, s.denied+o.denied
	s.published, s.publishedUp, s.looked = s.published+o.published, s.publishedUp+o.publishedUp, s.looked+o.looked
	for host, l := range o.lanes {
		s.lane(host, l.since, l.began).merge(l)
	}
	s.small.merge(&o.small)
	s.fetched.merge(&o.fetched)
	s.when.merge(&o.when)
	s.overBudget += o.overBudget
	if s.canary == nil {
		s.canary = o.canary
	}
	for _, e := range o.ids {
		s.show(e.id, e.weight)
	}
	// What names tell is told to one domain, so it is not summed over several.
}
