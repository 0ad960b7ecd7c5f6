package policy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Change is what another policy does with a request.
type Change string

// The changes, those first that let more out.
const (
	Opens      Change = "opens"      // it allows what was denied or asked about
	Asks       Change = "asks"       // it asks a person about what was denied or allowed
	Loosens    Change = "loosens"    // it allows more inside: any protocol, ECH, an upgrade, more bytes, or requests unseen
	Credential Change = "credential" // another credential or field of egressd, or none, goes with the request
	Tightens   Change = "tightens"   // it allows less inside
	Closes     Change = "closes"     // it denies what was allowed or asked about
)

var changes = []Change{Opens, Asks, Loosens, Credential, Tightens, Closes}

// A Difference is a set of requests that two policies decide differently, and one request of it.
type Difference struct {
	Change  Change
	Beyond  bool    // the boundary does not allow what is opened, asked or loosened
	Sandbox string  // empty: it holds for each sandbox that was compared
	Hosts   Pattern // the hosts, but for those that another line of either policy names more closely
	Through string  // an address or a name that the hosts have to lead to, or empty
	Ports   []uint16
	Methods []string // empty: a tunnel as a whole
	Request Request  // one of the requests, which both policies have decided

	Was, Now Decision // about Request
}

// Sides are what is compared.
type Sides struct {
	Old, New  *Policy
	Sandboxes []Sandbox

	// Within is a boundary for what New opens beside Old. Nil: there is none.
	Within *Policy

	// About limits the comparison to hosts that one of these patterns may hold. That is enough if New has only grants beside Old
	// that allow these hosts, with OverDeny unset. Lines of a file may also count for names that lead there. Nil: all hosts are
	// compared.
	About []Pattern
}

// A Comparison is what differs between two policies.
type Comparison struct {
	Differences []Difference

	// Unsure says why there may be more differences. Each difference that is listed is one in any case.
	Unsure []string
}

// Compare decides one request of each kind that the rules tell apart, by both policies. Kinds are made of hosts, what a
// name leads to, ports, methods and paths. For policies of lists alone the answer is exact; otherwise Unsure says what
// was not tried. Compare stops when ctx is done, and says so in Unsure.
func (s Sides) Compare(ctx context.Context) Comparison {
	c := comparison{ctx: ctx, Sides: s, left: maxComparing, found: map[differenceKey]*Difference{}}
	c.ground()
	for i := range s.Sandboxes {
		for _, cell := range c.cells {
			c.cell(&s.Sandboxes[i], cell)
		}
	}
	return c.result()
}

// maxComparing bounds the decisions of a comparison, which take some seconds.
const maxComparing = 1 << 21

// maxComparedHosts bounds the lines of a file of hosts that are tried one by one.
const maxComparedHosts = 20_000

// A comparison is one run of [Sides.Compare].
type comparison struct {
	Sides
	ctx      context.Context
	left     int // decisions, of maxComparing
	lines    *ground
	refusing []*placed // of lines, those that deny or ask about some hosts
	cells    []Pattern
	through  []Destination // addresses and names that a host may lead to
	unsure   []string
	found    map[differenceKey]*Difference
	order    []differenceKey
}

// threeDecisions are the decisions about one request: those of [Sides].
type threeDecisions struct{ was, now, within Decision }

// A differenceKey is what the requests of one difference have in common.
type differenceKey struct {
	change   Change
	beyond   bool
	sandbox  string
	hosts    Pattern
	through  string
	was, now string // verdict and rule
}

