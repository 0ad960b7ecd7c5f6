package egress

import (
	"container/list"
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A SyntheticRange is where addresses come from that stand for names inside
// sandboxes whose connections are captured: a program asks for a name, gets an
// address that nobody else has, and connects to it; so the name is known when
// the connection arrives, also the name that is denied. The addresses mean
// nothing outside, and nothing is ever sent to them.
//
// Of each prefix the first 256 addresses stand for no name: the sandbox's own
// are among them. The zero value is no range.
type SyntheticRange struct{ IPv4, IPv6 netip.Prefix }

// DefaultSynthetic is the range that no configuration replaces.
//
// Programs, and the guards against private addresses that many of them have,
// treat both as ordinary: 100.64.0.0/10 is shared space (RFC 6598), none of the
// private ranges of RFC 1918 and no link-local one, and 2d00::/8 is global
// unicast that IANA keeps unallocated. 198.18.0.0/15 is not used: proxies inside
// sandboxes take it for private, or for their own.
func DefaultSynthetic() SyntheticRange {
	return SyntheticRange{
		IPv4: netip.MustParsePrefix("100.127.0.0/16"),
		IPv6: netip.MustParsePrefix("2d00:6567:7265:7373::/112"),
	}
}

// Own returns the addresses of the range that a sandbox itself has.
func (s SyntheticRange) Own() (ipv4, ipv6 netip.Addr) {
	return offset(s.IPv4, 1), offset(s.IPv6, 1)
}

const (
	reserved      = 256
	bindingsMost  = 16 << 10
	bindingKept   = 10 * time.Minute // from its last use; longer than SyntheticTTL
	oldestLooked  = 64
	sandboxesMost = 4096
)

// SyntheticTTL is how long an answer with a synthetic address may be kept by who
// asked.
const SyntheticTTL = time.Minute

// offset returns the nth address of p, or the zero Addr where p has not so many.
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

// indexOf is offset the other way round: what addr is in p.
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

// room is how many names fit, for both families.
func (s SyntheticRange) room() int {
	n := bindingsMost
	for _, p := range []netip.Prefix{s.IPv4, s.IPv6} {
		if bits := p.Addr().BitLen() - p.Bits(); p.IsValid() && bits < 31 {
			n = min(n, 1<<bits-reserved)
		}
	}
	return max(n, 0)
}

// bindings are the names of one sandbox.
type bindings struct {
	mu      sync.Mutex
	byName  map[string]*list.Element // of *binding
	byIndex []*list.Element
	used    list.List // the one that was used longest ago first
}

type binding struct {
	name  string
	index uint32
	used  time.Time
}

// assign binds name to an index and returns the index. If all are taken, assign reuses the least recently used one, except
// those with a valid answer and those in busy.
func (b *bindings) assign(name string, room int, now time.Time, busy func() map[string]bool) (uint32, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.byName[name]; e != nil {
		return b.touch(e, now).index, true
	}
	if b.byName == nil {
		b.byName = map[string]*list.Element{}
	}
	if len(b.byIndex) < room {
		e := b.used.PushBack(&binding{name: strings.Clone(name), index: uint32(len(b.byIndex)), used: now})
		b.byIndex = append(b.byIndex, e)
		b.byName[name] = e
		return e.Value.(*binding).index, true
	}
	e := b.spare(now, busy)
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

// spare returns the binding to replace, or nil.
func (b *bindings) spare(now time.Time, busy func() map[string]bool) *list.Element {
	e := b.used.Front()
	if e == nil || now.Sub(e.Value.(*binding).used) < bindingKept {
		return nil
	}
	names := busy()
	for range oldestLooked {
		switch {
		case e == nil || now.Sub(e.Value.(*binding).used) < bindingKept:
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

// name returns what index is bound to, or "".
func (b *bindings) name(index uint32, now time.Time) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if int64(index) >= int64(len(b.byIndex)) {
		return ""
	}
	return b.touch(b.byIndex[index], now).name
}

// bindingsOf returns the names of a sandbox, or nil where there is no room for
// one more sandbox.
func (g *Gate) bindingsOf(sandbox string) *bindings {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.bound[sandbox]
	if b == nil && len(g.bound) < sandboxesMost {
		if g.bound == nil {
			g.bound = map[string]*bindings{}
		}
		b = new(bindings)
		g.bound[sandbox] = b
	}
	return b
}

// busyNames are the hosts that a sandbox has flows to.
func (g *Gate) busyNames(sandbox string) map[string]bool {
	names := map[string]bool{}
	for _, f := range g.openFlows() {
		f.mu.Lock()
		if f.request.Sandbox.Name == sandbox {
			names[f.request.Destination.Host] = true
		}
		f.mu.Unlock()
	}
	return names
}

// An Assignment is the synthetic addresses of one name in one sandbox. Either
// may be the zero Addr, where the range has none of its family.
type Assignment struct{ IPv4, IPv6 netip.Addr }

// Assign decides whether peer may ask for the addresses of q's canonical name, records the decision, and returns placeholder
// addresses. A denied name gets them, too: a connection to such an address is answered with the reason. Assign resolves
// nothing. The error is always a [*Refusal]: for other record types, unknown peers, a failed record, or if no
// address is free.
func (g *Gate) Assign(ctx context.Context, peer sandbox.Peer, q policy.Question) (Assignment, error) {
	r := policy.Request{Via: policy.ViaDNS, Destination: policy.Destination{Host: q.Name}, DNS: &q}
	f := g.newFlow(peer, r)
	who, err := g.config.Sandboxes.Identify(peer)
	switch {
	case err != nil:
		return Assignment{}, f.refuse(policy.Decision{Class: policy.UnknownSandbox, Rule: "identity", Layer: policy.Builtin, Reason: err.Error()})
	case g.shut.Load():
		return Assignment{}, f.refuse(stopping)
	}
	f.request.Sandbox = who
	if q.Type != "A" && q.Type != "AAAA" {
		return Assignment{}, f.refuse(typeDenied)
	}
	index, ok := g.bind(who.Name, q.Name)
	if !ok {
		return Assignment{}, f.refuse(noneFree)
	}
	_ = f.decide(ctx, f.request) // either way there is an answer
	if refusal := f.recordDecision(); refusal != nil {
		return Assignment{}, refusal
	}
	s := g.config.Synthetic
	return Assignment{offset(s.IPv4, reserved+index), offset(s.IPv6, reserved+index)}, nil
}

func (g *Gate) bind(sandbox, name string) (uint32, bool) {
	b := g.bindingsOf(sandbox)
	if b == nil {
		return 0, false
	}
	return b.assign(name, g.config.Synthetic.room(), time.Now(), func() map[string]bool { return g.busyNames(sandbox) })
}

// Assigned returns the name that addr stands for in peer's sandbox. synthetic
// reports whether addr is in the range at all: without a name, it stands for
// nothing there, or no longer.
func (g *Gate) Assigned(peer sandbox.Peer, addr netip.Addr) (name string, synthetic bool) {
	s := g.config.Synthetic
	index, ok := indexOf(s.IPv4, addr)
	if !ok {
		index, ok = indexOf(s.IPv6, addr)
	}
	if !ok {
		return "", false
	}
	who, err := g.config.Sandboxes.Identify(peer)
	if err != nil || index < reserved {
		return "", true
	}
	if b := g.bindingsOf(who.Name); b != nil {
		name = b.name(index-reserved, time.Now())
	}
	return name, true
}

var (
	typeDenied = policy.Decision{Class: policy.DNSTypeDenied, Rule: "dns", Layer: policy.Builtin, Reason: "only addresses may be asked for"}
	noneFree   = policy.Decision{Class: policy.DNSBudget, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has asked for too many names in too short a time"}
)
