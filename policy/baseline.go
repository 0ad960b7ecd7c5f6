package policy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// BaselineOptions say what a [Baseline] protects beside special-purpose space,
// and what the operator excepted from it. The functions are called from many
// goroutines, several times a decision: they have to answer from memory.
type BaselineOptions struct {
	// Self returns the host's own addresses as they are now. It is asked for
	// each address that no other reason refuses. Nil: none are known.
	Self func() []netip.Addr

	// Listeners returns where egressd itself listens. One on 0.0.0.0 or ::
	// stands for its port on loopback and on every address of Self.
	Listeners func() []netip.AddrPort

	// Operator returns where only an operator may connect to egressd, as Listeners
	// does. Nothing opens it. It is asked for special-purpose addresses and the host's own alone, and
	// may look into a folder. Nil: nowhere.
	Operator func() []netip.AddrPort

	// Exceptions open special-purpose space, each for just what it names:
	// the patterns of allow rules. Those for which [InSpecialSpace] is false
	// open nothing. None opens loopback, link-local, metadata, or the host's
	// own addresses.
	Exceptions []Pattern

	// Unsafe opens all of that: the patterns of "unsafe_allow". A prefix
	// counts if it lies inside special-purpose space, a single address
	// always does. Metadata services, and the addresses that stand inside
	// IPv6 ones, are opened by the single address alone, egressd's listeners
	// by a single address with a single port.
	Unsafe []Pattern
}

// A Baseline is the [Evaluator] of what no policy opens: special-purpose
// addresses and names, the host itself, and egressd itself. It denies or
// abstains, never allows, and is safe for concurrent use.
//
// A special-use name is refused before anything resolves it. An exception for
// the name leaves its addresses to be judged on their own: one that is
// refused refuses the name.
type Baseline struct {
	self       func() []netip.Addr
	listeners  func() []netip.AddrPort
	operator   func() []netip.AddrPort
	exceptions []Pattern
	unsafe     []Pattern
}

// NewBaseline returns a baseline that follows b.Self and b.Listeners.
func NewBaseline(b BaselineOptions) *Baseline {
	if b.Self == nil {
		b.Self = func() []netip.Addr { return nil }
	}
	if b.Listeners == nil {
		b.Listeners = func() []netip.AddrPort { return nil }
	}
	if b.Operator == nil {
		b.Operator = func() []netip.AddrPort { return nil }
	}
	opensNothing := func(p Pattern) bool { return !InSpecialSpace(p) && !p.isSingle() }
	return &Baseline{
		self:       b.Self,
		listeners:  b.Listeners,
		operator:   b.Operator,
		exceptions: slices.DeleteFunc(slices.Clone(b.Exceptions), opensNothing),
		unsafe:     slices.DeleteFunc(slices.Clone(b.Unsafe), opensNothing),
	}
}

// InSpecialSpace reports whether all that p names lies in special-purpose
// space, so that in an allow rule it is an exception to the baseline. A prefix
// that also holds public space, such as 0.0.0.0/0 or 8.0.0.0/6, does not.
func InSpecialSpace(p Pattern) bool {
	switch p.kind {
	case exactHost:
		return classOfName(p.name) != ""
	case hostsBelow:
		return classBelow(p.name) != ""
	case addresses:
		return prefixClass(p.prefix) != ""
	}
	return false
}

func (p Pattern) isSingle() bool { return p.kind == addresses && p.prefix.IsSingleIP() }

// Evaluate judges the name, its aliases, and every address that is known, and
// refuses a destination that is not as [ParseDestination] makes it. Its error
// is always nil.
func (b *Baseline) Evaluate(_ context.Context, r *Request) (Decision, error) {
	to := wanted{port: r.Destination.Port, portless: r.DNS != nil}
	d := &r.Destination
	text, addr, problem := parseHost(d.Host)
	switch {
	case problem != "", text != d.Host, addr != d.Addr:
		return Decision{Class: MalformedHost, Rule: "baseline", Layer: Builtin, Reason: "the host is not in canonical form"}, nil
	case addr.IsValid():
		return b.judgeLiteral(d, to), nil
	}
	return b.judgeName(d, to), nil
}

// Wanted is the port that a request asks for. A DNS question asks for none, so
// every pattern counts for it, whatever its ports.
type wanted struct {
	port     uint16
	portless bool
}

func (to wanted) in(s portSet) bool { return to.portless || s.has(to.port) }

