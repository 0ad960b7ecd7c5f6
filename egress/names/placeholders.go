package names

import (
	"container/list"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	maxBindings   = 16 << 10         // of one sandbox
	bindingLife   = 10 * time.Minute // from its last use; longer than PlaceholderTTL
	maxCandidates = 64               // bindings that are looked at to find one that can be replaced
	maxLiterals   = 256              // of one sandbox
)

// PlaceholderTTL is how long a client may keep an answer with a placeholder address.
const PlaceholderTTL = time.Minute

// A Placeholder is the pair of addresses that stands for one name in one sandbox. Either may be the zero Addr, if the range has
// none of its family.
type Placeholder struct{ IPv4, IPv6 netip.Addr }

// Placeholders binds names to addresses of a range, in each sandbox on its own. It is safe for concurrent use.
type Placeholders struct {
	Range Range // set it before first use

	table[bindings]
}

// Bind returns the addresses of a name in a sandbox. It returns false if no address is free, or if there are too many
// sandboxes. busy returns the names that the sandbox has connections to: their addresses are not given to other names.
func (p *Placeholders) Bind(sandbox, name string, busy func() map[string]bool) (Placeholder, bool) {
	b := p.add(sandbox)
	if b == nil {
		return Placeholder{}, false
	}
	index, ok := b.bind(name, p.Range.capacity(), time.Now(), busy)
	if !ok {
		return Placeholder{}, false
	}
	return Placeholder{offset(p.Range.IPv4, reserved+index), offset(p.Range.IPv6, reserved+index)}, true
}

// Name returns the name that addr stands for in a sandbox. Other addresses of the range mean themselves there, and will not
// be given to a name, as far as maxLiterals of a sandbox go.
func (p *Placeholders) Name(sandbox string, addr netip.Addr) (name string, ok bool) {
	index, in := p.Range.index(addr)
	if !in || index < reserved {
		return "", false
	}
	b := p.add(sandbox)
	if b == nil {
		return "", false
	}
	return b.name(index-reserved, time.Now())
}

// bindings are the names of one sandbox.
type bindings struct {
	mu       sync.Mutex
	byName   map[string]*list.Element // of *binding
	byIndex  []*list.Element          // nil where a literal is
	used     list.List                // the least recently used first
	literals map[uint32]bool          // indexes of addresses that the sandbox connected to, and that stood for no name
}

type binding struct {
	name  string
	index uint32
	used  time.Time
}

// bind binds name to an index and returns the index. If all are taken, bind reuses the least recently used one, except
// those that an answer may still be valid for, and those of busy names.
func (b *bindings) bind(name string, capacity int, now time.Time, busy func() map[string]bool) (uint32, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.byName[name]; e != nil {
		return b.touch(e, now).index, true
	}
	if b.byName == nil {
		b.byName = map[string]*list.Element{}
	}
	for b.literals[uint32(len(b.byIndex))] {
		b.byIndex = append(b.byIndex, nil)
	}
	if len(b.byIndex) < capacity {
		e := b.used.PushBack(&binding{name: strings.Clone(name), index: uint32(len(b.byIndex)), used: now})
		b.byIndex = append(b.byIndex, e)
		b.byName[name] = e
		return e.Value.(*binding).index, true
	}
	e := b.replaceable(now, busy)
	if e == nil {
		return 0, false
	}
	old := e.Value.(*binding)
	delete(b.byName, old.name)
	e.Value = &binding{name: strings.Clone(name), index: old.index, used: now}
	b.byName[name] = e
	b.used.MoveToBack(e)
	return old.index, true
}

func (b *bindings) replaceable(now time.Time, busy func() map[string]bool) *list.Element {
	e := b.used.Front()
	if e == nil || now.Sub(e.Value.(*binding).used) < bindingLife {
		return nil
	}
	names := busy()
	for range maxCandidates {
		switch {
		case e == nil || now.Sub(e.Value.(*binding).used) < bindingLife:
			return nil
		case !names[e.Value.(*binding).name]:
			return e
		}
		e = e.Next()
	}
	return nil
}

func (b *bindings) touch(e *list.Element, now time.Time) *binding {
	known := e.Value.(*binding)
	known.used = now
	b.used.MoveToBack(e)
	return known
}

// name returns the name that index is bound to. It keeps index from names to come if it is bound to none.
func (b *bindings) name(index uint32, now time.Time) (name string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int64(index) < int64(len(b.byIndex)) && b.byIndex[index] != nil {
		return b.touch(b.byIndex[index], now).name, true
	}
	if b.literals == nil {
		b.literals = map[uint32]bool{}
	}
	if len(b.literals) < maxLiterals {
		b.literals[index] = true
	}
	return "", false
}

// A Range is where placeholder addresses come from. A placeholder stands for a name inside a sandbox whose connections
// are captured: a program asks for a name, gets a placeholder, and connects to it. The name of that connection is then
// known, even if the name is denied. Nothing is ever sent to a placeholder.
//
// The first 256 addresses of each prefix stand for no name. The zero value is no range.
type Range struct{ IPv4, IPv6 netip.Prefix }

// DefaultRange returns the range that egressd uses unless the policy file has another.
//
// Programs that guard against requests to private addresses take both prefixes for public. They refuse every block that a
// registry sets apart, such as 100.64.0.0/10 and 198.18.0.0/15. 28.0.0.0/8 belongs to the network of a defence department, in which
// nobody else has a server. 2d00::/8 is global unicast that IANA keeps unallocated.
func DefaultRange() Range {
	return Range{
		IPv4: netip.MustParsePrefix("28.255.0.0/16"),
		IPv6: netip.MustParsePrefix("2d00:6567:7265:7373::/112"),
	}
}

// Own returns the addresses that a captured sandbox has itself. No policy opens the first, and the second leads nowhere.
func Own() (ipv4, ipv6 netip.Addr) {
	return netip.MustParseAddr("100.127.0.1"), netip.MustParseAddr("2d00:6567:7265:7373::1")
}

// reserved is the number of addresses at the start of a prefix that stand for no name.
const reserved = 256

// capacity returns how many names fit, for both families.
func (r Range) capacity() int {
	n := maxBindings
	for _, p := range []netip.Prefix{r.IPv4, r.IPv6} {
		if bits := p.Addr().BitLen() - p.Bits(); p.IsValid() && bits < 31 {
			n = min(n, 1<<bits-reserved)
		}
	}
	return max(n, 0)
}

// index returns the position of addr in the prefix of its family.
func (r Range) index(addr netip.Addr) (n uint32, ok bool) {
	if n, ok = indexOf(r.IPv4, addr); ok {
		return n, true
	}
	return indexOf(r.IPv6, addr)
}

// offset returns the nth address of p, or the zero Addr if p is too small.
func offset(p netip.Prefix, n uint32) netip.Addr {
	if !p.IsValid() {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As16()
	for i := len(b) - 1; n > 0 && i >= 0; i-- {
		n += uint32(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	a := netip.AddrFrom16(b)
	if p.Addr().Is4() {
		a = a.Unmap()
	}
	if !p.Contains(a) {
		return netip.Addr{}
	}
	return a
}

// indexOf is the inverse of offset.
func indexOf(p netip.Prefix, addr netip.Addr) (n uint32, ok bool) {
	if !p.IsValid() || !p.Contains(addr) {
		return 0, false
	}
	first, b := p.Masked().Addr().As16(), addr.As16()
	for i := range b {
		d := b[i] - first[i] // the host part of a masked prefix is zero
		if i < len(b)-4 && d != 0 {
			return 0, false
		}
		n = n<<8 | uint32(d)
	}
	return n, true
}
