package dns

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// maxAddrs bounds the addresses of a name. More are not judged and so not
// dialled.
const maxAddrs = 32

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
