package logs

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// Bounds of the lines that stand for the requests to one destination.
const (
	maxRequests = 200 // kinds of requests that are remembered
	maxSiblings = 3   // names in one folder that are listed; more become FOLDER/**
	maxLines    = 8   // lines; beyond, the paths of a method are not told apart
)

// A requested is what a request that egressd could see was for.
type requested struct {
	method, path string
	cut          bool // path is only the beginning
}

// narrowest returns the openings that allow requests, and few others: each path by its name, or the folder where it lies
// beside many others.
func narrowest(to policy.Pattern, requests map[requested]struct{}) (all []policy.Opening) {
	methods := map[string]*folder{}
	for r := range requests {
		if methods[r.method] == nil {
			methods[r.method] = new(folder)
		}
		methods[r.method].add(r)
	}
	for _, method := range slices.Sorted(maps.Keys(methods)) {
		for _, path := range methods[method].patterns("") {
			all = append(all, policy.Opening{Pattern: to, Method: method, Path: path})
		}
	}
	for i := range all {
		if len(all) > maxLines || all[i].Check() != nil {
			all[i].Path = ""
		}
	}
	return slices.Compact(all)
}

// A folder holds the segments of paths.
type folder struct {
	below map[string]*folder
	ends  bool // a path ends here
	any   bool // a path goes on in a way that no pattern names
}

// add adds a path. What cannot be written in a pattern stands for everything in its folder.
func (f *folder) add(r requested) {
	segments := strings.Split(strings.TrimPrefix(r.path, "/"), "/")
	if r.cut {
		segments[len(segments)-1] = "*" // any name may follow
	}
	for _, segment := range segments {
		if !nameable(segment) {
			f.any = true
			return
		}
		if f.below == nil {
			f.below = map[string]*folder{}
		}
		if f.below[segment] == nil {
			f.below[segment] = new(folder)
		}
		f = f.below[segment]
	}
	f.ends = true
}

// nameable reports whether a pattern can hold a segment so that it stands for nothing else.
func nameable(segment string) bool {
	if strings.ContainsAny(segment, "*$") {
		return false
	}
	_, err := policy.ParsePathPattern("/" + segment)
	return err == nil
}

// patterns returns the patterns of the paths below at. An empty pattern stands for all paths.
func (f *folder) patterns(at string) (all []string) {
	if f.any || len(f.below) > maxSiblings {
		if at == "" {
			return []string{""}
		}
		return []string{at + "/**"}
	}
	if f.ends {
		all = append(all, at)
	}
	for _, name := range slices.Sorted(maps.Keys(f.below)) {
		all = append(all, f.below[name].patterns(at+"/"+name)...)
	}
	return all
}

// ByDomain puts destinations of one registrable domain together, the domain with the most requests first.
func ByDomain(all []*LearnedDestination) {
	count := map[string]int64{}
	for _, l := range all {
		count[l.Domain()] += l.Count
	}
	slices.SortFunc(all, func(a, b *LearnedDestination) int {
		x, y := a.Domain(), b.Domain()
		return cmp.Or(cmp.Compare(count[y], count[x]), cmp.Compare(x, y), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Pattern.String(), b.Pattern.String()))
	})
}
