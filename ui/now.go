package ui

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A group is one row of the stream: decisions that differ only in time, id and traffic.
type group struct {
	logs.GroupKey
	Host, Port, Sandbox   string
	Count, Open, Up, Down int64
	First, Last           time.Time
	Flow                  string
	Number                int64
	URL                   string // of the requests in it
	Acts                  []act

	shape uint32 // of the last
}

// A sandboxCard sums what one sandbox did.
type sandboxCard struct {
	Name, Container string
	Programs        []string // that sent most, up to programsShown, the first of them first
	MorePrograms    int
	Learns          bool // something passed only because no rule mentions it
	Count, Denied   int64
	Up, Down        int64
	Last            time.Time
	URL             string

	up map[string]int64 // by program
}

// sent counts what a program sent.
func (c *sandboxCard) sent(program string, up int64) {
	if c.up == nil {
		c.up = map[string]int64{}
	}
	c.up[program] += up
}

// rank fills in Programs.
func (c *sandboxCard) rank() {
	c.Programs = slices.SortedFunc(maps.Keys(c.up), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.up[b], c.up[a]), cmp.Compare(a, b))
	})
	c.MorePrograms = max(len(c.Programs)-programsShown, 0)
	c.Programs = c.Programs[:len(c.Programs)-c.MorePrograms]
}

type nowView struct {
	Denied, Asked, Allowed, Up, Down, Open int64
	Names                                  int64 // of those allowed, names that no connection followed
	LastHour                               lastHour
	Rankings                               rankings
	Sandboxes                              []*sandboxCard
	MoreSandboxes                          int
	MoreSandboxesURL                       string
	Groups                                 []*group
	More                                   int
	MoreURL                                string
	Events                                 []event
}

// A lastHour is what was denied in the hour before the last record.
type lastHour struct {
	Denied, Up int64
	URL        string
}

const (
	groupsShown    = 60
	groupsMost     = 2000
	sandboxesShown = 12
	programsShown  = 6
)

func (s *Server) now(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/")
	sum := s.index.Sum(r.Context(), q.filter, nil)
	v := nowView{}
	groups := s.groups(q, sum)
	for _, g := range groups {
		v.Up, v.Down = v.Up+g.Up, v.Down+g.Down
		switch g.Action {
		case "allow":
			v.Allowed, v.Open = v.Allowed+g.Count, v.Open+g.Open
			if g.IsName() {
				v.Names += g.Count
			}
		case "ask":
			v.Asked += g.Count
		default:
			v.Denied += g.Count
		}
	}
	v.Sandboxes = s.sandboxes(q, sum)
	if cards := q.atMost("sandboxes", sandboxesShown); len(v.Sandboxes) > cards {
		v.MoreSandboxes, v.MoreSandboxesURL = len(v.Sandboxes)-cards, q.option("sandboxes", strconv.Itoa(min(cards*4, groupsMost)))
		v.Sandboxes = v.Sandboxes[:cards]
	}
	v.Rankings = s.rankings(r.Context(), q, sum, groups)
	v.LastHour = s.lastHour(r.Context(), q, sum)
	sorted(q, groups, map[string]func(a, b *group) int{
		"time": by(func(g *group) int64 { return g.Number }), "verdict": by(func(g *group) int { return strictness(g.Action) }), "count": by(func(g *group) int64 { return g.Count }),
		"dest": by(func(g *group) string { return g.Destination }), "what": by(func(g *group) string { return g.What }), "who": by(func(g *group) string { return g.Who }),
		"why": by(func(g *group) string { return g.Why }), "up": by(func(g *group) int64 { return g.Up }), "down": by(func(g *group) int64 { return g.Down }),
		"id": by(func(g *group) string { return g.Flow }),
	})
	if shown := q.atMost("rows", groupsShown); len(groups) > shown {
		v.More, v.MoreURL = len(groups)-shown, q.option("rows", strconv.Itoa(min(shown*4, groupsMost)))
		groups = groups[:shown]
	}
	undo := s.undoable()
	for _, g := range groups {
		s.index.Shapes([]uint32{g.shape}, func(_ uint32, r *record.Record) { g.Acts = s.acts(r, g.Flow, undo.about(r)) })
	}
	v.Groups = groups
	v.Events = s.events(8)
	s.write(w, r, http.StatusOK, "now", q, sum, v)
}

// atMost returns the number that an option of the query has. Without a number it is the usual one; more than groupsMost is groupsMost.
func (q *query) atMost(option string, usual int) int {
	n, err := strconv.Atoi(q.options.Get(option))
	if err != nil {
		return usual
	}
	return max(1, min(n, groupsMost))
}

