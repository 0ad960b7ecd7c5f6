package egress

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
)

const (
	// The budget of one holder, in records.
	denialsBurst, denialsRate = 2000, 20
	// The same where the disk has little space left.
	scarceBurst, scarceRate = 20, 1

	// First sightings of one holder in an hour that are recorded beyond its budget.
	sightingsMost, scarceSightings = 4096, 64
	// Domains of one holder in an hour that are known to have been recorded.
	domainsMost = 3 * sightingsMost
)

// A logBudget bounds the single records about the denials of one holder: a sandbox, or all sandboxes of a template. Beyond
// the budget, the first denial of each registered domain in an hour still has a record of its own, so that a flood of
// some names hides no other. A logBudget is safe for concurrent use. The zero value is ready.
type logBudget struct {
	mu     sync.Mutex // guards what follows
	plenty fair.Bucket
	scarce fair.Bucket // in place of plenty while the disk has little space

	seed  maphash.Seed
	hour  int64 // of the gate's clock, to which the rest belongs
	known map[uint64]struct{}
	extra int // first sightings that were recorded beyond the budget
}

// A sight identifies one denied domain of one sandbox within a logBudget.
type sight uint64

// sightOf returns the sight of a name or address that a sandbox was denied.
func (b *logBudget) sightOf(sandbox, name string) sight {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known == nil {
		b.seed, b.known = maphash.MakeSeed(), map[uint64]struct{}{}
	}
	var h maphash.Hash
	h.SetSeed(b.seed)
	h.WriteString(sandbox)
	h.WriteByte(0)
	if domain := policy.Registrable(name); domain != "" {
		name = domain
	}
	h.WriteString(name)
	return sight(h.Sum64())
}

// at forgets the sights of an earlier hour. b.mu is held.
func (b *logBudget) at(now time.Duration) {
	if hour := int64(now / time.Hour); hour != b.hour {
		b.hour, b.extra = hour, 0
		clear(b.known)
	}
}

// take takes records about one denial from the budget.
func (b *logBudget) take(scarce bool, records float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	budget := &b.plenty
	budget.Rate, budget.Most = denialsRate, denialsBurst
	if scarce {
		budget = &b.scarce
		budget.Rate, budget.Most = scarceRate, scarceBurst
	}
	ok, _ := budget.Take(records, time.Now())
	return ok
}

// isKnown reports whether a denial of the same domain was recorded in this hour.
func (b *logBudget) isKnown(s sight, now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at(now)
	_, known := b.known[uint64(s)]
	return known
}

// note notes that a denial of the domain is recorded.
func (b *logBudget) note(s sight, now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at(now)
	b.add(s)
}

// add notes a sight, if there is space for it. b.mu is held.
func (b *logBudget) add(s sight) bool {
	if len(b.known) >= domainsMost {
		return false
	}
	b.known[uint64(s)] = struct{}{}
	return true
}

// takeFirst reports whether a denial is the first of its domain in this hour, and may be recorded beyond the budget.
func (b *logBudget) takeFirst(s sight, now time.Duration, scarce bool) bool {
	most := sightingsMost
	if scarce {
		most = scarceSightings
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at(now)
	if _, known := b.known[uint64(s)]; known || b.extra >= most || !b.add(s) {
		return false
	}
	b.extra++
	return true
}
