// Package dns resolves names for the gate: a [Forwarder] asks the configured
// upstreams, and only them, and hands out only addresses that an answer ties
// to the asked name.
//
// A [Server] is the other end, the name server of sandboxes that are pointed at egressd: it answers what the policy allows. For
// captured sandboxes it gives every name a placeholder.
//
// The forwarder decides nothing: whether a name may be looked up is settled before it
// gets here, and every address that it returns is judged after. It reads no
// /etc/hosts, applies no search domain, follows no alias by itself and
// asks for A and AAAA, and for SRV and TXT where it is told to.
//
//	upstreams, err := dns.SystemUpstreams("/etc/resolv.conf")
//	forwarder := &dns.Forwarder{Upstreams: upstreams}
//	addrs, aliases, err := forwarder.Lookup(ctx, "example.com")
package dns

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	defaultTimeout      = 2 * time.Second
	defaultTotalTimeout = 5 * time.Second
	defaultMaxEntries   = 10_000
	defaultMaxBytes     = 16 << 20
	defaultMaxTTL       = 300 * time.Second

	maxNegativeTTL = 30 * time.Second // also for an answer of which one half failed
	maxFlights     = 2048             // ten times what the gate lets one sandbox wait for
)

// A Forwarder is a stub resolver with a cache. Set its fields before its first
// use and do not change them afterwards. Its methods are safe for concurrent use.
// Close ends its lookups. A Forwarder must not be copied.
type Forwarder struct {
	// Upstreams are the recursive name servers, in order. The forwarder asks the next
	// one if an upstream fails, and starts again from the first one for questions that
	// only timed out. Without upstreams every lookup fails as ServerFailure.
	Upstreams []netip.AddrPort

	// Timeout bounds one try with one upstream over UDP, and one more over TCP. Zero
	// means two seconds.
	//
	// After addresses of one family have arrived, the packet of the other family has a
	// quarter of Timeout left, and no other upstream is asked.
	Timeout time.Duration

	// TotalTimeout is how long all tries of a lookup have together. Zero
	// means five seconds.
	TotalTimeout time.Duration

	// MaxEntries bounds the cache, in names, and MaxBytes in what it takes of memory: whoever
	// answers for a domain says how much that is for each name. The least recently used goes
	// first. Zero means 10,000 names and 16 MiB, a negative MaxEntries no cache.
	MaxEntries, MaxBytes int

	// Answers stay in the cache for the smallest TTL of their records, raised to MinTTL
	// (zero: not raised) and then cut to MaxTTL (zero: 300 seconds). An answer with TTL 0
	// is never cached, whatever MinTTL is. Negative answers are cached as RFC 2308 says,
	// for at most 30 seconds, if they have a SOA record. Failures are not cached.
	MinTTL, MaxTTL time.Duration

	// RecordTypes are the types that LookupRRs asks for: "SRV" and "TXT".
	RecordTypes []string

	mu       sync.Mutex // guards what follows; never held while waiting
	cache    *simplelru.LRU[string, entry]
	kept     int                // bytes that cache takes
	flights  map[string]*flight // for addresses
	inFlight int                // lookups under way, for addresses and other records
	life     context.Context    // of these; nil before the first
	die      context.CancelFunc // by Close
	closed   bool

	flying sync.WaitGroup // the lookups of inFlight; it grows with mu held and closed not set
}

// A flight is a lookup for addresses. One caller makes it, and others that ask for its name meanwhile wait for it. So there is one query at
// a time for each name and type, and a forged response has one ID to guess.
type flight struct {
	done   chan struct{} // closed when it is over
	landed entry         // what came of it, then
	left   bool          // its caller gave it up
}

// Lookup returns 1 to 32 addresses of name, and the names of the CNAME chain to them, in order and
// without name itself. The addresses are unmapped and without duplicates. IPv6 and IPv4 alternate
// and IPv6 comes first (RFC 8305, section 4); within a family the order is the
// upstream's. The slices are shared with other callers: read them only.
//
// name must be canonical: lower case, A-labels, no trailing dot. A and AAAA
// are asked for at once. Where only one of them fails, the other's addresses
// are the answer: the caller dials nothing that it was not given here, so that
// an address nobody learnt of needs no judging.
//
// Callers that ask for the same name at the same time share one exchange. ctx ends the caller's waiting; an exchange that is
// given up so is begun again by one of the others. The error is an [*Error], or wraps that of ctx.
func (f *Forwarder) Lookup(ctx context.Context, name string) (addrs []netip.Addr, aliases []string, err error) {
	if !canonical(name) {
		return nil, nil, &Error{Name: name, Kind: Malformed}
	}
	for {
		e, fl, mine := f.join(name)
		switch {
		case fl == nil:
			return e.told(name)
		case mine:
			e, err := f.fly(ctx, name, fl)
			if err != nil {
				return nil, nil, err
			}
			return e.told(name)
		}
		select {
		case <-fl.done:
			if !fl.left {
				return fl.landed.told(name)
			}
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("lookup %q: %w", name, ctx.Err())
		}
	}
}

