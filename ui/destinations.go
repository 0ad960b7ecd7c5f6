package ui

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/record"
)

// A node sums the requests to a domain, to a host with its port, or to the beginning of a path.
type node struct {
	Name           string
	URL            string
	Acts           []act // about the last decision, and about the last denial if that is another one
	Count, Denied  int64
	Up, Down       int64
	First          time.Time
	Methods, Rules []string
	Children       []*node
	More           int // children that are left out

	below          map[string]*node
	denied, passed latest
}

// A latest is the last decision of a kind.
type latest struct {
	number int64
	shape  uint32
	flow   string
}

const (
	domainsShown = 150
	hostsShown   = 40
	pathsShown   = 30
	namesShown   = 5
)

type destinationsView struct {
	By       string // "" or "program"
	Nodes    []*node
	More     int
	Distinct int
	Map      *whoWhere // programs and domains, by program
}

func (s *Server) destinations(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/destinations")
	v := destinationsView{By: q.options.Get("by")}
	sum := s.index.Sum(r.Context(), q.filter, nil)
	top := &node{}
	s.index.Shapes(slices.Sorted(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		path := []string{domain(r), logs.Destination(r)}
		if v.By == "program" {
			path = []string{cmp.Or(logs.Process(r), "unknown program"), logs.Destination(r)}
		}
		if r.HTTP != nil && r.HTTP.Path != "" {
			path = append(path, prefix(r.HTTP.Path))
		}
		t := sum.Totals[id]
		at := top
		for _, name := range path {
			at = at.child(name)
			at.add(id, r, t)
		}
	})
	v.Distinct = len(top.below)
	if v.By == "program" {
		v.Map = s.whoWhere(sum)
	}
	top.finish(q, domainsShown, v.By == "program", 0)
	undo := s.undoable()
	for _, one := range top.Children {
		for _, host := range one.Children {
			s.offer(host, undo)
		}
	}
	v.Nodes, v.More = top.Children, top.More
	s.write(w, r, http.StatusOK, "destinations", q, sum, v)
}

var registrable = logs.Field("domain")

func domain(r *record.Record) string { return cmp.Or(registrable(r), "no name") }

// prefix returns the first two segments of a path.
func prefix(path string) string {
	at := 0
	for range 3 {
		next := strings.IndexByte(path[at:], '/')
		if next < 0 {
			return path
		}
		at += next + 1
	}
	return path[:at] + "**"
}

func (n *node) child(name string) *node {
	c := n.below[name]
	if c == nil {
		if n.below == nil {
			n.below = map[string]*node{}
		}
		c = &node{Name: strings.Clone(name)}
		n.below[c.Name] = c
	}
	return c
}

func (n *node) add(id uint32, r *record.Record, t *index.Total) {
	n.Count, n.Up, n.Down = n.Count+t.Count, n.Up+t.Up, n.Down+t.Down
	kind := &n.passed
	if r.Decision.Action == "deny" {
		n.Denied += t.Count
		kind = &n.denied
	}
	if t.Number >= kind.number {
		*kind = latest{t.Number, id, t.Flow.String()}
	}
	if first := at(t.First); n.First.IsZero() || first.Before(n.First) {
		n.First = first
	}
	n.Methods = noted(n.Methods, logs.What(r))
	n.Rules = noted(n.Rules, cmp.Or(r.Decision.Rule, logs.Why(r)))
}

// noted adds a text to a short list.
func noted(all []string, text string) []string {
	if text == "" || slices.Contains(all, text) || len(all) > namesShown {
		return all
	}
	if len(all) == namesShown {
		text = "…"
	}
	return append(all, strings.Clone(text))
}

// finish sorts what is below n, and cuts it.
func (n *node) finish(q *query, most int, byProgram bool, depth int) {
	n.Children = slices.SortedFunc(maps.Values(n.below), func(a, b *node) int {
		return cmp.Or(cmp.Compare(b.Up, a.Up), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	n.below = nil
	sorted(q, n.Children, map[string]func(a, b *node) int{
		"name": by(func(n *node) string { return n.Name }), "count": by(func(n *node) int64 { return n.Count }), "denied": by(func(n *node) int64 { return n.Denied }),
		"up": by(func(n *node) int64 { return n.Up }), "down": by(func(n *node) int64 { return n.Down }), "first": func(a, b *node) int { return a.First.Compare(b.First) },
		"what": by(func(n *node) string { return strings.Join(n.Methods, " ") }), "rule": by(func(n *node) string { return strings.Join(n.Rules, " ") }),
	})
	if len(n.Children) > most {
		n.More, n.Children = len(n.Children)-most, n.Children[:most]
	}
	for _, c := range n.Children {
		switch {
		case depth == 0 && byProgram:
			c.URL = q.with("/destinations", term("proc", c.Name))
		case depth == 0 && strings.Contains(c.Name, "."):
			c.URL = q.with("/destinations", term("host", "*"+c.Name))
		case depth == 1:
			c.URL = q.with("/requests", hostTerms(c.Name)...)
		}
		c.finish(q, []int{hostsShown, pathsShown, 0}[min(depth, 2)], byProgram, depth+1)
	}
}

// offer sets what a person may do about a host: about the last request that was denied, and about the last one that was not.
func (s *Server) offer(n *node, undo *undoable) {
	for i, last := range []latest{n.denied, n.passed} {
		if last.flow == "" {
			continue
		}
		s.index.Shapes([]uint32{last.shape}, func(_ uint32, r *record.Record) {
			for _, a := range s.acts(r, last.flow, i == 1 && undo.about(r)) {
				if !slices.ContainsFunc(n.Acts, func(b act) bool { return a.Name == b.Name }) {
					n.Acts = append(n.Acts, a)
				}
			}
		})
	}
}

func hostTerms(destination string) []string {
	colon := strings.LastIndexByte(destination, ':')
	if colon < 0 || strings.HasSuffix(destination, "]") {
		return []string{term("host", destination)}
	}
	return []string{term("host", strings.Trim(destination[:colon], "[]")), term("port", destination[colon+1:])}
}
