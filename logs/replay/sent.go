package replay

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

// Bounds of what is remembered of what a course sent.
const (
	mostPaths     = 2000 // of one course
	mostExact     = 3    // paths that a rule lists one by one
	mostSandboxes = 1000 // whose days are told apart
	perDoubling   = 4    // classes of sizes
	mostBytes     = 0.9  // part of the bytes that a rule has to be about
	fewOfMany     = 0.2  // part of the requests that sent most bytes, if these are unusually large
	leastADay     = 20e3 // bytes, which heads of requests come to anyway
)

// sentBy is what a course sent: by which methods and paths, in requests of which sizes, and on which days. It knows the days of
// others at the same hosts, too.
type sentBy struct {
	paths  map[methodPath]*int64 // bytes; a pointer, since assigning to an element would keep the strings of a record
	total  int64
	sizes  map[int]*sizeClass
	n      int64
	days   map[int64]int64            // bytes by day
	others map[string]map[int64]int64 // by sandbox
}

type methodPath struct{ method, path string }

type sizeClass struct{ n, bytes int64 }

func newSentBy() sentBy {
	return sentBy{paths: map[methodPath]*int64{}, sizes: map[int]*sizeClass{}, days: map[int64]int64{}, others: map[string]map[int64]int64{}}
}

func (s *sentBy) add(r *record.Record) {
	up := upOf(r)
	s.total += up
	s.days[dayOf(r.Time)] += up
	if up > 0 {
		class := sizeOf(up)
		if s.sizes[class] == nil {
			s.sizes[class] = &sizeClass{}
		}
		s.sizes[class].n++
		s.sizes[class].bytes += up
		s.n++
	}
	if r.HTTP == nil {
		return
	}
	key := methodPath{r.HTTP.Method, r.HTTP.Path}
	bytes := s.paths[key]
	if bytes == nil {
		if len(s.paths) >= mostPaths || r.HTTP.PathCut {
			return
		}
		bytes = new(int64)
		s.paths[methodPath{strings.Clone(key.method), strings.Clone(key.path)}] = bytes
	}
	*bytes += up
}

// another notes what somebody else sent to the same hosts.
func (s *sentBy) another(r *record.Record) {
	up := upOf(r)
	if up == 0 {
		return
	}
	days := s.others[r.Sandbox]
	if days == nil {
		if len(s.others) >= mostSandboxes {
			return
		}
		days = map[int64]int64{}
		s.others[strings.Clone(r.Sandbox)] = days
	}
	days[dayOf(r.Time)] += up
}

func dayOf(t time.Time) int64 { return t.Unix() / (24 * 3600) }

func sizeOf(up int64) int { return int(math.Floor(math.Log2(float64(up)) * perDoubling)) }

// by returns the methods that most bytes were sent by, and the paths, as patterns of a rule. There are no paths if no pattern but
// that of all paths covers them.
func (s *sentBy) by(below string) (methods, paths []string) {
	all := slices.SortedFunc(maps.Keys(s.paths), func(a, b methodPath) int {
		return cmp.Or(cmp.Compare(*s.paths[b], *s.paths[a]), cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method))
	})
	bytes := int64(0)
	for i, one := range all {
		if i > 0 && float64(bytes) >= mostBytes*float64(s.total) {
			break
		}
		bytes += *s.paths[one]
		if !slices.Contains(methods, one.method) {
			methods = append(methods, one.method)
		}
		if !slices.Contains(paths, one.path) {
			paths = append(paths, one.path)
		}
	}
	slices.Sort(methods)
	if float64(bytes) < mostBytes*float64(s.total) || slices.ContainsFunc(paths, func(p string) bool { return strings.ContainsAny(p, "*{}?[]\\%") }) {
		paths = nil
	}
	switch {
	case len(paths) == 0 && below != "":
		return methods, []string{"/" + below, "/" + below + "/**"}
	case len(paths) <= mostExact:
		slices.Sort(paths)
		return methods, paths
	}
	common := paths[0]
	for _, p := range paths[1:] {
		for !strings.HasPrefix(p+"/", common+"/") {
			common = common[:max(0, strings.LastIndexByte(common, '/'))]
		}
	}
	if common == "" {
		return methods, nil
	}
	return methods, []string{common, common + "/**"}
}

// unusual returns a number of bytes that separates few large requests, which sent most, from many small ones. It returns 0 if
// nothing separates them.
func (s *sentBy) unusual() int64 {
	var bulk, n int64
	classes := slices.Sorted(maps.Keys(s.sizes))
	for i := len(classes) - 1; i > 0; i-- {
		c := s.sizes[classes[i]]
		bulk, n = bulk+c.bytes, n+c.n
		if float64(bulk) < mostBytes*float64(s.total) {
			continue
		}
		least, most := exp(classes[i]), exp(classes[i-1]+1)
		if float64(n) > fewOfMany*float64(s.n) || least < 2*most {
			return 0
		}
		return round(math.Sqrt(least * most))
	}
	return 0
}

func exp(class int) float64 { return math.Exp2(float64(class) / perDoubling) }

// perDay returns a number of bytes a day that nobody else sends to the hosts, nor the course on most of its days, and that the course
// has gone far beyond. It returns 0 if there is none, or if only the course uses the hosts.
func (s *sentBy) perDay() int64 {
	own := slices.Sorted(maps.Values(s.days))
	if len(own) == 0 {
		return 0
	}
	usual, most, used := int64(leastADay), own[len(own)-1], len(own) > 2
	if len(own) > 2 {
		usual = max(usual, own[(len(own)-1)/2])
	}
	for _, days := range s.others {
		for _, up := range days {
			usual, used = max(usual, up), true
		}
	}
	if !used || most < 3*usual {
		return 0
	}
	return round(1.5 * float64(usual))
}

// round rounds up to 1, 2 or 5 and zeros.
func round(bytes float64) int64 {
	unit := math.Pow(10, math.Floor(math.Log10(bytes)))
	for _, n := range []float64{1, 2, 5} {
		if bytes <= n*unit {
			return int64(n * unit)
		}
	}
	return int64(10 * unit)
}
