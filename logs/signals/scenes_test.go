package signals_test

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/signals"
	"github.com/egressd/egressd/record"
)

// scenes makes each world from a seed, with about n records. Rows of tuned seeds may be looked at while the ranking is
// changed; of held-out ones nobody looks at any before that is done, and after it the ranking is another.
var scenes = []struct {
	name string
	make func(seed uint64, n int) *scene
}{{"workshop", workshopScene}, {"office", officeScene}, {"third", thirdScene}, {"fourth", fourthScene}, {"fifth", fifthScene}}

// tunedSeed and heldOutSeed are the nth of their kind, from 0.
func tunedSeed(n uint64) uint64   { return 1_000_001 + 2*n }
func heldOutSeed(n uint64) uint64 { return 1_000_002 + 2*n }

func bareTrace(seed uint64, start time.Time, days int) *trace {
	t := newTrace(seed)
	t.Rand, t.start, t.days, t.fourth = rand.New(rand.NewPCG(seed, 0x1eaf)), start, days, true
	return t
}

// workshopScene is one agent whose requests are seen, on one day.
func workshopScene(seed uint64, n int) *scene {
	all := signals.WorkshopLog(seed, n)
	s := &scene{trace: bareTrace(seed, all[0].Time, 1), decisions: asEmitted(all)}
	work := &box{name: "work", captured: true, night: 1, inspects: []string{
		"api.anthropic.com", "github.com", "api.github.com", "gist.github.com", "registry.npmjs.org", "pypi.org", "files.pythonhosted.org"}}
	s.victims = []*box{work}
	s.language = func(*box) way { return way{"api.anthropic.com", "claude"} }
	s.forge = func(*box) way { return way{"github.com", "git"} }
	s.content = []way{{"registry.npmjs.org", "npm"}, {"files.pythonhosted.org", "pip"}, {"docs.python.org", "chromium"}, {"cdn2.jsdelivr.net", "chromium"}}
	return s
}

// officeScene is four sandboxes of which no program and no request is seen.
func officeScene(seed uint64, n int) *scene {
	all := signals.OfficeLog(seed, n)
	s := &scene{trace: bareTrace(seed, all[0].Time, 4), decisions: asEmitted(all)}
	for _, name := range []string{"ci", "alice", "bob", "nightly"} {
		s.victims = append(s.victims, &box{name: name, night: 1})
	}
	s.language = func(*box) way { return way{"api.openai.com", ""} }
	s.forge = func(*box) way { return way{"github.com", ""} }
	s.content = []way{{"deb.debian.org", ""}, {"repo1.maven.org", ""}, {"cdn.sstatic.net", ""}, {"proxy.golang.org", ""}}
	return s
}

func thirdScene(seed uint64, n int) *scene  { return teamScene(seed, n, false) }
func fourthScene(seed uint64, n int) *scene { return teamScene(seed, n, true) }

func teamScene(seed uint64, n int, fourth bool) *scene {
	t := newTrace(seed)
	t.fourth = fourth
	w := t.team()
	t.ordinary(w, n)
	s := &scene{trace: t, team: w, victims: append(slices.Clone(w.agents), w.jobs[0]), decisions: decided(t.finish())}
	s.language = func(b *box) way {
		if b.llm == "" {
			b = w.agents[0]
		}
		return way{b.llm, map[bool]string{true: "codex", false: "claude"}[b.llm == "api.openai.com"]}
	}
	s.forge = func(b *box) way {
		if host := t.names["forge of "+b.name]; host != "" {
			return way{host, "git"}
		}
		return way{"github.com", "git"}
	}
	s.content = []way{{"registry.npmjs.org", "npm"}, {"pypi.org", "pip"}, {"storage.googleapis.com", "codecov"}, {"raw.githubusercontent.com", "curl"}, {"static.crates.io", "cargo"}}
	return s
}

func fifthScene(seed uint64, n int) *scene {
	w := newWorld5(seed)
	w.ordinary(n)
	s := &scene{trace: w.trace, victims: append(slices.Clone(w.agents), w.ci[0]), decisions: decided(w.finish())}
	s.team = &team{agents: w.agents, jobs: w.ci, builder: w.release, service: w.service, tester: w.ci[1]}
	s.covers = [][2]string{{"files.pythonhosted.org", "pip"}, {"registry.npmjs.org", "npm"}, {"proxy.golang.org", "go"}, {"api.github.com", "gh"}, {"github.com", "git"}, {"doc.rust-lang.org", "claude"}}
	s.language = func(b *box) way {
		switch b.llm {
		case "api.openai.com":
			return way{b.llm, "codex"}
		case "generativelanguage.googleapis.com":
			return way{b.llm, "gemini"}
		}
		return way{"api.anthropic.com", "claude"}
	}
	s.forge = func(*box) way { return way{"github.com", "git"} }
	s.content = []way{{"cdn.jsdelivr.net", "chrome"}, {"files.pythonhosted.org", "pip"}, {"registry.npmjs.org", "npm"}, {"raw.githubusercontent.com", "claude"}, {"deb.debian.org", "http"}}
	return s
}

func asEmitted(all []*record.Record) (out []emitted) {
	for _, r := range all {
		out = append(out, emitted{r.Time, r})
	}
	return out
}

// decided is what a DecisionJoiner makes of records that are in the order of their times.
func decided(all []*record.Record) (out []emitted) {
	var now time.Time
	decisions := logs.DecisionJoiner{Emit: func(r *record.Record) {
		kept := *r
		out = append(out, emitted{now, &kept})
	}}
	for seq, r := range all {
		r.Seq, now = int64(seq), r.Time
		decisions.Add(r)
	}
	decisions.Flush(logs.OutcomeOpen)
	return out
}

// ranked is what is said of the decisions of s with those of more among them.
func (s *scene) ranked(more []emitted) []signals.Suspect {
	var f signals.Finder
	for a := s.decisions; len(a)+len(more) > 0; {
		from := &a
		if len(a) == 0 || len(more) > 0 && more[0].at.Before(a[0].at) {
			from = &more
		}
		f.Add((*from)[0].r)
		*from = (*from)[1:]
	}
	return f.Suspects()
}

// placeOf is the place of p among the rows that are not of others; 0 where there is none.
func placeOf(rows []signals.Suspect, p planted, others ...planted) int {
	place := 0
	for _, row := range rows {
		if p.isIn(row) {
			return place + 1
		}
		if !slices.ContainsFunc(others, func(o planted) bool { return o.isIn(row) }) {
			place++
		}
	}
	return 0
}
