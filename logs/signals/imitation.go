package signals

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/policy"
)

const (
	knownMost  = 64 // destinations that a name is compared with: those with the most flows
	knownTimes = 2  // ratio of the flows: the imitated destination has that many times those of the imitation
	leastLabel = 4  // letters; shorter labels are alike by chance
)

// imitated returns a destination of the log with a name that people may mistake this one for, or "".
func (p *pools) imitated(destination string) string {
	if p.known == nil {
		all := slices.SortedFunc(maps.Keys(p.destinations), func(a, b string) int {
			return cmp.Or(cmp.Compare(p.destinations[b].n, p.destinations[a].n), cmp.Compare(a, b))
		})
		p.known, p.imitations = all[:min(len(all), knownMost)], map[string]string{}
	}
	known, done := p.imitations[destination]
	if !done {
		for _, k := range p.known {
			if p.destinations[k].n > knownTimes*p.destinations[destination].n && isLike(destination, k) {
				known = k
				break
			}
		}
		p.imitations[destination] = known
	}
	return known
}

// isLike reports whether a registered domain can be mistaken for a known one: a letter is another one or stands elsewhere, a part of the name
// is the known label. The same label below another suffix may be the same owner's. Names that a service hands out, such as those of buckets, have their
// owner's name in them.
func isLike(domain, known string) bool {
	if domain == known || policy.HandedOut(domain) || isStore(domain) || policy.Registrable(domain) != domain || policy.Registrable(known) != known {
		return false
	}
	label, rest, _ := strings.Cut(domain, ".")
	of, suffix, _ := strings.Cut(known, ".")
	switch {
	case len(of) < leastLabel:
		return false
	case rest == suffix:
		return slices.Contains(strings.Split(label, "-"), of) || spelling.Distance(label, of) <= 1+len(of)/8
	}
	return label != of && slices.Contains(strings.Split(label, "-"), of)
}
