package names

import (
	"cmp"
	"math"
	"math/bits"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
)

// Limits bound what one sandbox may ask a name server that forwards. Zero fields have the stated defaults.
type Limits struct {
	// PerSecond is how many questions may come over a longer time; a burst may have five times as many. 200.
	PerSecond int

	// NameBytes bounds the data that lookups below one registered domain can carry to its name servers in an
	// hour: an estimate in bytes by number, length and randomness of the names. 4096.
	NameBytes int
}

// WithDefaults returns l with the defaults in place of zeros.
func (l Limits) WithDefaults() Limits {
	return Limits{cmp.Or(l.PerSecond, 200), cmp.Or(l.NameBytes, 4096)}
}

const (
	maxWaiting      = 128         // questions of one sandbox that wait for a name server
	maxDomains      = 1024        // of one sandbox that have budgets of their own
	maxKnown        = 512         // names below one domain that cost little when they are asked for again
	maxNames        = 16 << 10    // such names of one sandbox
	domainsInterval = time.Minute // between two searches for domains whose budget is full
)

// A Budget is what one sandbox may still ask. Its zero value is full; it is safe for concurrent use.
type Budget struct {
	messages fair.Bucket
	begun    sync.Once

	mu      sync.Mutex // guards what follows
	waiting int
	domains map[string]*domain
	rest    *domain   // of all domains beyond maxDomains
	names   int       // that the domains know
	swept   time.Time // when domains were last forgotten
}

// A domain is the budget of the names below one registered domain.
type domain struct {
	bits  fair.Bucket
	known map[string]struct{}
}

// TakeMessage takes one message from the budget, and reports whether there was one. Each call has the same limits.
func (b *Budget) TakeMessage(l Limits, now time.Time) bool {
	b.begun.Do(func() {
		b.messages.Rate = float64(l.PerSecond)
		b.messages.Most = 5 * float64(l.PerSecond)
	})
	ok, _ := b.messages.Take(1, now)
	return ok
}

// StartWaiting counts one more question that waits for a name server, and reports whether it may. The caller calls
// EndWaiting in either case.
func (b *Budget) StartWaiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting++
	return b.waiting <= maxWaiting
}

// EndWaiting ends the wait of one question.
func (b *Budget) EndWaiting() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting--
}

// Waiting returns how many questions wait.
func (b *Budget) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting
}

// TakeName takes the information that a lookup of name carries from the budget of its registered domain. It reports
// whether there was as much.
func (b *Budget) TakeName(l Limits, name string, now time.Time) bool {
	registered := policy.Registrable(name)
	if registered == "" {
		registered = name
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.domain(l, registered, now)
	_, again := d.known[name]
	cost := Information(strings.TrimSuffix(name, registered))
	if again {
		cost = float64(bits.Len(uint(len(d.known))))
	}
	ok, _ := d.bits.Take(cost, now)
	if ok && !again && len(d.known) < maxKnown && b.names < maxNames {
		d.known[strings.Clone(name)] = struct{}{}
		b.names++
	}
	return ok
}

// domain returns the budget of a registered domain. b.mu is held.
func (b *Budget) domain(l Limits, name string, now time.Time) *domain {
	if len(b.domains) >= maxDomains || b.names >= maxNames {
		b.sweep(now)
	}
	if d := b.domains[name]; d != nil {
		return d
	}
	most := 8 * float64(l.NameBytes)
	fresh := func() *domain {
		return &domain{bits: fair.Bucket{Most: most, Rate: most / time.Hour.Seconds()}, known: map[string]struct{}{}}
	}
	if len(b.domains) >= maxDomains {
		if b.rest == nil {
			b.rest = fresh()
		}
		return b.rest
	}
	if b.domains == nil {
		b.domains = map[string]*domain{}
	}
	d := fresh()
	b.domains[strings.Clone(name)] = d
	return d
}

// sweep forgets the domains whose budget is full again. b.mu is held.
func (b *Budget) sweep(now time.Time) {
	if now.Sub(b.swept) < domainsInterval {
		return
	}
	b.swept = now
	for name, d := range b.domains {
		if d.bits.Full(now) {
			b.names -= len(d.known)
			delete(b.domains, name)
		}
	}
}

// Information estimates how many bits the labels below a domain carry: the Shannon entropy of their bytes. Each name
// has a byte on top, for its length and for being asked for at all.
func Information(labels string) float64 {
	var count [256]int
	n := 0
	for i := range len(labels) {
		if labels[i] != '.' {
			count[labels[i]]++
			n++
		}
	}
	sum := 8.0
	for _, c := range count {
		if c > 0 {
			sum -= float64(c) * math.Log2(float64(c)/float64(n))
		}
	}
	return sum
}
