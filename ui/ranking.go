package ui

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
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
	First       time.Time
	URL         string // of its requests
}

// rankings are the destinations that a person looks at first.
type rankings struct {
	Denied, Up, New []rankedDestination
	Since           time.Time // of New
}

const rankingShown = 5

// rankings ranks the destinations of sum: what was denied most, where most went up, and what is new. A destination is
// new if the page holds no decision about it before the window. The window begins where the filter says, else with the day of the last record.
func (s *Server) rankings(ctx context.Context, q *query, sum *index.Sum) (r rankings) {
	all := s.byDestination(sum)
	r.Denied = top(all, func(d *destinationSum) int64 { return d.denied })
	r.Up = top(all, func(d *destinationSum) int64 { return d.up })
	if sum.Last > 0 {
		last := at(sum.Last)
		r.Since = time.Date(last.Year(), last.Month(), last.Day(), 0, 0, 0, 0, last.Location())
	}
	if !slices.Equal(without(q.words, "since"), q.words) && sum.First > 0 {
		r.Since = at(sum.First)
	}
	known := all
	if q.Rest() != strings.Join(q.words, " ") { // earlier decisions are outside of the filter
		if f, err := s.parseFilter(q.Rest()); err == nil {
			known = s.byDestination(s.index.Sum(ctx, f, nil))
		}
	}
	fresh := map[string]*destinationSum{}
	for to, d := range all {
		if first := known[to]; first != nil && !at(first.first).Before(r.Since) {
			fresh[to] = d
		}
	}
	r.New = top(byDomain(fresh), func(d *destinationSum) int64 { return d.first })
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

type destinationSum struct {
	destination       string
	count, denied, up int64
	first             int64 // Unix microseconds
}

func (s *Server) byDestination(sum *index.Sum) map[string]*destinationSum {
	all := map[string]*destinationSum{}
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t, to := sum.Totals[id], logs.Destination(r)
		d := all[to]
		if d == nil {
			d = &destinationSum{destination: strings.Clone(to), first: t.First}
			all[d.destination] = d
		}
		d.count, d.up, d.first = d.count+t.Count, d.up+t.Up, min(d.first, t.First)
		if r.Decision.Action == "deny" {
			d.denied += t.Count
		}
	})
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
		list = append(list, rankedDestination{Destination: d.destination, Count: value(d), Up: d.up, First: at(d.first)})
	}
	return list
}
