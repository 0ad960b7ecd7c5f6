package ui

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A reviewView proposes rules for what no rule mentions, each with its evidence.
type reviewView struct {
	Of        string // "" for what was learned, or "denied"
	Switch    string // URL of the other
	Proposals []proposal
	More      int
	Floods    []string
	Beyond    int64
	Writes    bool  // the page knows the policy file
	Err       error // why the policy file cannot be changed
}

// A proposal is a rule for one host at one port.
type proposal struct {
	*logs.LearnedDestination
	Lines    []string // the narrowest that allow what was asked for
	Value    string   // of the form
	Warnings []string
	Said     bool // the policy allows it already
	URL      string
}

// valueOf writes lines as a field of a form.
func valueOf(all []policy.Opening) string {
	fields := make([]openingField, len(all))
	for i, o := range all {
		fields[i] = openingField{o.Pattern.String(), o.Method, o.Path}
	}
	if len(all) == 1 && !all[0].Conditional() {
		return fields[0].Pattern
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return "" // texts always have a form
	}
	return string(text)
}

// An openingField is a line in a field of a form.
type openingField struct {
	Pattern string `json:"pattern"`
	Method  string `json:"method,omitempty"`
	Path    string `json:"path,omitempty"`
}

// proposalsShown bounds a form to [bodyMost] bytes.
const proposalsShown = 150

func (s *Server) review(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/review")
	v := reviewView{Of: q.options.Get("of"), Switch: q.option("of", "denied"), Writes: s.options.HasPolicy}
	if v.Of == "denied" {
		v.Switch = q.option("of", "")
	}
	sum := s.index.Sum(r.Context(), q.filter, nil)
	all, floods, beyond := s.learned(sum, v.Of == "denied")
	v.Beyond = beyond
	for _, f := range floods {
		v.Floods = append(v.Floods, f.Text())
	}
	slices.SortStableFunc(all, func(a, b *logs.LearnedDestination) int { return cmp.Compare(b.Count, a.Count) })
	sorted(q, all, map[string]func(a, b *logs.LearnedDestination) int{
		"rule": by(func(l *logs.LearnedDestination) string { return l.Pattern.String() }), "count": by(func(l *logs.LearnedDestination) int64 { return l.Count }),
		"reached": by(func(l *logs.LearnedDestination) int64 { return l.Reached }), "up": by(func(l *logs.LearnedDestination) int64 { return l.Up }),
		"down": by(func(l *logs.LearnedDestination) int64 { return l.Down }), "who": by(func(l *logs.LearnedDestination) string { return strings.Join(l.Programs, " ") }),
		"last": func(a, b *logs.LearnedDestination) int { return a.Last.Compare(b.Last) },
	})
	if len(all) > proposalsShown {
		v.More, all = len(all)-proposalsShown, all[:proposalsShown]
	}
	evidence := term("rule", policy.LearnRule)
	if v.Of == "denied" {
		evidence = term("class", string(policy.DefaultDeny))
	}
	var file *edit.Addition
	if v.Writes {
		file, v.Err = edit.New(s.options.Config, "allow")
	}
	for _, one := range all {
		p := proposal{LearnedDestination: one, Warnings: one.Warnings(), Said: file != nil && v.Err == nil}
		openings := one.Openings()
		p.Value = valueOf(openings)
		for _, o := range openings {
			p.Lines = append(p.Lines, o.String())
			p.Said = p.Said && file.Says(o)
		}
		p.URL = q.with("/requests", append(hostTerms(one.Pattern.String()), evidence)...)
		v.Proposals = append(v.Proposals, p)
	}
	s.write(w, r, http.StatusOK, "review", q, sum, v)
}

// learned collects what was learned, or what was denied because no rule allows it.
func (s *Server) learned(sum *index.Sum, denied bool) ([]*logs.LearnedDestination, []*logs.NameFlood, int64) {
	lessons := logs.Learned{}
	if denied {
		lessons.Of = logs.Denied
	}
	var bytes record.Bytes
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t := sum.Totals[id]
		bytes = record.Bytes{Up: t.Up, Down: t.Down}
		r.Flow, r.Count, r.Bytes, r.Time = t.Flow.String(), t.Count, &bytes, at(t.Last)
		lessons.Add(r)
	})
	for _, e := range s.index.Events() {
		lessons.Add(e)
	}
	all, floods := lessons.All()
	return all, floods, lessons.Beyond
}