// join returns the cached entry of name, or the flight for it. The flight is mine if there was none: then the caller makes it.
func (f *Forwarder) join(name string) (e entry, fl *flight, mine bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e, ok := f.fresh(name); ok {
		return e, nil, false
	}
	if fl := f.flights[name]; fl != nil {
		return entry{}, fl, false
	}
	if problem := f.takeOff(); problem != 0 {
		return entry{kind: problem}, nil, false
	}
	if f.flights == nil {
		f.flights = map[string]*flight{}
	}
	fl = &flight{done: make(chan struct{})}
	f.flights[strings.Clone(name)] = fl // name may be a part of something large
	return entry{}, fl, true
}

// fly asks for the addresses of name, and tells everybody who waits for the flight.
func (f *Forwarder) fly(ctx context.Context, name string, fl *flight) (entry, error) {
	fl.left = true // until it has landed
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.flights, name)
		f.touchDown()
		close(fl.done)
	}()
	e := f.resolve(ctx, name)
	if err := ctx.Err(); err != nil && e.kind != 0 {
		return entry{}, fmt.Errorf("lookup %q: %w", name, err)
	}
	f.mu.Lock()
	f.keep(strings.Clone(name), e)
	f.mu.Unlock()
	fl.landed, fl.left = e, false
	return e, nil
}

// takeOff counts a lookup, or says why it may not begin. f.mu is held.
func (f *Forwarder) takeOff() Kind {
	switch {
	case f.closed:
		return Timeout
	case f.inFlight >= maxFlights:
		return Busy
	case f.life == nil:
		f.life, f.die = context.WithCancel(context.Background())
	}
	f.inFlight++
	f.flying.Add(1)
	return 0
}

// touchDown ends what takeOff began. f.mu is held.
func (f *Forwarder) touchDown() {
	f.inFlight--
	f.flying.Done()
}

// Close ends the lookups under way as Timeout, and waits until their sockets are gone. A lookup that
// begins later fails at once. Cached names are still answered.
func (f *Forwarder) Close() {
	f.mu.Lock()
	f.closed = true
	if f.die != nil {
		f.die()
	}
	f.mu.Unlock()
	f.flying.Wait()
}

// Idle reports whether no lookup is under way.
func (f *Forwarder) Idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inFlight == 0
}

// resolve asks for the addresses of name.
func (f *Forwarder) resolve(ctx context.Context, name string) entry {
	replies := [...]reply{{rtype: typeAAAA, kind: ServerFailure}, {rtype: typeA, kind: ServerFailure}}
	f.askAll(ctx, name, replies[:])
	return f.merge(replies[0], replies[1])
}

// askAll asks the upstreams in order until there is something to tell, TotalTimeout is over, or the forwarder is closed.
func (f *Forwarder) askAll(ctx context.Context, name string, replies []reply) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(f.TotalTimeout, defaultTotalTimeout))
	defer cancel()
	defer context.AfterFunc(f.life, cancel)()
	for _, failed := range []func(Kind) bool{anyFailure, timedOut} {
		for _, upstream := range f.Upstreams {
			open := unsettled(replies, failed)
			if len(open) == 0 || ctx.Err() != nil {
				break
			}
			f.try(ctx, upstream, name, open)
		}
	}
}

func anyFailure(k Kind) bool { return k != 0 && k != NotFound }
func timedOut(k Kind) bool   { return k == Timeout }

// unsettled returns the replies that are worth asking for again: none once
// one of them has addresses.
func unsettled(replies []reply, failed func(Kind) bool) []*reply {
	var open []*reply
	for i := range replies {
		if replies[i].kind == 0 {
			return nil
		}
		if failed(replies[i].kind) {
			open = append(open, &replies[i])
		}
	}
	return open
}
