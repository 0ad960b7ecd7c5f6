package rego

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	"github.com/egressd/egressd/policy"
)

// maxKeyBytes bounds the size of a cached entry's key.
const maxKeyBytes = 1024

// appendKey appends all parts of a request that a decision can depend on: the known fields that the policy
// reads, the set of unknown fields, and the parts that are present. If ok is false, the decision must not
// be cached: it depends on the time, the usage or the body, or the key is too large.
func appendKey(key []byte, r *policy.Request, known, unknown inputFields) (_ []byte, ok bool) {
	if known&(readsTime|readsUsage|readsHeaders|readsQuery|readsBody) != 0 {
		return nil, false
	}
	key = binary.LittleEndian.AppendUint32(key, uint32(unknown))
	key = append(key, parts(r))
	key = appendWho(key, r, known)
	key = appendWhere(key, &r.Destination, known)
	key = appendWhat(key, r, known)
	for _, a := range r.Approved {
		key = appendTexts(key, []string{string(a.Layer), a.Source, a.Rule, a.Question})
	}
	return key, len(key) <= maxKeyBytes
}

func parts(r *policy.Request) (set byte) {
	for i, there := range [...]bool{
		r.DNS != nil, r.HTTP != nil, r.TLS != nil, len(r.Destination.Addrs) > 0, r.Process != nil, inClear(r),
	} {
		if there {
			set |= 1 << i
		}
	}
	return set
}

func appendText(key []byte, s string) []byte {
	key = binary.AppendUvarint(key, uint64(len(s)))
	return append(key, s...)
}

func appendTexts(key []byte, all []string) []byte {
	key = binary.AppendUvarint(key, uint64(len(all)))
	for _, s := range all {
		key = appendText(key, s)
	}
	return key
}

func appendWho(key []byte, r *policy.Request, known inputFields) []byte {
	if known&readsSandboxName != 0 {
		key = appendText(key, r.Sandbox.Name)
	}
	if known&readsSandboxKind != 0 {
		key = appendText(key, r.Sandbox.Kind)
	}
	if known&readsSandboxLabels != 0 {
		for _, label := range slices.Sorted(maps.Keys(r.Sandbox.Labels)) {
			key = appendText(appendText(key, label), r.Sandbox.Labels[label])
		}
		key = append(key, 0)
	}
	if known&readsVia != 0 {
		key = appendText(key, string(r.Via))
	}
	if p := r.Process; p != nil && known&readsProcess != 0 {
		key = binary.AppendVarint(key, int64(p.PID))
		key = appendTexts(appendText(key, p.Exe), p.Argv)
	}
	return key
}

func appendWhere(key []byte, d *policy.Destination, known inputFields) []byte {
	if known&readsDestination != 0 {
		key = appendText(key, d.Host)
	}
	if known&readsPort != 0 {
		key = binary.LittleEndian.AppendUint16(key, d.Port)
	}
	if known&readsResolved != 0 {
		key = binary.AppendUvarint(key, uint64(len(d.Addrs)))
		for _, addr := range d.Addrs {
			b := addr.As16()
			key = append(key, b[:]...)
		}
	}
	return key
}

func appendWhat(key []byte, r *policy.Request, known inputFields) []byte {
	if t := r.TLS; t != nil && known&readsTLS != 0 {
		key = appendTexts(appendText(appendText(key, t.ServerName), t.JA4), t.ALPN)
		key = binary.AppendUvarint(key, map[bool]uint64{true: 1}[t.ECH])
	}
	if q := r.DNS; q != nil && known&readsDNS != 0 {
		key = appendText(appendText(key, q.Name), q.Type)
	}
	if h := r.HTTP; h != nil && known&readsHTTP != 0 {
		if known&readsMethod != 0 {
			key = appendText(key, h.Method)
		}
		if known&readsPath != 0 {
			key = appendText(key, h.Path)
		}
		if known&readsBodySize != 0 {
			key = binary.AppendVarint(key, h.BodySize)
		}
	}
	return key
}

// A verdictCache caches decisions of one policy, up to a fixed number. Entries move from the old to the
// young half when they are used. When the young half is full, it replaces the old half. A nil cache stores
// nothing.
type verdictCache struct {
	half int

	mu         sync.RWMutex // guards young and old
	young, old map[string]judged
}

func newVerdictCache(entries int) *verdictCache {
	if entries < 0 {
		return nil
	}
	return &verdictCache{half: max(entries/2, 1), young: map[string]judged{}}
}

func (c *verdictCache) get(key []byte) (judged, bool) {
	if c == nil {
		return judged{}, false
	}
	c.mu.RLock()
	d, found := c.young[string(key)]
	kept := found
	if !found {
		d, found = c.old[string(key)]
	}
	c.mu.RUnlock()
	if found && !kept {
		c.put(key, d)
	}
	return d, found
}

func (c *verdictCache) put(key []byte, d judged) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.young) >= c.half {
		c.old, c.young = c.young, make(map[string]judged, c.half)
	}
	c.young[string(key)] = d
}