func (b *Baseline) judgeLiteral(d *Destination, to wanted) Decision {
	class := b.refusedAddr(d.Addr, to)
	if class == "" {
		class = b.refusedAmong(d.Addrs, to)
	}
	if class == "" {
		return Decision{Verdict: Abstain}
	}
	return denyAddress(class, fmt.Sprintf("%s is not open to sandboxes (%s)", d.Host, class))
}

func (b *Baseline) judgeName(d *Destination, to wanted) Decision {
	if class := b.refusedName(d.Host, to); class != "" {
		return denyAddress(class, fmt.Sprintf("%s is not open to sandboxes (%s)", d.Host, class))
	}
	for _, alias := range d.Aliases {
		if class := b.refusedName(alias, to); class != "" {
			return denyAddress(class, fmt.Sprintf("%s leads to a name that is not open to sandboxes", d.Host))
		}
	}
	if class := b.refusedAmong(d.Addrs, to); class != "" {
		return denyAddress(class, fmt.Sprintf("%s leads to an address that is not open to sandboxes", d.Host))
	}
	return Decision{Verdict: Abstain}
}

func denyAddress(class AddressClass, reason string) Decision {
	return Decision{Class: AddressDenied, Rule: "baseline", Layer: Builtin, Reason: reason, AddressClass: string(class)}
}

// refusedName returns the class that a name is refused for, or "".
func (b *Baseline) refusedName(name string, to wanted) AddressClass {
	class := classOfName(name)
	if class == "" {
		return ""
	}
	opens := func(p Pattern) bool {
		return to.in(p.ports) && p.CoversName(name) && (p.kind == exactHost || class != AddrMetadata)
	}
	if b.opened(class, opens) {
		return ""
	}
	return class
}

// refusedAmong returns the class of the first address that is refused, or "".
func (b *Baseline) refusedAmong(addrs []netip.Addr, to wanted) AddressClass {
	for _, addr := range addrs {
		if class := b.refusedAddr(addr, to); class != "" {
			return class
		}
	}
	return ""
}

// refusedAddr returns the class that an address is refused for, or "".
func (b *Baseline) refusedAddr(addr netip.Addr, to wanted) AddressClass {
	class, embedded := classify(addr)
	own := b.isSelf(addr)
	if own && !class.guarded() {
		class, embedded = AddrSelf, EmbeddedIPv4(addr).IsValid()
	}
	local := own || class == AddrLoopback || class == AddrUnspecified
	if class != "" && isListener(b.operator(), addr, local, to) || isListener(b.listeners(), addr, local, to) && !b.namesListener(addr, to) {
		return AddrSelf
	}
	if class == "" {
		return ""
	}
	alone := embedded || class == AddrMetadata
	opens := func(p Pattern) bool {
		return to.in(p.ports) && p.CoversAddr(addr) && (p.isSingle() || !alone)
	}
	if b.opened(class, opens) {
		return ""
	}
	return class
}

func (b *Baseline) opened(class AddressClass, opens func(Pattern) bool) bool {
	if slices.ContainsFunc(b.unsafe, opens) {
		return true
	}
	return !class.guarded() && slices.ContainsFunc(b.exceptions, opens)
}

// isSelf reports whether packets for addr, or for the IPv4 address inside it,
// end at this host.
func (b *Baseline) isSelf(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	inner := EmbeddedIPv4(addr)
	for _, own := range b.self() {
		own = own.Unmap().WithZone("")
		if own == addr || own == inner && inner.IsValid() {
			return true
		}
	}
	return false
}

// isListener reports whether a connection to addr, which is local where it
// ends at this host, would reach one of listeners. What Linux is told to send to
// 0.0.0.0 or :: goes to loopback.
func isListener(listeners []netip.AddrPort, addr netip.Addr, local bool, to wanted) bool {
	if to.portless {
		return false
	}
	addr = addr.Unmap().WithZone("")
	inner := EmbeddedIPv4(addr)
	anywhere := addr.IsUnspecified() || inner.IsValid() && inner.IsUnspecified()
	return slices.ContainsFunc(listeners, func(l netip.AddrPort) bool {
		at := l.Addr().Unmap().WithZone("")
		reached := at == addr || at == inner || anywhere || local && at.IsUnspecified()
		return reached && l.Port() == to.port
	})
}

// namesListener reports whether the operator opened this address and port by
// name.
func (b *Baseline) namesListener(addr netip.Addr, to wanted) bool {
	return slices.ContainsFunc(b.unsafe, func(p Pattern) bool {
		return p.isSingle() && p.ports == portSet{to.port, to.port} && p.CoversAddr(addr)
	})
}
