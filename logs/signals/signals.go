// Package signals ranks what in the audit log looks like an attempt to get data
// out, or to find a way. It is for whoever reads the log afterwards: it decides
// nothing, opens nothing, and what it says is never a verdict.
//
//	var f signals.Finder
//	decisions := records.Tally{Emit: f.Add}
//	for each record of the log {
//		decisions.Add(r)
//	}
//	decisions.Flush(records.OutcomeOpen)
//	for _, a := range f.Attempts() { … }
//
// What it remembers is bounded, whatever the log holds.
package signals

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/logs"
)

// An Attempt is what a program of a sandbox did with one destination: a
// registered domain, a host where anybody can publish, or an address. What others of its programs did
// there in the same way stands beside it.
type Attempt struct {
	Score       int       `json:"score"` // 0 to 100
	Sandbox     string    `json:"sandbox"`
	Program     string    `json:"program,omitempty"`
	Destination string    `json:"destination"`
	Signals     []Signal  `json:"signals"` // what counts most, first
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
	IDs         []string  `json:"ids"` // of a few records that show it
}

// A Signal is one reason for a score.
type Signal struct {
	What     string `json:"what"` // canary, names, upload, publish, search, fallback, beacon
	Score    int    `json:"score"`
	Evidence string `json:"evidence"`
}

// Bounds of what is remembered.
const (
	maxSites    = 4096
	maxPrograms = 512
	maxIDs      = 3
	maxTold     = 8 // signals in a row, about
)

// Beyond is the destination of all those that were too many.
const Beyond = logs.Beyond

// A Finder gathers what a log says. Its zero value is ready; it is for one goroutine
// at a time.
type Finder struct {
	sites    map[siteKey]*site
	programs map[programKey]*program
	work     map[string]*hours // flows of each sandbox
	pools    pools             // while attempts are judged
	rough    bool              // they are judged to make room
	flows    int64             // connections and requests in all
}

type siteKey struct{ sandbox, program, destination string }

type programKey struct{ sandbox, program string }

// Add takes in one decision, as a [logs.Tally] hands it on, or a record of kind
// signal. It keeps nothing of r.
func (f *Finder) Add(r *egress.Record) {
	if r.Decision == nil && r.Signal == nil {
		return
	}
	p := f.program(programKey{r.Sandbox, logs.Process(r)})
	to := destination(r)
	s := f.site(siteKey{r.Sandbox, logs.Process(r), to})
	s.add(r, f.flows, f.hours(r.Sandbox).n, p.deniedBefore(to))
	if r.Signal != nil {
		return
	}
	if r.DNS == nil {
		f.flows += r.Times()
		p.flows += r.Times()
		f.hours(r.Sandbox).add(r.Time, r.Times())
	}
	p.add(r)
}

func (f *Finder) program(key programKey) *program {
	if f.programs == nil {
		f.programs = map[programKey]*program{}
	}
	p := f.programs[key]
	if p == nil && len(f.programs) >= maxPrograms {
		key = programKey{"", Beyond}
		p = f.programs[key]
	}
	if p == nil {
		p = new(program)
		f.programs[programKey{strings.Clone(key.sandbox), strings.Clone(key.program)}] = p
	}
	return p
}

// hours are those in which a sandbox works; those that were too many are one.
func (f *Finder) hours(sandbox string) *hours {
	if f.work == nil {
		f.work = map[string]*hours{}
	}
	h := f.work[sandbox]
	if h == nil && len(f.work) >= maxPrograms {
		sandbox = Beyond
		h = f.work[sandbox]
	}
	if h == nil {
		h = new(hours)
		f.work[strings.Clone(sandbox)] = h
	}
	return h
}

func (f *Finder) site(key siteKey) *site {
	if f.sites == nil {
		f.sites = map[siteKey]*site{}
	}
	s := f.sites[key]
	if s == nil && len(f.sites) >= maxSites {
		f.forget()
	}
	if s == nil {
		s = new(site)
		f.sites[siteKey{strings.Clone(key.sandbox), strings.Clone(key.program), strings.Clone(key.destination)}] = s
	}
	return s
}

// forget makes room: the half of the sites that say least go into one for each
// program. A flood of destinations does not hide what was seen before.
func (f *Finder) forget() {
	type ranked struct {
		key   siteKey
		score int
		last  time.Time
	}
	f.sum()
	f.rough = true
	defer func() { f.rough = false }()
	var all []ranked
	for key, s := range f.sites {
		score, _ := f.judge(key, s)
		all = append(all, ranked{key, score, s.last})
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.score, b.score), a.last.Compare(b.last)) })
	for _, one := range all[:len(all)/2] {
		if one.key.destination == Beyond {
			continue
		}
		rest := siteKey{one.key.sandbox, one.key.program, Beyond}
		if len(f.programs) >= maxPrograms {
			rest = siteKey{destination: Beyond}
		}
		if f.sites[rest] == nil {
			f.sites[rest] = new(site)
		}
		f.sites[rest].merge(f.sites[one.key])
		delete(f.sites, one.key)
	}
}

// Attempts returns what was found, the highest score first.
func (f *Finder) Attempts() []Attempt {
	f.sum()
	var all []Attempt
	for key, s := range f.sites {
		if score, found := f.judge(key, s); score > 0 {
			all = append(all, Attempt{score, key.sandbox, key.program, key.destination, found, s.first, s.last, s.shown()})
		}
	}
	for key, p := range f.programs {
		if score, found := p.judge(); score > 0 {
			all = append(all, Attempt{score, key.sandbox, key.program, "many", found, p.first, p.last, p.ids})
		}
	}
	slices.SortFunc(all, func(a, b Attempt) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), b.Last.Compare(a.Last), cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.Program, b.Program), cmp.Compare(a.Sandbox, b.Sandbox))
	})
	return stories(all)
}

// stories puts what several programs of a sandbox did in the same way with one destination into the row of
// the one that scores most, so that each row tells something else.
func stories(all []Attempt) (told []Attempt) {
	type story struct{ sandbox, destination, what string }
	rows := map[story]int{}
	for _, a := range all {
		key := story{a.Sandbox, a.Destination, a.Signals[0].What}
		i, known := rows[key]
		if !known || a.Destination == Beyond {
			rows[key] = len(told)
			told = append(told, a)
			continue
		}
		row := &told[i]
		row.First, row.Last = earliest(row.First, a.First), latest(row.Last, a.Last)
		if len(row.Signals) >= maxTold {
			continue
		}
		for _, s := range a.Signals {
			row.Signals = append(row.Signals, Signal{s.What, s.Score, "by " + cmp.Or(a.Program, "another program") + " as well: " + s.Evidence})
		}
		row.IDs = append(row.IDs, a.IDs[:min(1, len(a.IDs))]...)
	}
	return told
}

// together is the score of several signals: the strongest, and a little of each other.
func together(found []Signal) (int, []Signal) {
	found = slices.DeleteFunc(found, func(s Signal) bool { return s.Score <= 0 })
	slices.SortStableFunc(found, func(a, b Signal) int { return cmp.Compare(b.Score, a.Score) })
	sum := 0
	for i, s := range found {
		if i == 0 {
			sum = s.Score
		} else {
			sum += s.Score / 5
		}
	}
	return min(sum, 100), found
}
