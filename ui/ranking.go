package ui

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A rankedDestination is one destination in a ranking of the view Now.
type rankedDestination struct {
	Destination string
	Count       int64 // requests, or denials
	Up          int64
	Denied      bool // nothing passed to it
	First       time.Time
	URL         string // of its requests
}

// rankings are the destinations that a person looks at first.
type rankings struct {
	Denied, Up, New []rankedDestination
	Since           time.Time // of New
	OnlyDenied      int       // new destinations that nothing passed to; in New, they stand behind the others
}

const rankingShown = 5

// rankings ranks the destinations of groups: what was denied most, where most went up, and what is new. A destination is
// new if the page holds no decision about it before the window. The window begins where the filter says, else with the day of the last record.
func (s *Server) rankings(ctx context.Context, q *query, sum *index.Sum, groups []*group) (r rankings) {
	all := byDestination(groups)
	refused, fresh, denied := map[string]*destinationSum{}, map[string]*destinationSum{}, map[string]*destinationSum{}
	if sum.Last > 0 {
		last := at(sum.Last)
		r.Since = time.Date(last.Year(), last.Month(), last.Day(), 0, 0, 0, 0, last.Location())
	}
	if !slices.Equal(without(q.words, "since"), q.words) && sum.First > 0 {
		r.Since = at(sum.First)
	}
	first := func(d *destinationSum) int64 { return d.first }
	if q.Rest() != strings.Join(q.words, " ") { // earlier decisions are outside of the filter
		seen := s.firsts.of(ctx, s, q.Rest())
		first = func(d *destinationSum) int64 {
			if t, known := seen[d.destination]; known {
				return t
			}
			return d.first
		}
	}
	for to, d := range all {
		if d.denied > 0 {
			refused[to] = d
		}
		switch {
		case at(first(d)).Before(r.Since):
		case d.denied < d.count:
			fresh[to] = d
		default:
			denied[to] = d
		}
	}
	r.Denied = top(byDomain(refused), func(d *destinationSum) int64 { return d.denied })
	r.Up = top(all, func(d *destinationSum) int64 { return d.up })
	newest := func(d *destinationSum) int64 { return d.first }
	r.New = top(byDomain(fresh), newest)
	onlyDenied := top(byDomain(denied), newest)
	r.New = append(r.New, onlyDenied[:min(len(onlyDenied), rankingShown-len(r.New))]...)
	r.OnlyDenied = len(denied)
	for _, list := range [][]rankedDestination{r.Denied, r.Up, r.New} {
		for i := range list {
			list[i].URL = q.with("/requests", hostTerms(list[i].Destination)...)
		}
	}
	for i := range r.Denied {
		r.Denied[i].URL = q.with("/requests", append(hostTerms(r.Denied[i].Destination), term("verdict", "deny"))...)
	}
	return r
}

// firstSeen remembers when the destinations that a filter takes were first seen. A destination that it does not have came later, so it
// never needs to be read again. Its zero value is empty.
type firstSeen struct {
	mu   sync.Mutex // guards what follows
	text string     // of the filter
	seen map[string]int64
}

func (f *firstSeen) of(ctx context.Context, s *Server, text string) map[string]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen != nil && f.text == text {
		return f.seen
	}
	filter, err := s.parseFilter(text)
	if err != nil {
		return nil
	}
	sum := s.index.Sum(ctx, filter, nil)
	if ctx.Err() != nil {
		return nil // it is not whole
	}
	seen := map[string]int64{}
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		to, first := logs.Destination(r), sum.Totals[id].First
		if before, known := seen[to]; !known {
			seen[strings.Clone(to)] = first
		} else if first < before {
			seen[to] = first
		}
	})
	f.text, f.seen = text, seen
	return seen
}

type destinationSum struct {
	destination       string
	count, denied, up int64
	first             int64 // Unix microseconds
}

func byDestination(groups []*group) map[string]*destinationSum {
	all := map[string]*destinationSum{}
	for _, g := range groups {
		first := g.First.UnixMicro()
		d := all[g.Destination]
		if d == nil {
			d = &destinationSum{destination: g.Destination, first: first}
			all[g.Destination] = d
		}
		d.count, d.up, d.first = d.count+g.Count, d.up+g.Up, min(d.first, first)
		if g.Action == "deny" {
			d.denied += g.Count
		}
	}
	return all
}

// namesOfADomain is from how many new names below one domain on a ranking has the domain instead: a program may make up any number.
const namesOfADomain = 4

// byDomain puts many names of one domain together.
func byDomain(all map[string]*destinationSum) map[string]*destinationSum {
	domains, merged := map[string][]*destinationSum{}, map[string]*destinationSum{}
	for _, d := range all {
		host, _, _ := strings.Cut(d.destination, ":")
		name := cmp.Or(policy.Registrable(host), host)
		domains[name] = append(domains[name], d)
	}
	for name, of := range domains {
		if len(of) < namesOfADomain {
			for _, d := range of {
				merged[d.destination] = d
			}
			continue
		}
		sum := &destinationSum{destination: "*." + name, first: of[0].first}
		for _, d := range of {
			sum.count, sum.denied, sum.up, sum.first = sum.count+d.count, sum.denied+d.denied, sum.up+d.up, max(sum.first, d.first)
		}
		merged[sum.destination] = sum
	}
	return merged
}

// top returns the destinations with the highest values above 0.
func top(all map[string]*destinationSum, value func(*destinationSum) int64) (list []rankedDestination) {
	some := slices.DeleteFunc(slices.Collect(maps.Values(all)), func(d *destinationSum) bool { return value(d) <= 0 })
	slices.SortFunc(some, func(a, b *destinationSum) int {
		return cmp.Or(cmp.Compare(value(b), value(a)), cmp.Compare(a.destination, b.destination))
	})
	for _, d := range some[:min(len(some), rankingShown)] {
		list = append(list, rankedDestination{Destination: d.destination, Count: value(d), Up: d.up, Denied: d.denied == d.count, First: at(d.first)})
	}
	return list
}
