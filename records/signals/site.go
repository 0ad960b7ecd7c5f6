package signals

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/records"
)

// A site is what one program did with one destination.
type site struct {
	first, last time.Time
	since       int64 // the first by its place in the log

	allowed, denied int64
	published       int64 // requests that leave something there, or tunnels that may be one
	publishedUp     int64
	looked          int64 // otherwise

	uploads   traffic // flows that mostly send
	downloads traffic // and the others
	longest   int64   // bytes that a single flow has sent over minutes

	names       distinct // below the registered domain
	asked       int64    // how often one was asked for, new or not
	information float64  // bits that the different ones can tell
	longestName int
	overBudget  int64 // that the name server refused for it

	canary *egress.RecordSignal
	ids    [maxIDs]example
}

// traffic is flows of one direction.
type traffic struct {
	n           int64
	up, down    int64
	sizes       spread // bytes up
	gaps        spread // seconds between two of them
	first, last time.Time
	since, till int64 // the first and the last by their place in the log, counted in flows
}

// An example is a record that shows what a site is about.
type example struct {
	id     string
	weight float64
}

func (t *traffic) add(r *egress.Record, place int64) {
	if t.n++; t.n == 1 {
		t.since = place
	}
	t.first, t.till = earliest(t.first, r.Time), place
	t.up += r.Bytes.Up
	t.down += r.Bytes.Down
	t.sizes.add(float64(r.Bytes.Up))
	if !t.last.IsZero() {
		t.gaps.add(math.Abs(r.Time.Sub(t.last).Seconds()))
	}
	t.last = r.Time
}

func (t *traffic) merge(o *traffic) {
	if t.n == 0 || o.n > 0 && o.since < t.since {
		t.since = o.since
	}
	t.till = max(t.till, o.till)
	t.n, t.up, t.down = t.n+o.n, t.up+o.up, t.down+o.down
	t.sizes.merge(o.sizes)
	t.gaps.merge(o.gaps)
	t.first, t.last = earliest(t.first, o.first), latest(t.last, o.last)
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

// smallUpload is the least that counts as one: the head of a request alone is none.
const smallUpload = 1024

func (s *site) add(r *egress.Record, place int64) {
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
		weight += s.addBytes(r, place)
	}
	s.show(r.Flow, weight)
}

// addName counts what the labels below a registered domain can tell.
func (s *site) addName(r *egress.Record) (weight float64) {
	host := records.Host(r)
	domain := policy.Registrable(host)
	if domain == "" || host == domain {
		return 0
	}
	s.asked += r.Times()
	labels := strings.TrimSuffix(strings.TrimSuffix(host, domain), ".")
	if !s.names.add(host) {
		return 0
	}
	s.longestName = max(s.longestName, len(labels))
	told := egress.InformationOf(labels)
	s.information += told
	return told
}

func (s *site) addBytes(r *egress.Record, place int64) (weight float64) {
	host := records.Host(r)
	var up, down int64
	if r.Bytes != nil {
		up, down = r.Bytes.Up, r.Bytes.Down
	}
	sends := up >= smallUpload && up > 2*down
	if place := below(publishers, host); place != "" || destination(r) == gists || below(stores, host) != "" {
		if writes(r) || r.HTTP == nil && (sends || r.Decision.Action != "allow" || pushes(r)) {
			s.published += r.Times()
			s.publishedUp += up
			weight = float64(up) + 1000
		} else {
			s.looked += r.Times()
		}
	}
	if r.Bytes == nil || r.Decision.Action != "allow" {
		return weight
	}
	if sends {
		s.uploads.add(r, place)
		if r.Duration >= time.Minute.Milliseconds()*5 {
			s.longest = max(s.longest, up)
		}
		return weight + float64(up)
	}
	s.downloads.add(r, place)
	return weight
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
	s.uploads.merge(&o.uploads)
	s.downloads.merge(&o.downloads)
	s.longest = max(s.longest, o.longest)
	s.overBudget += o.overBudget
	if s.canary == nil {
		s.canary = o.canary
	}
	for _, e := range o.ids {
		s.show(e.id, e.weight)
	}
	// What names tell is told to one domain, so it is not summed over several.
}

// judge says what a site's program did with it that data leaves by.
func (f *Finder) judge(key siteKey, s *site) (int, []Signal) {
	return together([]Signal{s.canaries(), s.tells(), f.sends(key, s), s.publishes(), f.beats(key, s)})
}

func (s *site) canaries() Signal {
	if s.canary == nil {
		return Signal{}
	}
	return Signal{"canary", 100, fmt.Sprintf("the canary %s was in its %s (%s)", s.canary.Name, s.canary.Where, s.canary.Encoding)}
}

// namesFrom is what a token takes that is worth sending, and namesTo a key.
const namesFrom, namesTo = 128, 2048

// wordBytes is what a word or a counter can tell, which by themselves say little.
const wordBytes = 6

// tells is about names that carry data: they are many, long or random, and each is
// asked for about once, since a resolver remembers what it was told.
func (s *site) tells() Signal {
	n := s.names.count()
	bytes := s.information / 8
	if n < 8 || s.asked == 0 {
		return Signal{}
	}
	once := min(1, n/float64(s.asked))
	score := scaled(bytes*once*once, namesFrom, namesTo, 80)
	if each := bytes / n; each < wordBytes {
		score = int(float64(score) * each / wordBytes)
	}
	if s.overBudget > 0 {
		score = max(score, 60) + 10
	}
	evidence := fmt.Sprintf("%.0f different names of up to %d characters, asked for %d times, can tell %.0f bytes", n, s.longestName, s.asked, bytes)
	if s.overBudget > 0 {
		evidence += fmt.Sprintf("; %d were refused for that", s.overBudget)
	}
	return Signal{"names", score, evidence}
}

// publishes is about places where others can fetch what is left.
func (s *site) publishes() Signal {
	if s.published == 0 {
		return Signal{"publish", min(10, int(s.looked)), fmt.Sprintf("%d requests to where anybody can publish", s.looked)}
	}
	score := 60 + scaled(float64(s.publishedUp), 1<<10, 1<<20, 25)
	what := "sent something"
	if s.allowed == 0 {
		score, what = 55, "tried to send something"
	}
	return Signal{"publish", score, fmt.Sprintf("%s %d times, %s, to where others can fetch it", what, s.published, size(s.publishedUp))}
}
