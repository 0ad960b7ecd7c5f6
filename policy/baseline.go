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

	// AdminListeners returns where only an operator may connect to egressd, as Listeners
	// does. Nothing opens it. It is asked for special-purpose addresses and the host's own alone, and
	// may look into a folder. Nil: nowhere.
	AdminListeners func() []netip.AddrPort

	// Upstream is the upstream proxy of egressd, and UpstreamAt returns the addresses that its name is known
	// to have. Nothing opens it: behind it no rule holds. Nil: there is none, or none are known.
	Upstream   *Destination
	UpstreamAt func() []netip.AddrPort

	// Exceptions are allow rules that open special-purpose space, each for
	// its pattern, methods and paths alone. Those for which [InSpecialSpace] is false
	// open nothing. None opens loopback, link-local, metadata, or the host's
	// own addresses.
	Exceptions []Rule

	// Unsafe opens all of that: the rules of "unsafe_allow". A prefix
	// counts if it lies inside special-purpose space, a single address
	// always does. Metadata services, and the addresses that stand inside
	// IPv6 ones, are opened by the single address alone, egressd's listeners
	// by a single address with a single port.
	Unsafe []Rule
}

// A Baseline is the [Evaluator] of special-purpose addresses and names, the host itself, and egressd itself. Only the
// exceptions of the operator's files and unsafe_allow open some of them. It denies or
// abstains, never allows, and is safe for concurrent use.
//
// A special-use name is refused before anything resolves it. An exception for
// the name leaves its addresses to be judged on their own: one that is
// refused refuses the name.
type Baseline struct {
	self           func() []netip.Addr
	listeners      func() []netip.AddrPort
	adminListeners func() []netip.AddrPort
	upstream       *Destination
	upstreamAt     func() []netip.AddrPort
	exceptions     []exception
	unsafe         []exception
}

// An exception is an allow rule and the hosts that it opens.
type exception struct {
	hosts Pattern
	rule
}

func exceptions(rules []Rule) (all []exception) {
	for i := range rules {
		if p := rules[i].Pattern; InSpecialSpace(p) || p.isSingle() {
			all = append(all, exception{p, rules[i].compile(Allow, false)})
		}
	}
	return all
}

// NewBaseline returns a baseline that follows b.Self and b.Listeners.
func NewBaseline(b BaselineOptions) *Baseline {
	if b.Self == nil {
		b.Self = func() []netip.Addr { return nil }
	}
	if b.Listeners == nil {
		b.Listeners = func() []netip.AddrPort { return nil }
	}
	if b.AdminListeners == nil {
		b.AdminListeners = func() []netip.AddrPort { return nil }
	}
	if b.UpstreamAt == nil {
		b.UpstreamAt = func() []netip.AddrPort { return nil }
	}
	return &Baseline{
		upstream: b.Upstream, upstreamAt: b.UpstreamAt,
		self:           b.Self,
		listeners:      b.Listeners,
		adminListeners: b.AdminListeners,
		exceptions:     exceptions(b.Exceptions),
		unsafe:         exceptions(b.Unsafe),
	}
}

// Evaluate judges the name, its aliases, and every address that is known, and
// refuses a destination that is not as [ParseDestination] makes it. Its error
// is always nil.
func (b *Baseline) Evaluate(_ context.Context, r *Request) (Decision, error) {
	d := &r.Destination
	text, addr, problem := parseHost(d.Host)
	if problem != "" || text != d.Host || addr != d.Addr {
		return Decision{Class: MalformedHost, Rule: "baseline", Layer: Builtin, Reason: "the host is not in canonical form"}, nil
	}
	l := look{Baseline: b, r: r}
	return l.whole(), nil
}

// A look is one evaluation. It collects the conditions of the exceptions that open
// something, while the request is not known.
type look struct {
	*Baseline
	r         *Request
	needs     Needs
	allowedIf []string
}

// An obstacle says why a host is refused.
type obstacle struct {
	class AddressClass // "": it is not
	other *rule        // an exception that opens it for other requests, or nil
}

