package signals

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// grounds are for and against one explanation of what was seen: each is a log-odds, in
// nats, and is bounded, so that no single oddity of ordinary traffic decides.
type grounds struct {
	odds float64
	said []said
}

type said struct {
	nats float64
	text string
}

// add takes in a piece that is worth nats, with the words for it.
func (e *grounds) add(nats float64, format string, a ...any) {
	if nats == 0 {
		return
	}
	e.odds += nats
	e.said = append(e.said, said{nats, fmt.Sprintf(format, a...)})
}

// explained makes all that was said count for less, since something ordinary explains a part of it, from 0 to 1,
// and speaks against by itself.
func (e *grounds) explained(part float64, format string, a ...any) {
	if part == 0 {
		return
	}
	e.odds *= 1 - part
	for i := range e.said {
		e.said[i].nats *= 1 - part
	}
	e.add(-2*part, format, a...)
}

// probability is that of an attempt, where by itself one in about exp(prior) flows like
// this were one.
func (e *grounds) probability(prior float64) float64 {
	return 1 / (1 + math.Exp(prior-e.odds))
}

// words are what counts most, first; what speaks against it is last.
func (e *grounds) words() string {
	slices.SortStableFunc(e.said, func(a, b said) int { return cmp.Compare(b.nats, a.nats) })
	var out strings.Builder
	for _, s := range e.said {
		if out.WriteString("; "); s.nats < 0 {
			out.WriteString("but ")
		}
		out.WriteString(s.text)
	}
	return out.String()
}

// unlike is the evidence in that k of n flows do something which few of m others do.
func unlike(k, n, few, m int64, most float64) float64 {
	own, others := float64(k+1)/float64(n+2), float64(few+1)/float64(m+20)
	return min(most, max(0, math.Log(own/others)))
}
