package dns

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxAddrs bounds the addresses of a name. More are not judged and so not
// dialled.
const maxAddrs = 32

// An entry is the outcome of a lookup: addresses, or the kind of failure.
type entry struct {
	addrs   []netip.Addr
	aliases []string
	kind    Kind
	exists  bool      // where kind is NotFound: the name does, without addresses
	expires time.Time // zero: not to be kept
}

// told is what a lookup returns.
func (e entry) told(name string) (addrs []netip.Addr, aliases []string, err error) {
	if e.kind != 0 {
		return nil, nil, &Error{Name: name, Kind: e.kind, Exists: e.exists}
	}
	return e.addrs, e.aliases, nil
}

// merge makes one outcome of the replies for the two families.
func (f *Forwarder) merge(v6, v4 reply) entry {
	switch {
	case v6.kind == 0 || v4.kind == 0:
		return entry{
			addrs:   interleave(v6.addrs, v4.addrs),
			aliases: union(v6.aliases, v4.aliases),
			expires: expiry(f.lifetime(v6, v4)),
		}
	case anyFailure(v6.kind):
		return entry{kind: v6.kind}
	case anyFailure(v4.kind):
		return entry{kind: v4.kind}
	}
	return entry{kind: NotFound, exists: v6.exists || v4.exists, expires: expiry(min(v6.ttl, v4.ttl, maxNegativeTTL))}
}

// lifetime returns how long the addresses of the replies may be kept. That a
// family has none does not shorten the life of the other's.
func (f *Forwarder) lifetime(v6, v4 reply) time.Duration {
	limit := cmp.Or(f.MaxTTL, defaultMaxTTL)
	if anyFailure(v6.kind) || anyFailure(v4.kind) {
		limit = min(limit, maxNegativeTTL)
	}
	ttl := limit
	for _, r := range []reply{v6, v4} {
		if r.kind == 0 {
			ttl = min(ttl, r.ttl)
		}
	}
	if ttl == 0 {
		return 0
	}
	return min(max(ttl, f.MinTTL), limit)
}

func expiry(life time.Duration) time.Time {
	if life <= 0 {
		return time.Time{}
	}
	return time.Now().Add(life)
}

// interleave alternates the addresses of the two families, first's first,
// each address once. An IPv4 address inside an IPv6 one comes out as IPv4.
func interleave(first, second []netip.Addr) []netip.Addr {
	addrs := make([]netip.Addr, 0, min(len(first)+len(second), maxAddrs))
	for i := range max(len(first), len(second)) {
		for _, family := range [...][]netip.Addr{first, second} {
			if i >= len(family) || len(addrs) == maxAddrs {
				continue
			}
			if addr := family[i].Unmap(); !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return slices.Clip(addrs)
}

// union returns first and what second has beside it. The two differ where a
// name server answers A and AAAA along different aliases.
func union(first, second []string) []string {
	names := slices.Clone(first)
	for _, name := range second {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return slices.Clip(names)
}

// Cached returns what Lookup would return at once and without an error. It
// never blocks on anything but a short lock, sends nothing and allocates
// nothing. A name that is known to have no addresses is not ok.
//
// The slices are shared with other callers: read them only.
func (f *Forwarder) Cached(name string) (addrs []netip.Addr, aliases []string, ok bool) {
	f.mu.Lock()
	e, ok := f.fresh(name)
	f.mu.Unlock()
	if !ok || e.kind != 0 {
		return nil, nil, false
	}
	return e.addrs, e.aliases, true
}

// Life returns for how long what the cache holds of name still holds; 0 where it
// holds nothing.
func (f *Forwarder) Life(name string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.fresh(name)
	if !ok {
		return 0
	}
	return time.Until(e.expires)
}

// fresh returns what the cache holds of name. f.mu is held.
func (f *Forwarder) fresh(name string) (entry, bool) {
	if f.cache == nil {
		return entry{}, false
	}
	e, ok := f.cache.Get(name)
	return e, ok && time.Now().Before(e.expires)
}

// keep stores e until it expires. f.mu is held.
func (f *Forwarder) keep(name string, e entry) {
	if e.expires.IsZero() {
		return
	}
	if f.cache == nil {
		gone := func(name string, e entry) { f.kept -= e.takes(name) }
		cache, err := simplelru.NewLRU(cmp.Or(f.MaxEntries, defaultMaxEntries), gone)
		if err != nil { // a negative size
			return
		}
		f.cache = cache
	}
	f.cache.Remove(name) // what is replaced is not gone to the cache
	f.kept += e.takes(name)
	f.cache.Add(name, e)
	for most := cmp.Or(f.MaxBytes, defaultMaxBytes); f.kept > most && f.cache.Len() > 0; {
		f.cache.RemoveOldest()
	}
}

// takes is about how many bytes of memory the cache needs for e.
func (e entry) takes(name string) int {
	const fixed = 256 // of the entry, and of the tables that find it
	n := fixed + len(name) + len(e.addrs)*int(unsafe.Sizeof(netip.Addr{}))
	for _, alias := range e.aliases {
		n += int(unsafe.Sizeof(alias)) + len(alias)
	}
	return n
}
