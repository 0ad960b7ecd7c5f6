// Package signals finds records in the audit log that look like an attempt to send data out or to find a
// way out, and ranks them. It serves a person who reads the log afterwards. It never decides about
// traffic.
//
//	var f signals.Finder
//	decisions := logs.DecisionJoiner{Emit: f.Add}
//	for each record of the log {
//		decisions.Add(r)
//	}
//	decisions.Flush(logs.OutcomeOpen)
//	for _, a := range f.Suspects() { … }
//
// The memory of a Finder is bounded for every log.
package signals

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// A Suspect describes the traffic of a sandbox's program with one destination: a registrable domain, a
// host where anybody can publish, or an address. Similar traffic of other programs of the sandbox is
// listed with it.
type Suspect struct {
	Score       int       `json:"score"` // 0 to 100
	Sandbox     string    `json:"sandbox"`
	Program     string    `json:"program,omitempty"`
	Destination string    `json:"destination"`
	Signals     []Signal  `json:"signals"` // strongest first
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
	IDs         []string  `json:"ids"`   // ids of a few records that show it
	Story       string    `json:"story"` // number of the story, see [Stories]

	// Peak is when most of the bytes of the uploads left, if that was within six hours.
	Peak *Peak `json:"peak,omitempty"`
}

// A Peak is the time of most uploads of a program to a destination.
type Peak struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"` // the end of the last upload
	Up    int64     `json:"up"`    // bytes
}

// A Signal is one reason for a score.
type Signal struct {
	What     string `json:"what"` // canary, names, upload, publish, search, fallback, flood or beacon
	Score    int    `json:"score"`
	Evidence string `json:"evidence"`
	From     *Leg   `json:"from,omitempty"` // how what was passed on came here
}

// A Leg is the first leg of a relay: one sandbox sent something to a destination, and another one fetched it there.
type Leg struct {
	Sandbox     string `json:"sandbox"` // that sent it
	Destination string `json:"destination"`
	Sent        string `json:"sent"`    // id of the last request that sent something
	Fetched     string `json:"fetched"` // id of the request that fetched it
}

// Bounds of a Finder's memory.
const (
	maxSites    = 4096
	maxPrograms = 512
	maxIDs      = 3
	maxSignals  = 8 // signals in a row, approximately
)

// Beyond is the destination that sums all destinations beyond the bounds.
const Beyond = logs.Beyond

// Many is the destination of a program that tried many.
const Many = "many"

// A Finder collects the traffic of a log. Its zero value is ready to use. It is not safe for concurrent
// use.
type Finder struct {
	sites    map[siteKey]*site
	programs map[programKey]*program
	work     map[string]*hours  // flows of each sandbox by hour
	hosts    map[string]*traits // those seen lately
	relays   relays
	pools    pools  // set while attempts are judged
	rough    bool   // judging only to free memory, so older results suffice
	flows    int64  // connections and requests
	seed     uint64 // of the first record
}

type siteKey struct{ sandbox, program, destination string }

type programKey struct{ sandbox, program string }

// Add counts a decision of a [logs.DecisionJoiner], or a record of kind signal. It keeps no memory of r.
func (f *Finder) Add(r *record.Record) {
	if r.Decision == nil && r.Signal == nil {
		return
	}
	if f.seed == 0 {
		f.seed = hashed(uint64(r.Time.UnixNano()), r.Flow+r.Sandbox) | 1
	}
	process, host, work := logs.Process(r), f.traits(logs.Host(r)), f.hours(r.Sandbox)
	p := f.program(programKey{r.Sandbox, process})
	to := destination(r, host)
	s := f.site(siteKey{r.Sandbox, process, to})
	s.add(f.seed, r, host, f.flows, work.n, p.deniedBefore(to), f.passedOn(r, to))
	if r.Signal != nil {
		return
	}
	if r.DNS == nil {
		f.flows += r.Times()
		p.flows += r.Times()
		work.add(r.Time, r.Times())
	}
	p.add(f.seed, r, to)
}

// passedOn returns what an allowed flow passes on, or nil.
func (f *Finder) passedOn(r *record.Record, to string) *freight {
	if r.DNS != nil || r.Bytes == nil || r.Decision == nil || r.Decision.Action != "allow" {
		return nil
	}
	return f.relays.add(r, to, loadOf(r))
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

// hours returns the working hours of a sandbox. Sandboxes beyond the bound share one entry.
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

// forget frees memory. It merges the lower-scored half of the sites into one site for each program, so
// that a flood of destinations does not hide earlier attempts.
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

// Suspects returns the suspects, highest score first.
func (f *Finder) Suspects() []Suspect {
	f.sum()
	var all []Suspect
	for key, s := range f.sites {
		if score, found := f.judge(key, s); score > 0 {
			all = append(all, Suspect{score, key.sandbox, key.program, key.destination, found, s.first, s.last, s.shown(), "", s.peak()})
		}
	}
	for key, p := range f.programs {
		if score, found := p.judge(); score > 0 {
			all = append(all, Suspect{score, key.sandbox, key.program, Many, found, p.first, p.last, p.ids, "", nil})
		}
	}
	slices.SortFunc(all, func(a, b Suspect) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), b.Last.Compare(a.Last), cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.Program, b.Program), cmp.Compare(a.Sandbox, b.Sandbox))
	})
	all = mergePrograms(all)
	for i := range all {
		all[i].Story = storyOf(&all[i])
	}
	return all
}

// mergePrograms merges the attempts of several programs of a sandbox with the same destination and main
// signal into the row with the highest score.
func mergePrograms(all []Suspect) (merged []Suspect) {
	type rowKey struct{ sandbox, destination, what string }
	rows := map[rowKey]int{}
	for _, a := range all {
		key := rowKey{a.Sandbox, a.Destination, a.Signals[0].What}
		i, known := rows[key]
		if !known || a.Destination == Beyond {
			rows[key] = len(merged)
			merged = append(merged, a)
			continue
		}
		row := &merged[i]
		row.First, row.Last = earliest(row.First, a.First), latest(row.Last, a.Last)
		if len(row.Signals) >= maxSignals {
			continue
		}
		for _, s := range a.Signals {
			row.Signals = append(row.Signals, Signal{s.What, s.Score, "by " + cmp.Or(a.Program, "another program") + " as well: " + s.Evidence, s.From})
		}
		row.IDs = append(row.IDs, a.IDs[:min(1, len(a.IDs))]...)
	}
	return merged
}

// together combines signals into one score: the strongest in full and a fifth of each other.
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
