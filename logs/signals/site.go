package signals

import (
	"strings"
	"time"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A site holds the traffic of one program with one destination.
type site struct {
	first, last time.Time
	since       int64 // index of the first flow among all flows

	allowed, denied int64
	published       int64 // requests that publish content, and tunnels that may do so
	publishedUp     int64
	looked          int64 // other requests

	lanes   map[string]*lane // by host
	small   pulse            // flows with few bytes in both directions
	fetched pulse            // larger flows that do not mostly send
	when    hours            // small flows and uploads by hour

	names       distinct // names below the registrable domain
	asked       [4]int64 // queries by askedFor, including repeated ones
	measured    int64    // number of names measured in information
	information float64  // bits that these names can carry
	longestName int
	overBudget  int64 // denied by the name server's budget
	carriers    int64 // queries of types that can carry arbitrary data

	canary *record.Signal
	ids    [maxIDs]example
}

// An example is the id of a record that shows what the site did.
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

// add counts a decision about a host. It gets the flow's index among all flows and within its sandbox. Time denied is
// that of the program's last denial elsewhere. The freight is what the flow passes on, or nil.
func (s *site) add(seed uint64, r *record.Record, host *traits, index, ownIndex int64, denied time.Time, from *freight) {
	if s.first.IsZero() {
		s.since = index
	}
	s.first, s.last = earliest(s.first, r.Time), latest(s.last, r.Time)
	weight := 1.0
	switch {
	case r.Signal != nil:
		s.canary = &record.Signal{
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
	weight += s.addName(seed, r, host)
	if r.DNS == nil {
		weight += s.addBytes(seed, r, host, index, ownIndex, denied, from)
	}
	s.show(r.Flow, weight)
}

func (s *site) addName(seed uint64, r *record.Record, host *traits) (weight float64) {
	if host.labels == "" {
		return 0
	}
	s.asked[askedFor(r)] += r.Times()
	if isCarrier(r) {
		s.carriers += r.Times()
	}
	if !s.names.add(seed, logs.Host(r)) {
		return 0
	}
	s.longestName = max(s.longestName, len(host.labels))
	s.measured++
	bits := names.Information(host.labels)
	s.information += bits
	return bits
}

func (s *site) addBytes(seed uint64, r *record.Record, host *traits, index, ownIndex int64, denied time.Time, from *freight) (weight float64) {
	l := loadOf(r)
	if host.publishes || destination(r, host) == gists {
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
	s.lane(host.lane, index, ownIndex).add(seed, r, l, index, since >= 0 && since <= soon, from)
	if !l.sends() {
		return weight
	}
	return weight + float64(l.up)
}

// show keeps the ids with the highest weights.
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

// peak returns the time of most uploads, or nil if they are spread over more than a window.
func (s *site) peak() *Peak {
	var most window
	var sum int64
	for _, l := range s.lanes {
		if l.uploads == nil {
			continue
		}
		sum += l.uploads.up
		if l.uploads.greatest.up > most.up {
			most = l.uploads.greatest
		}
	}
	if most.up == 0 || most.up < sum/2 {
		return nil
	}
	return &Peak{time.Unix(most.first, 0).UTC(), time.Unix(most.last, 0).UTC(), most.up}
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
		s.lane(host, l.since, l.firstOwn).merge(l)
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
	// Information in names goes to one domain, so it is not summed over several domains.
}