func (l *look) whole() Decision {
	d := &l.r.Destination
	if l.upstream != nil && l.leadsToUpstream() {
		return Decision{Class: AddressDenied, Rule: "baseline", Layer: Builtin, AddressClass: string(AddrSelf), Reason: d.Host + " is or leads to the upstream proxy, which egressd alone may use"}
	}
	if d.Host == InquiryHost || slices.Contains(d.Aliases, InquiryHost) {
		return Decision{Class: AddressDenied, Rule: "baseline", Layer: Builtin, AddressClass: string(AddrSelf), Reason: InquiryHost + " is egressd itself, which answers requests to " + InquiryURL + " in plain HTTP and nothing else"}
	}
	asked := obstacle{}
	if d.Addr.IsValid() {
		asked = l.addr(d.Addr)
	} else {
		asked = l.name(d.Host)
	}
	if asked.class != "" {
		return l.refuse(asked, "is", " ("+string(asked.class)+")")
	}
	for _, alias := range d.Aliases {
		if c := l.name(alias); c.class != "" {
			return l.refuse(c, "leads to a name that is", "")
		}
	}
	for _, addr := range d.Addrs {
		if c := l.addr(addr); c.class != "" {
			return l.refuse(c, "leads to an address that is", "")
		}
	}
	return Decision{Verdict: Abstain, Needs: l.needs, AllowedIf: l.allowedIf}
}

// leadsToUpstream reports whether a connection would reach the upstream proxy, by its name or by an address.
func (l *look) leadsToUpstream() bool {
	d := &l.r.Destination
	if d.Port != l.upstream.Port {
		return false
	}
	if d.Host == l.upstream.Host || slices.Contains(d.Aliases, l.upstream.Host) {
		return true
	}
	known := l.upstreamAt()
	if l.upstream.Addr.IsValid() {
		known = append([]netip.AddrPort{netip.AddrPortFrom(l.upstream.Addr, l.upstream.Port)}, known...)
	}
	is := func(addr netip.Addr) bool { return isListener(known, addr, false, d.Port) }
	return d.Addr.IsValid() && is(d.Addr) || slices.ContainsFunc(d.Addrs, is)
}

func (l *look) refuse(c obstacle, says, class string) Decision {
	host := l.r.Destination.Host
	d := Decision{Class: AddressDenied, Rule: "baseline", Layer: Builtin, AddressClass: string(c.class)}
	if c.other == nil {
		d.Reason = fmt.Sprintf("%s %s not open to sandboxes%s", host, says, class)
		return d
	}
	d.Class, d.AllowedIf = PathDenied, []string{c.other.words()}
	d.Reason = fmt.Sprintf("%s %s open to other requests only, by rule %s", host, says, c.other.id)
	m := c.other.missing(l.r.HTTP)
	switch {
	case !c.other.holdsMethod(l.r.HTTP.Method):
		d.Class = MethodDenied
	case m != nil && c.other.holdsPath(l.r.HTTP.Path):
		m.refuse(l.r.HTTP, &d)
		d.Reason += m.why(l.r.HTTP)
	}
	return d
}

func (l *look) name(name string) obstacle {
	class := classOfName(name)
	if class == "" {
		return obstacle{}
	}
	return l.unless(class, func(p Pattern) bool {
		return p.CoversName(name) && (p.kind == exactHost || class != AddrMetadata)
	})
}

func (l *look) addr(addr netip.Addr) obstacle {
	class, embedded := classify(addr)
	own := l.isSelf(addr)
	if own && !class.needsUnsafe() {
		class, embedded = AddrSelf, EmbeddedIPv4(addr).IsValid()
	}
	port := l.r.Destination.Port
	local := own || class == AddrLoopback || class == AddrUnspecified
	if class != "" && isListener(l.adminListeners(), addr, local, port) || isListener(l.listeners(), addr, local, port) && !l.namesListener(addr, port) {
		return obstacle{class: AddrSelf}
	}
	if class == "" {
		return obstacle{}
	}
	alone := embedded || class == AddrMetadata
	return l.unless(class, func(p Pattern) bool { return p.CoversAddr(addr) && (p.isSingle() || !alone) })
}