// ground collects the lines of both policies, and the patterns that have to be tried.
func (c *comparison) ground() {
	var all Lists
	sides := []*Policy{c.Old, c.New}
	if c.Within != nil {
		sides = append(sides, c.Within)
	}
	for _, p := range sides {
		if p == nil || p.parts == nil {
			c.doubt("one of the policies is not made of rules that can be listed")
			continue
		}
		c.collect(&all, p.parts)
	}
	g := newGround(&all)
	if slices.ContainsFunc(g.lines, func(l *placed) bool {
		return len(l.further) > 0 && (c.meets(l.host) || l.effect != Allow || l.host.kind == addresses)
	}) {
		c.doubt("rules about header fields, queries or git are tried with one request alone")
	}
	g.fresh = "any-host"
	for slices.ContainsFunc(g.lines, func(l *placed) bool { return strings.Contains(l.host.name, g.fresh) }) {
		g.fresh += "-x"
	}
	c.lines = g
	for _, l := range g.lines {
		if l.effect != Allow && l.host.kind != anyHost {
			c.refusing = append(c.refusing, l)
		}
	}
	seen := map[Pattern]bool{}
	add := func(p Pattern) {
		if !seen[p] && c.meets(p) {
			seen[p] = true
			c.cells = append(c.cells, p)
		}
	}
	for _, l := range g.lines {
		add(l.host)
		if c.judgesWhatNamesLeadTo(l) {
			c.through = append(c.through, g.witnesses(l.host)...)
		}
	}
	add(Pattern{kind: anyHost})
	space, _ := specialSpace()
	if space != nil {
		for prefix := range space.All() {
			g.prefixes = append(g.prefixes, prefix)
			add(Pattern{kind: addresses, prefix: prefix})
		}
	}
	g.sortPrefixes()
	c.through = slices.CompactFunc(c.through, func(a, b Destination) bool { return a.Host == b.Host })
}

// judgesWhatNamesLeadTo reports whether a line matters where a name leads to one of its hosts: as a denial or a question,
// as an exception to the baseline, or because it names some hosts of a denial more closely.
func (c *comparison) judgesWhatNamesLeadTo(l *placed) bool {
	if l.host.kind == anyHost || c.isOver() {
		return false
	}
	return l.host.kind == addresses || l.effect != Allow || slices.ContainsFunc(c.refusing, func(m *placed) bool { return hostsMeet(l.host, m.host) })
}

func (c *comparison) collect(all *Lists, b *Parts) {
	lists := []*Lists{&b.Lists, b.Organisation}
	for _, one := range b.Projects {
		lists = append(lists, &one.Lists)
	}
	for _, l := range lists {
		if l == nil {
			continue
		}
		all.Allow = slices.Concat(all.Allow, l.Allow, l.UnsafeAllow, l.Presets, l.Ceiling)
		all.Deny, all.Ask = append(all.Deny, l.Deny...), append(all.Ask, l.Ask...)
		for i := range l.HostLists {
			c.collectListed(all, &l.HostLists[i])
		}
	}
	for _, s := range b.Sandboxes {
		all.Allow = slices.Concat(all.Allow, s.Allow, s.AlsoAllow)
		all.Deny = append(all.Deny, s.Deny...)
	}
	for i := range b.Grants {
		all.Allow = append(all.Allow, b.Grants[i].Line(b.Grants[i].ID))
	}
	for _, p := range b.Never {
		all.Allow = append(all.Allow, Rule{Pattern: p.EveryPort()})
	}
	if b.slow() {
		c.doubt("Rego decides as well, and may tell apart requests that were not tried")
	}
}

func (c *comparison) collectListed(all *Lists, file *ListedHosts) {
	if file.Hosts.count > maxComparedHosts {
		c.doubt(fmt.Sprintf("%s has %d hosts, which were not tried one by one", file.File, file.Hosts.count))
		return
	}
	for line, p := range file.Hosts.All() {
		r := Rule{Pattern: p, ID: fmt.Sprintf("%s:%d", file.ID, line)}
		if file.Effect == Allow {
			all.Allow = append(all.Allow, r)
		} else {
			all.Deny = append(all.Deny, r)
		}
	}
}

// meets reports whether the comparison is about some of the hosts of p.
func (c *comparison) meets(p Pattern) bool {
	return len(c.About) == 0 || slices.ContainsFunc(c.About, func(about Pattern) bool { return hostsMeet(p, about) })
}

