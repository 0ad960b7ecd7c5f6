package egress

import (
	"cmp"
	"math"
	"math/bits"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/tokens"
	"github.com/egressd/egressd/policy"
)

// QuestionLimits bound what one sandbox may ask of a name server that forwards.
// Zero fields have the stated defaults.
type QuestionLimits struct {
	// PerSecond is how many questions may come over a longer time, five times as
	// many at once; 200.
	PerSecond int

	// NameBytes bounds the data that lookups below one registered domain can carry to its name servers in an
	// hour: an estimate in bytes by number, length and randomness of the names. Zero means 4096.
	NameBytes int
}

func (l QuestionLimits) filled() QuestionLimits {
	return QuestionLimits{cmp.Or(l.PerSecond, 200), cmp.Or(l.NameBytes, 4096)}
}

const (
	waitingMost = 128         // questions of one sandbox that wait for a name server at a time
	domainsMost = 1024        // whose names are counted apart, for each sandbox
	knownMost   = 512         // names below one domain that tell little when they are asked again
	namesMost   = 16 << 10    // such names of one sandbox
	domainSwept = time.Minute // how often domains are looked for that need not be counted any more
)

// An asker is what a sandbox has asked so far.
type asker struct {
	rate    tokens.Bucket
	begun   sync.Once
	mu      sync.Mutex // guards what follows
	waiting int
	domains map[string]*domain
	rest    *domain   // of all that were too many
	names   int       // that the domains know
	swept   time.Time // when domains were last forgotten
}

// A domain is what names have told whoever answers for it.
type domain struct {
	bits  tokens.Bucket
	known map[string]struct{}
}

// questions is the budget of messages of a sandbox.
func (s *slot) questions(l QuestionLimits) *tokens.Bucket {
	s.asks.begun.Do(func() {
		s.asks.rate.Rate = float64(l.PerSecond)
		s.asks.rate.Most = 5 * float64(l.PerSecond)
	})
	return &s.asks.rate
}

// mayWait notes that one more question waits for a name server, and reports
// whether it may. doneWaiting has to be called either way.
func (s *slot) mayWait() bool {
	s.asks.mu.Lock()
	defer s.asks.mu.Unlock()
	s.asks.waiting++
	return s.asks.waiting <= waitingMost
}

func (s *slot) doneWaiting() {
	s.asks.mu.Lock()
	defer s.asks.mu.Unlock()
	s.asks.waiting--
}

// told takes from the budget of name's domain what looking it up tells, and
// reports whether there was as much.
func (s *slot) told(l QuestionLimits, name string, now time.Time) (ok bool, refused int) {
	registered := policy.Registrable(name)
	if registered == "" {
		registered = name
	}
	s.asks.mu.Lock()
	defer s.asks.mu.Unlock()
	d := s.asks.domain(l, registered, now)
	_, again := d.known[name]
	cost := InformationOf(strings.TrimSuffix(name, registered))
	if again {
		cost = float64(bits.Len(uint(len(d.known))))
	}
	if ok, refused = d.bits.Take(cost, now); ok && !again && len(d.known) < knownMost && s.asks.names < namesMost {
		d.known[strings.Clone(name)] = struct{}{}
		s.asks.names++
	}
	return ok, refused
}

// domain returns the budget of a registered domain. a.mu is held.
func (a *asker) domain(l QuestionLimits, name string, now time.Time) *domain {
	if len(a.domains) >= domainsMost || a.names >= namesMost {
		a.sweep(now)
	}
	if d := a.domains[name]; d != nil {
		return d
	}
	most := 8 * float64(l.NameBytes)
	fresh := func() *domain {
		return &domain{bits: tokens.Bucket{Most: most, Rate: most / time.Hour.Seconds()}, known: map[string]struct{}{}}
	}
	if len(a.domains) >= domainsMost { // and so no new one has a budget of its own
		if a.rest == nil {
			a.rest = fresh()
		}
		return a.rest
	}
	if a.domains == nil {
		a.domains = map[string]*domain{}
	}
	d := fresh()
	a.domains[strings.Clone(name)] = d
	return d
}

// sweep forgets the domains whose budget has filled up again. a.mu is held.
func (a *asker) sweep(now time.Time) {
	if now.Sub(a.swept) < domainSwept {
		return
	}
	a.swept = now
	for name, d := range a.domains {
		if d.bits.Full(now) {
			a.names -= len(d.known)
			delete(a.domains, name)
		}
	}
}

// InformationOf estimates how many bits the labels below a domain can tell, from
// how often each of their bytes occurs (Shannon's entropy). Each name has a byte
// on top: its length, and that it is asked for at all, tell something too.
func InformationOf(labels string) float64 {
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

var (
	tooOften      = policy.Decision{Class: policy.DNSBudget, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox asks for names too often (limits.dns_queries_per_second)"}
	tellsTooMuch  = policy.Decision{Class: policy.DNSBudget, Rule: "limits", Layer: policy.Builtin, Reason: "so many, so long or so random names below one domain could carry data (limits.dns_name_bytes)"}
	tooManyAtOnce = policy.Decision{Class: policy.DNSBudget, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox waits for too many names at a time"}
)