// unless says that a host of a class is closed unless an exception that covers it opens it.
func (l *look) unless(class AddressClass, covers func(Pattern) bool) obstacle {
	c := obstacle{class: class}
	if l.opens(l.unsafe, covers, &c) || !class.needsUnsafe() && l.opens(l.exceptions, covers, &c) {
		return obstacle{}
	}
	return c
}

// opens reports whether an exception opens a host to the request. Where the request or
// its body is not known yet, an exception with conditions on that opens it and is noted in l.needs. An
// exception for other requests is noted in c.
func (l *look) opens(exceptions []exception, covers func(Pattern) bool, c *obstacle) (opened bool) {
	var needs Needs
	tried := l.r.triedMethod()
	for i := range exceptions {
		e := &exceptions[i]
		switch {
		case !e.ports.has(l.r.Destination.Port) || !covers(e.hosts), tried != "" && !e.holdsMethod(tried):
		case !e.conditional():
			return true
		case l.r.HTTP == nil:
			needs |= e.needs() &^ NeedsCredential
			l.allowedIf = append(l.allowedIf, e.words())
		case e.awaits(l.r.HTTP) != 0:
			needs |= e.awaits(l.r.HTTP)
		case e.holds(l.r.HTTP) && (e.options.upgrade || !l.r.HTTP.Upgrade):
			return true
		case c.other == nil:
			c.other = &e.rule
		}
	}
	l.needs |= needs
	return needs != 0
}

// special reports whether only an exception opens an address.
func (b *Baseline) special(addr netip.Addr) bool { return ClassOf(addr) != "" || b.isSelf(addr) }

// Probe implements [prober].
func (b *Baseline) Probe(_ context.Context, _ *Request, p *Probes) {
	if b.upstream != nil {
		p.addPorts(portSet{b.upstream.Port, b.upstream.Port})
	}
	if len(b.exceptions)+len(b.unsafe) == 0 {
		return // whatever is closed is so at every port
	}
	for _, some := range [][]exception{b.exceptions, b.unsafe} {
		for i := range some {
			p.add(&some[i].rule)
		}
	}
	for _, l := range slices.Concat(b.listeners(), b.adminListeners()) {
		p.addPorts(portSet{l.Port(), l.Port()})
	}
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
// ends at this host, would reach one of listeners. Linux sends packets for 0.0.0.0
// and :: to loopback.
func isListener(listeners []netip.AddrPort, addr netip.Addr, local bool, port uint16) bool {
	addr = addr.Unmap().WithZone("")
	inner := EmbeddedIPv4(addr)
	anywhere := addr.IsUnspecified() || inner.IsValid() && inner.IsUnspecified()
	return slices.ContainsFunc(listeners, func(l netip.AddrPort) bool {
		at := l.Addr().Unmap().WithZone("")
		reached := at == addr || at == inner || anywhere || local && at.IsUnspecified()
		return reached && l.Port() == port
	})
}

// namesListener reports whether the operator opened this address and port by
// name.
func (b *Baseline) namesListener(addr netip.Addr, port uint16) bool {
	return slices.ContainsFunc(b.unsafe, func(e exception) bool {
		return e.hosts.isSingle() && e.ports == portSet{port, port} && e.hosts.CoversAddr(addr)
	})
}

// A namedBaseline is the baseline under a ceiling: it denies special addresses that the ceiling does not name, and reports
// the ceiling as the rule.
type namedBaseline struct{ *Baseline }

// Evaluate denies what the baseline would without the exceptions.
func (g namedBaseline) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	d, err := g.Baseline.Evaluate(ctx, r)
	if d.AddressClass == "" {
		return d, err
	}
	d.Rule, d.Layer = "ceiling", Organisation
	d.Reason = "no ceiling names that request to special-purpose space, so no layer below the organisation opens it"
	if d.Class == AddressDenied {
		d.Class = RuleDeny
		d.Reason = "no ceiling names that part of special-purpose space, so no layer below the organisation opens it"
	}
	return d, err
}
