package policy

import (
	"context"
	"net/netip"
)

// rules is the [Evaluator] of lists of rules. The most specific rule that is
// about a request decides it.
type rules struct {
	first   *index // asked before own, whatever that says; nil where there is nothing
	own     *index
	presets *index // asked where own is silent; nil where there are none
	layer   Layer
	silence silence
}

// A silence says what a list means for what none of its rules decides.
type silence uint8

const (
	// silent: no opinion, except that a destination of which only some requests
	// are allowed has its others denied.
	silent silence = iota
	// permissive: no opinion at all. Rules are exceptions from "default: allow".
	permissive
	// exhaustive: denied. The list is all there is.
	exhaustive
)

// addGrants adds temporary allows and denies. Grants of any other effect count as denies.
func (rs *rules) addGrants(grants []Grant, ech bool) {
	for i := range grants {
		g := &grants[i]
		if g.Effect == Allow {
			rs.own.add(g.Pattern, g.compile(ech))
			continue
		}
		if rs.first == nil {
			rs.first = newIndex()
		}
		denied := *g
		denied.Effect = Deny
		rs.first.add(g.Pattern, denied.compile(false))
	}
	if rs.first != nil {
		rs.first.finish()
	}
}

// addOwnGrants adds what is allowed to one sandbox alone to its own list.
func (rs *rules) addOwnGrants(grants []Grant, name string) {
	for i := range grants {
		if g := &grants[i]; g.Effect == Allow && g.Sandbox == name {
			rs.own.add(g.Pattern, g.compile(false))
		}
	}
}

// Evaluate judges the host that the sandbox asked for by every rule, and the
// addresses and aliases that it resolved to by those that deny or ask: an
// allowed address allows no name.
func (rs *rules) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	t := turn{ctx: ctx, sandbox: r.Sandbox.Name}
	defer t.end()
	s := rs.searchFor(r)
	s.turn = &t
	d := s.at(r, r.Destination.Port)
	rs.resolvedTo(r, func(s search) {
		s.turn = &t
		d = combine(d, restricting(s.at(r, r.Destination.Port)))
	})
	return d, t.err
}

// Probe implements [prober].
func (rs *rules) Probe(_ context.Context, r *Request, p *Probes) {
	s := rs.searchFor(r)
	s.probe(p)
	rs.resolvedTo(r, func(s search) { s.probe(p) })
}

// resolvedTo calls yield with a search for each address and alias that the destination of r
// was resolved to, and for the IPv4 address in each.
func (rs *rules) resolvedTo(r *Request, yield func(search)) {
	dst := &r.Destination
	about := func(alias string, addr netip.Addr) {
		yield(search{rules: rs, who: r.Sandbox.Name, buckets: rs.find(alias, addr), silence: permissive, resolved: true})
	}
	for _, addr := range dst.Addrs {
		if addr != dst.Addr {
			about("", addr)
		}
		if v4 := EmbeddedIPv4(addr); v4.IsValid() {
			about("", v4)
		}
	}
	if v4 := EmbeddedIPv4(dst.Addr); v4.IsValid() {
		about("", v4)
	}
	for _, alias := range dst.Aliases {
		about(alias, netip.Addr{})
	}
}

// searchFor finds the rules about the host that was asked for.
func (rs *rules) searchFor(r *Request) search {
	return search{rules: rs, who: r.Sandbox.Name, buckets: rs.find(r.Destination.Host, r.Destination.Addr), silence: rs.silence}
}

func (rs *rules) find(name string, addr netip.Addr) (b [3]*bucket) {
	if rs.first != nil {
		b[0] = rs.first.find(name, addr)
	}
	b[1] = rs.own.find(name, addr)
	if rs.presets != nil {
		b[2] = rs.presets.find(name, addr)
	}
	return b
}

// longest returns the length of the longest chain of rules for one host.
func (rs *rules) longest() (n int) {
	for _, ix := range []*index{rs.first, rs.own, rs.presets} {
		n += ix.longest()
	}
	return n
}