// lastHour looks at the hour before the last record that matches, which need not be the last hour: the log
// may be an old one.
func (s *Server) lastHour(ctx context.Context, q *query, sum *index.Sum) (l lastHour) {
	if sum.Last == 0 {
		return l
	}
	from := at(sum.Last).Add(-time.Hour).UTC().Truncate(time.Second)
	words := append(slices.Clone(q.words), term("since", from.Format(time.RFC3339)))
	f, err := s.parseFilter(strings.Join(words, " "))
	if err != nil {
		return l
	}
	hour := s.index.Sum(ctx, f, nil)
	for _, m := range hour.Minutes {
		l.Denied += m.Denied
	}
	for _, t := range hour.Totals {
		l.Up += t.Up
	}
	l.URL = q.with("/", term("verdict", "deny"), term("since", from.Format(time.RFC3339)))
	return l
}

// groups returns the groups of sum, the one with the newest decision first.
func (s *Server) groups(q *query, sum *index.Sum) []*group {
	all := map[logs.GroupKey]*group{}
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t := sum.Totals[id]
		key := logs.GroupKey{Action: r.Decision.Action, Destination: logs.Destination(r), What: logs.What(r), Who: logs.Who(r), Why: logs.Why(r)}
		g := all[key]
		if g == nil {
			g = &group{GroupKey: ownKey(key), Host: strings.Clone(logs.Host(r)), Port: logs.Port(r), Sandbox: strings.Clone(r.Sandbox), First: at(t.First)}
			all[g.GroupKey] = g
		}
		g.Count, g.Open, g.Up, g.Down = g.Count+t.Count, g.Open+t.Open, g.Up+t.Up, g.Down+t.Down
		if first := at(t.First); first.Before(g.First) {
			g.First = first
		}
		if t.Number >= g.Number {
			g.Number, g.Last, g.Flow, g.shape = t.Number, at(t.Last), t.Flow.String(), id
		}
	})
	groups := slices.SortedFunc(maps.Values(all), func(a, b *group) int { return cmp.Compare(b.Number, a.Number) })
	for _, g := range groups[:min(len(groups), groupsMost)] {
		terms := []string{term("host", g.Host), term("verdict", g.Action)}
		if g.Port != "" && g.Port != "0" {
			terms = append(terms, term("port", g.Port))
		}
		if g.Sandbox != "" {
			terms = append(terms, term("sandbox", g.Sandbox))
		}
		g.URL = q.with("/requests", terms...)
	}
	return groups
}

func ownKey(k logs.GroupKey) logs.GroupKey {
	return logs.GroupKey{Action: strings.Clone(k.Action), Destination: k.Destination, What: k.What, Who: k.Who, Why: k.Why}
}

func (s *Server) sandboxes(q *query, sum *index.Sum) []*sandboxCard {
	all := map[string]*sandboxCard{}
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t := sum.Totals[id]
		c := all[r.Sandbox]
		if c == nil {
			c = &sandboxCard{Name: strings.Clone(r.Sandbox), URL: q.with("/", term("sandbox", r.Sandbox))}
			all[c.Name] = c
		}
		c.Count, c.Up, c.Down = c.Count+t.Count, c.Up+t.Up, c.Down+t.Down
		if r.Decision.Action == "deny" {
			c.Denied += t.Count
		}
		c.Learns = c.Learns || r.Decision.Rule == policy.LearnRule
		if r.Container != nil && c.Container == "" {
			c.Container = strings.Clone(cmp.Or(r.Container.Name, r.Container.ID))
		}
		if last := at(t.Last); last.After(c.Last) {
			c.Last = last
		}
		if p := logs.Process(r); p != "" {
			c.sent(strings.Clone(p), t.Up)
		}
	})
	for _, c := range all {
		c.rank()
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *sandboxCard) int {
		return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Name, b.Name))
	})
}

// An event is a record that is no decision.
type event struct {
	Time time.Time
	Kind string
	Text string
	Flow string
}

func (s *Server) events(most int) (all []event) {
	for _, r := range s.index.Events() {
		if len(all) == most {
			break
		}
		e := event{Time: r.Time, Kind: string(r.Kind), Text: r.Note, Flow: r.Flow}
		if r.Signal != nil {
			e.Text = "canary " + r.Signal.Name + " was in the " + r.Signal.Where + " (" + r.Signal.Encoding + ") to " + logs.Destination(r) + " by " + logs.Who(r)
		}
		all = append(all, e)
	}
	return all
}