// isOver reports whether the comparison has used up its decisions or its time.
func (c *comparison) isOver() bool { return c.left < 0 || c.ctx.Err() != nil }

func (c *comparison) doubt(why string) {
	if !slices.Contains(c.unsure, why) {
		c.unsure = append(c.unsure, why)
	}
}

// cell compares the decisions about hosts that no closer pattern than p names.
func (c *comparison) cell(who *Sandbox, p Pattern) {
	for _, host := range c.lines.witnesses(p) {
		base := Request{Sandbox: *who, Via: ViaConnect, Destination: host, Usage: new(Usage)}
		about := c.lines.at(&host)
		if host.Addr.IsValid() { // the registries divide the hosts of a line further
			p = Pattern{kind: anyHost}
			if len(about) > 0 {
				p = about[0].host
			}
		}
		c.kinds(&base, p, "", about)
		if host.Addr.IsValid() {
			continue
		}
		for _, to := range c.through {
			if c.isOver() {
				return
			}
			if to.Host == host.Host {
				continue
			}
			led := base
			if to.Addr.IsValid() {
				led.Destination.Addrs = []netip.Addr{to.Addr}
			} else {
				led.Destination.Aliases = []string{to.Host}
			}
			c.kinds(&led, p, to.Host, append(slices.Clone(about), c.lines.at(&to)...))
		}
	}
}

// kinds compares one request of each kind, with the destination of r. If that leads through another host, only those
// count that would be decided otherwise if it led to nothing special.
func (c *comparison) kinds(r *Request, hosts Pattern, through string, about []*placed) {
	methods, paths := c.methodKinds(about), c.pathKinds(about)
	for _, port := range c.portKinds(about) {
		one := *r
		one.Destination.Port = port
		if c.isOver() {
			c.left = -1
			return
		}
		tunnel := c.each(func(p *Policy, _ Decision) Decision { return c.decide(p, &one) }, threeDecisions{})
		was, now := &tunnel.was, &tunnel.now
		if through != "" && port != 80 && was.Verdict == Deny && now.Verdict == Deny {
			continue
		}
		if !seen(&one, was, now, about) {
			c.note(&one, hosts, through, tunnel)
			continue
		}
		before := len(c.order)
		for _, method := range methods {
			for _, path := range paths {
				request := requestIn(&one, method, path)
				c.note(&request, hosts, through, c.each(func(p *Policy, tunnel Decision) Decision { return c.inside(&request, p, tunnel) }, tunnel))
			}
		}
		switch {
		case len(c.order) > before || port == 80:
		case (was.Verdict == Ask) != (now.Verdict == Ask): // a person is asked, or no longer, and nothing passes in the tunnel
			c.note(&one, hosts, through, tunnel)
		case through == "" && was.Verdict != now.Verdict && min(was.Verdict, now.Verdict) == Inspect:
			c.keep(seenChange(was), &one, hosts, "", tunnel)
		}
	}
}

// each returns the threeDecisions of all sides. ask is given what the side said of the tunnel.
func (c *comparison) each(ask func(*Policy, Decision) Decision, tunnel threeDecisions) threeDecisions {
	o := threeDecisions{was: ask(c.Old, tunnel.was), now: ask(c.New, tunnel.now)}
	if c.Within != nil {
		o.within = ask(c.Within, tunnel.within)
	}
	return o
}

// seenChange says whether a tunnel that nobody looks into opens more than one that egressd decrypts and whose requests all pass.
func seenChange(was *Decision) Change {
	if was.Verdict == Inspect {
		return Loosens
	}
	return Tightens
}

// seen reports whether one of the policies decides the requests of a tunnel one by one, maybe after a person has approved
// the tunnel.
func seen(r *Request, was, now *Decision, about []*placed) bool {
	conditional := func(m *placed) bool { return m.conditional() }
	return was.Verdict == Inspect || now.Verdict == Inspect || r.Destination.Port == 80 ||
		(was.Verdict == Ask || now.Verdict == Ask) && slices.ContainsFunc(about, conditional)
}

