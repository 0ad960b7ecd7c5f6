package ui

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/record"
)

// A whoWhere is a map: programs on the left, domains on the right, and a line for each pair.
type whoWhere struct {
	Width, Height int
	Who, Where    []mapPlace
	Lines         []route
}

// A mapPlace is a program or a domain.
type mapPlace struct {
	Name  string
	Y     int
	Count int64
}

// A route is what a program asked of a domain.
type route struct {
	Who, Where    string
	Path          string // of the SVG
	Thick         float64
	Count, Denied int64
	Up            int64
}

// Class says how much of it was denied: all, some, or "".
func (r *route) Class() string {
	switch r.Denied {
	case 0:
		return ""
	case r.Count:
		return "all"
	}
	return "some"
}

const (
	mapPlaces  = 14 // on each side; the others are one place
	mapRow     = 24
	mapColumn  = 230 // for names
	mapOthers  = "others"
	mapLongest = 30 // bytes of a name
)

// whoWhere draws the pairs of programs and domains with most requests.
func (s *Server) whoWhere(sum *index.Sum) *whoWhere {
	type pair struct{ who, where string }
	pairs, who, where := map[pair]*route{}, map[string]int64{}, map[string]int64{}
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t := sum.Totals[id]
		p := pair{cmp.Or(logs.Process(r), "unknown program"), domain(r)}
		one := pairs[p]
		if one == nil {
			p = pair{strings.Clone(p.who), strings.Clone(p.where)}
			one = &route{}
			pairs[p] = one
		}
		one.Count, one.Up = one.Count+t.Count, one.Up+t.Up
		if r.Decision.Action == "deny" {
			one.Denied += t.Count
		}
		who[p.who] += t.Count
		where[p.where] += t.Count
	})
	if len(pairs) == 0 {
		return nil
	}
	m := &whoWhere{Width: mapWidth, Who: places(who), Where: places(where)}
	m.Height = max(len(m.Who), len(m.Where))*mapRow + mapRow
	merged := map[pair]*route{}
	for p, one := range pairs {
		p = pair{shownAs(m.Who, p.who), shownAs(m.Where, p.where)}
		sum := merged[p]
		if sum == nil {
			sum = &route{Who: p.who, Where: p.where}
			merged[p] = sum
		}
		sum.Count, sum.Denied, sum.Up = sum.Count+one.Count, sum.Denied+one.Denied, sum.Up+one.Up
	}
	for _, one := range merged {
		from, to := yOf(m.Who, one.Who)-4, yOf(m.Where, one.Where)-4
		one.Path = fmt.Sprintf("M%d %dC%d %d %d %d %d %d", mapColumn, from, mapWidth/2, from, mapWidth/2, to, mapWidth-mapColumn, to)
		one.Thick = round(1 + math.Log10(float64(max(one.Count, 1)))*2)
		m.Lines = append(m.Lines, *one)
	}
	slices.SortFunc(m.Lines, func(a, b route) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Who, b.Who), cmp.Compare(a.Where, b.Where))
	})
	return m
}

// places lists the names with most requests from top to bottom. It counts all other names as one place.
func places(all map[string]int64) (list []mapPlace) {
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return cmp.Or(cmp.Compare(all[b], all[a]), cmp.Compare(a, b)) })
	for i, name := range names {
		if i >= mapPlaces && len(names) > mapPlaces+1 {
			name = mapOthers
		}
		if n := len(list); n > 0 && list[n-1].Name == mapOthers {
			list[n-1].Count += all[names[i]]
			continue
		}
		list = append(list, mapPlace{name, (len(list) + 1) * mapRow, all[names[i]]})
	}
	return list
}

func shownAs(list []mapPlace, name string) string {
	if slices.ContainsFunc(list, func(p mapPlace) bool { return p.Name == name }) {
		return name
	}
	return mapOthers
}

func yOf(list []mapPlace, name string) int {
	return list[slices.IndexFunc(list, func(p mapPlace) bool { return p.Name == name })].Y
}

// Short is the name, cut for the map.
func (p *mapPlace) Short() string {
	if len(p.Name) <= mapLongest {
		return p.Name
	}
	return p.Name[:mapLongest] + "…"
}
