package dns

import (
	"cmp"
	"net/netip"
	"time"
	"unsafe"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

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