// decide decides what a name leads to only if the name itself passes: otherwise nobody resolves it.
func (c *comparison) decide(p *Policy, r *Request) Decision {
	c.left--
	if len(r.Destination.Addrs)+len(r.Destination.Aliases) == 0 {
		return p.Decide(c.ctx, r)
	}
	bare := *r
	bare.Destination.Addrs, bare.Destination.Aliases = nil, nil
	if d := p.Decide(c.ctx, &bare); d.Verdict == Deny {
		return d
	}
	return p.Decide(c.ctx, r)
}

// inside decides a request by p, which has decided its tunnel. Where p does not look into the tunnel, that counts. A
// tunnel that a person approves may still be one whose requests are decided.
func (c *comparison) inside(r *Request, p *Policy, tunnel Decision) Decision {
	switch {
	case r.Destination.Port == 80 || tunnel.Verdict == Inspect:
		return c.decide(p, p.written(r))
	case tunnel.Verdict == Ask:
		if d := c.decide(p, p.written(r)); d.Verdict == Deny {
			return d
		}
	}
	return tunnel
}

// requestIn is a request in a tunnel, or in the clear where its port is that of plain HTTP.
func requestIn(tunnel *Request, method, path string) Request {
	r := *tunnel
	r.HTTP, r.Protocol = &HTTPRequest{Method: method, Path: path}, ProtocolHTTP
	if r.Destination.Port == 80 {
		r.Via = ViaHTTP
		return r
	}
	r.TLS = &ClientHello{Inspected: true}
	if !r.Destination.Addr.IsValid() {
		r.TLS.ServerName = r.Destination.Host
	}
	return r
}

// note keeps a difference, if there is one.
func (c *comparison) note(r *Request, hosts Pattern, through string, o threeDecisions) {
	if change := changeOf(&o.was, &o.now); change != "" {
		c.keep(change, r, hosts, through, o)
	}
}

func (c *comparison) keep(change Change, r *Request, hosts Pattern, through string, o threeDecisions) {
	was, now := o.was, o.now
	hosts.ports = portSet{}
	key := differenceKey{change: change, sandbox: r.Sandbox.Name, hosts: hosts, was: verdictAndRule(&was), now: verdictAndRule(&now)}
	key.beyond = c.Within != nil && exceeds(&now, &was) && exceeds(&now, &o.within)
	if through != "" {
		if c.isBare(change, key.beyond, r) {
			return
		}
		key.through = through
	}
	d := c.found[key]
	if d == nil {
		d = &Difference{Change: change, Beyond: key.beyond, Sandbox: r.Sandbox.Name, Hosts: hosts, Through: through, Request: *r, Was: was, Now: now}
		c.found[key] = d
		c.order = append(c.order, key)
	}
	if !slices.Contains(d.Ports, r.Destination.Port) {
		d.Ports = append(d.Ports, r.Destination.Port)
	}
	if r.HTTP != nil && !slices.Contains(d.Methods, r.HTTP.Method) {
		d.Methods = append(d.Methods, r.HTTP.Method)
	}
}

func verdictAndRule(d *Decision) string {
	return d.Verdict.Action() + " " + string(d.Layer) + " " + d.Rule
}

// isBare reports whether a request changes in the same way if its host leads to nothing special. There, the policies may not
// look into the tunnel.
func (c *comparison) isBare(change Change, beyond bool, r *Request) bool {
	bare := *r
	bare.Destination.Addrs, bare.Destination.Aliases = nil, nil
	tunnel := bare
	tunnel.HTTP, tunnel.TLS, tunnel.Protocol = nil, nil, ProtocolUnseen
	o := c.each(func(p *Policy, _ Decision) Decision { return c.decide(p, &tunnel) }, threeDecisions{})
	if bare.HTTP != nil {
		o = c.each(func(p *Policy, tunnel Decision) Decision { return c.inside(&bare, p, tunnel) }, o)
	}
	return changeOf(&o.was, &o.now) == change && (!beyond || exceeds(&o.now, &o.within))
}

