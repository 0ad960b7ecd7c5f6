// Package dns resolves names for the gate: a [Forwarder] asks the configured
// upstreams, and only them, and hands out only addresses that an answer ties
// to the asked name.
//
// A [FilteringServer] is the other end, the name server of sandboxes that are pointed at egressd: it answers what the policy allows.
// A [PlaceholderServer] is that of captured sandboxes: it gives every name a placeholder.
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

	mu       sync.Mutex // guards what follows, and flight.waiters; never held while waiting
	cache    *simplelru.LRU[string, entry]
	kept     int                // bytes that cache takes
	flights  map[string]*flight // those that may be joined
	inFlight int                // all, those that nobody may join any more included
	closed   bool

	flying sync.WaitGroup // the flights of inFlight; it grows with mu held and closed not set
}

// An entry is the outcome of a lookup: addresses, or the kind of failure.
type entry struct {
	addrs   []netip.Addr
	aliases []string
	kind    Kind
	exists  bool      // where kind is NotFound: the name does, without addresses
	expires time.Time // zero: not to be kept
}

// A flight is a lookup under way, shared by everyone who asks for its name.
type flight struct {
	waiters int                // the lookup is given up when the last one leaves
	cancel  context.CancelFunc // of the lookup
	done    chan struct{}      // closed when landed holds the outcome; nil where nobody waits
	then    []func(entry)      // called then, without a lock
	landed  entry
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
// Callers that ask for the same name at the same time share one exchange; ctx
// ends the caller's waiting, and the exchange only when nobody waits for it
// any more. The error is an [*Error], or wraps that of ctx.
func (f *Forwarder) Lookup(ctx context.Context, name string) (addrs []netip.Addr, aliases []string, err error) {
	if !canonical(name) {
		return nil, nil, &Error{Name: name, Kind: Malformed}
	}
	e, fl := f.join(name, nil)
	if fl != nil {
		select {
		case <-fl.done:
			e = fl.landed
		case <-ctx.Done():
			f.leave(name, fl)
			return nil, nil, fmt.Errorf("lookup %q: %w", name, ctx.Err())
		}
	}
	return e.told(name)
}

// Ask looks name up without blocking. It calls then once with the results of [Forwarder.Lookup], either before Ask returns
// or later on another goroutine, within TotalTimeout. then must not block.
func (f *Forwarder) Ask(name string, then func(addrs []netip.Addr, aliases []string, err error)) {
	if !canonical(name) {
		then(entry{kind: Malformed}.told(name))
		return
	}
	e, fl := f.join(name, func(e entry) { then(e.told(name)) })
	if fl == nil {
		then(e.told(name))
	}
}

// told is what a lookup returns.
func (e entry) told(name string) (addrs []netip.Addr, aliases []string, err error) {
	if e.kind != 0 {
		return nil, nil, &Error{Name: name, Kind: e.kind, Exists: e.exists}
	}
	return e.addrs, e.aliases, nil
}

// join returns the cached entry of name, or a flight, which it begins if there is none. It adds then to the flight, or
// a waiter for done if then is nil.
func (f *Forwarder) join(name string, then func(entry)) (entry, *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e, ok := f.fresh(name); ok {
		return e, nil
	}
	fl := f.flights[name]
	switch {
	case f.closed:
		return entry{kind: Timeout}, nil
	case fl != nil:
	case f.inFlight >= maxFlights:
		return entry{kind: Busy}, nil
	default:
		fl = f.begin(strings.Clone(name)) // name may be a part of something large
	}
	fl.waiters++
	switch {
	case then != nil:
		fl.then = append(fl.then, then)
	case fl.done == nil:
		fl.done = make(chan struct{})
	}
	return entry{}, fl
}

// begin begins a lookup on a goroutine of its own. f.mu is held, so the lookup cannot be over before it has a waiter.
func (f *Forwarder) begin(name string) *flight {
	ctx, cancel := context.WithTimeout(context.Background(), f.totalTimeout())
	fl := &flight{cancel: cancel}
	if f.flights == nil {
		f.flights = make(map[string]*flight)
	}
	f.flights[name] = fl
	f.inFlight++
	f.flying.Go(func() {
		defer cancel()
		f.land(name, fl, f.resolve(ctx, name))
	})
	return fl
}

// land tells everybody in fl what came of it.
func (f *Forwarder) land(name string, fl *flight, e entry) {
	f.mu.Lock()
	f.inFlight--
	if f.flights[name] == fl { // some caller still waits
		delete(f.flights, name)
		f.keep(name, e)
	}
	fl.landed = e
	then := fl.then
	if fl.done != nil {
		close(fl.done)
	}
	f.mu.Unlock()
	for _, tell := range then {
		tell(e)
	}
}

// Close ends the lookups under way as Timeout, and waits until their goroutines and sockets are gone. A lookup that
// begins later fails at once. Cached names are still answered.
func (f *Forwarder) Close() {
	f.mu.Lock()
	f.closed = true
	for _, fl := range f.flights {
		fl.cancel()
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

// leave takes a waiter off fl.
func (f *Forwarder) leave(name string, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl.waiters--
	if fl.waiters > 0 {
		return
	}
	fl.cancel()
	if f.flights[name] == fl {
		delete(f.flights, name)
	}
}

// resolve asks for the addresses of name.
func (f *Forwarder) resolve(ctx context.Context, name string) entry {
	replies := [...]reply{{rtype: typeAAAA, kind: ServerFailure}, {rtype: typeA, kind: ServerFailure}}
	f.askAll(ctx, name, replies[:])
	return f.merge(replies[0], replies[1])
}

// askAll asks the upstreams in order until there is something to tell.
func (f *Forwarder) askAll(ctx context.Context, name string, replies []reply) {
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

func (f *Forwarder) totalTimeout() time.Duration { return cmp.Or(f.TotalTimeout, defaultTotalTimeout) }
