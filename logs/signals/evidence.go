package signals

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/quantity"
)

// An evidence weighs one explanation. Each finding is a bounded log-odds in nats, so that a single oddity
// of ordinary traffic decides nothing.
type evidence struct {
	odds     float64
	findings []finding
}

type finding struct {
	nats float64
	text string
}

// add adds a finding worth nats, with its text.
func (e *evidence) add(nats float64, format string, a ...any) {
	if nats == 0 {
		return
	}
	e.odds += nats
	e.findings = append(e.findings, finding{nats, fmt.Sprintf(format, a...)})
}

// discount reduces all findings by part, from 0 to 1, because an ordinary cause explains that part. The
// cause itself is a finding against an attempt.
func (e *evidence) discount(part float64, format string, a ...any) {
	if part == 0 {
		return
	}
	e.odds *= 1 - part
	for i := range e.findings {
		e.findings[i].nats *= 1 - part
	}
	e.add(-2*part, format, a...)
}

// probability returns the probability of an attempt. A priori one in exp(prior) flows is an attempt.
func (e *evidence) probability(prior float64) float64 {
	return 1 / (1 + math.Exp(prior-e.odds))
}

// words lists the findings, strongest first. Findings against an attempt come last.
func (e *evidence) words() string {
	slices.SortStableFunc(e.findings, func(a, b finding) int { return cmp.Compare(b.nats, a.nats) })
	var out strings.Builder
	for _, s := range e.findings {
		if out.WriteString("; "); s.nats < 0 {
			out.WriteString("but ")
		}
		out.WriteString(s.text)
	}
	return out.String()
}

// unlike returns the evidence that k of n flows do something which only few of m other flows do.
func unlike(k, n, few, m int64, most float64) float64 {
	own, others := float64(k+1)/float64(n+2), float64(few+1)/float64(m+20)
	return min(most, max(0, math.Log(own/others)))
}

// judge scores what the site's program may have sent to the destination.
func (f *Finder) judge(key siteKey, s *site) (int, []Signal) {
	return together([]Signal{s.canaries(), s.namesData(), f.sends(key, s), s.publishes(), f.beats(key, s)})
}

func (s *site) canaries() Signal {
	if s.canary == nil {
		return Signal{}
	}
	return Signal{"canary", 100, fmt.Sprintf("the canary %s was in its %s (%s)", s.canary.Name, s.canary.Where, s.canary.Encoding), nil}
}

// namesFrom bytes hold a useful token, namesTo bytes hold a key.
const namesFrom, namesTo = 128, 2048

// A word or a counter carries up to wordBytes, which is little evidence.
const wordBytes = 6

// namesData scores names that carry data. Such names are many, long or random, and each is queried about once,
// since a resolver caches answers.
func (s *site) namesData() Signal {
	n := s.names.count()
	asked := slices.Max(s.asked[:])
	if n < 8 || asked == 0 || s.measured == 0 {
		return Signal{}
	}
	each := s.information / 8 / float64(s.measured)
	bytes := each * n
	once := min(1, n/float64(asked))
	score := scaled(bytes*once*once, namesFrom, namesTo, 80)
	carried := s.carriers*2 > asked
	if each < wordBytes && !carried {
		score = int(float64(score) * each / wordBytes)
	}
	evidence := fmt.Sprintf("%s different names of up to %d characters in %s: enough for %.0f bytes of data", about(n), s.longestName, quantity.Plural(int(asked), "question"), bytes)
	if carried && score > 0 {
		score += 30
		evidence += "; of a record type whose answers carry free text"
	}
	if s.overBudget > 0 {
		score = max(score, 60) + 10
		evidence += fmt.Sprintf("; %d refused because of limits.dns_name_bytes", s.overBudget)
	}
	return Signal{"names", min(score, 90), evidence, nil}
}

// publishes scores requests to services where others can fetch the content.
func (s *site) publishes() Signal {
	if s.published == 0 {
		return Signal{"publish", min(10, int(s.looked)), quantity.Plural(int(s.looked), "request") + " to a site where anybody can publish", nil}
	}
	score, what := 60+scaled(float64(s.publishedUp), 1<<10, 1<<20, 25), "sent something"
	if s.allowed == 0 {
		score, what = 55, "tried to send something"
	}
	return Signal{"publish", score, fmt.Sprintf("%s %d times, %s, to a site where others can fetch it", what, s.published, size(s.publishedUp)), nil}
}