// exceeds reports whether d lets more out than o: allows or asks what o denies, allows what o asks, or allows more inside.
func exceeds(d, o *Decision) bool {
	change := changeOf(o, d)
	return change == Opens || change == Loosens || change == Asks && o.Verdict == Deny
}

// changeOf compares two decisions about one request.
func changeOf(was, now *Decision) Change {
	switch before, after := was.Verdict.Action(), now.Verdict.Action(); {
	case before != after && now.Verdict >= Inspect:
		return Opens
	case before != after && now.Verdict == Ask:
		return Asks
	case before != after:
		return Closes
	case now.Verdict < Inspect:
		return ""
	}
	looser := func(a, b *Decision) bool {
		return a.Set == "" && b.Set != "" || a.AnyProtocol && !b.AnyProtocol || a.ECH && !b.ECH || a.Upgrade && !b.Upgrade ||
			b.MaxBytesUp > 0 && (a.MaxBytesUp == 0 || a.MaxBytesUp > b.MaxBytesUp)
	}
	switch {
	case looser(now, was):
		return Loosens
	case looser(was, now):
		return Tightens
	case was.Inject != now.Inject || was.Set != now.Set:
		return Credential
	}
	return ""
}

// result puts together what holds for all sandboxes, and sorts.
func (c *comparison) result() Comparison {
	if c.ctx.Err() != nil {
		c.doubt("the comparison was stopped")
	} else if c.left < 0 {
		c.doubt("the policies tell apart too many kinds of requests to try each")
	}
	of := map[differenceKey]int{}
	for key := range c.found {
		key.sandbox = ""
		of[key]++
	}
	result := Comparison{Unsure: c.unsure}
	for _, key := range c.order {
		d := c.found[key]
		if key.sandbox = ""; of[key] == len(c.Sandboxes) {
			if d.Sandbox != c.Sandboxes[0].Name {
				continue
			}
			d.Sandbox = ""
		}
		slices.Sort(d.Ports)
		slices.Sort(d.Methods)
		result.Differences = append(result.Differences, *d)
	}
	slices.SortStableFunc(result.Differences, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(slices.Index(changes, a.Change), slices.Index(changes, b.Change)),
			compareBool(a.Through != "", b.Through != ""), cmp.Compare(a.Sandbox, b.Sandbox), cmp.Compare(a.Hosts.String(), b.Hosts.String()))
	})
	return result
}

// portKinds returns one port of each stretch that the lines tell apart, those of the web first.
func (c *comparison) portKinds(about []*placed) []uint16 {
	all := Probes{Ports: []uint16{1}}
	for _, m := range about {
		all.addPorts(m.ports)
	}
	slices.Sort(all.Ports)
	all.Ports = slices.DeleteFunc(slices.Compact(all.Ports), func(port uint16) bool { return port == 443 || port == 80 })
	return append([]uint16{443, 80}, all.Ports...)
}

// methodKinds returns the methods that the lines name, each also in lower case, and one that none names.
func (c *comparison) methodKinds(about []*placed) (all []string) {
	named := map[string]bool{}
	for _, m := range about {
		for _, method := range m.methods {
			if !named[method] {
				named[method] = true
				all = append(all, method, strings.ToLower(method))
			}
		}
	}
	slices.Sort(all)
	for _, other := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"} {
		if !slices.ContainsFunc(all, func(method string) bool { return strings.EqualFold(method, other) }) {
			return append(all, other)
		}
	}
	return append(all, "OTHER")
}

// pathKinds returns one path of each kind that the lines tell apart, and one that can be read in two ways.
func (c *comparison) pathKinds(about []*placed) []string {
	paths := c.lines.pathKinds(&placed{}, about)
	if c.lines.left < 0 {
		c.left = -1
	}
	return paths
}
