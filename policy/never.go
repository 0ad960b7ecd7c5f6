package policy

import (
	"slices"
	"strings"
)

// neverIndex holds the patterns of "tls.never" of both files, or is nil where there
// are none.
func (f *File) neverIndex(organisation *File) *index {
	never := f.TLS.Never
	if organisation != nil {
		never = slices.Concat(never, organisation.TLS.Never)
	}
	if len(never) == 0 {
		return nil
	}
	ix := newIndex()
	for _, p := range never {
		ix.add(p, rule{ports: p.ports})
	}
	ix.finish()
	return ix
}

// checkNever refuses a rule that needs a look into tunnels that "tls.never"
// keeps shut: one of the two would not be kept.
func (r *reader) checkNever(f *File) {
	lists := [][]Rule{f.Allow, f.Deny, f.Ask, f.UnsafeAllow, f.Ceiling}
	for _, s := range f.Sandboxes {
		lists = append(lists, s.Allow, s.Deny)
	}
	for _, list := range lists {
		for i := range list {
			r.checkRuleNever(&list[i], f.TLS.Never)
		}
	}
}

func (r *reader) checkRuleNever(rule *Rule, never []Pattern) {
	keys := rule.inspecting()
	if len(keys) == 0 {
		return
	}
	for _, p := range never {
		if !tunnelsMeet(rule.Pattern, p) {
			continue
		}
		hint := "remove one of them"
		if rule.Inject == nil && rule.Pattern.ports.has(80) {
			hint += ", or narrow the rule to " + rule.Pattern.bracketed() + ":80"
		}
		r.failAt(rule.at, "%s: %s of %s needs a look into tunnels that tls.never keeps shut with %s; %s",
			rule.ID, strings.Join(keys, " and "), rule.Pattern, p, hint)
		return
	}
}

// inspecting returns the keys of the rule for which a tunnel is looked into.
func (r *Rule) inspecting() (keys []string) {
	for _, key := range []struct {
		name string
		set  bool
	}{{"methods", len(r.Methods) > 0}, {"paths", len(r.Paths) > 0}, {"upgrade", r.Upgrade}, {"inject", r.Inject != nil}} {
		if key.set {
			keys = append(keys, key.name)
		}
	}
	return keys
}

// Inspects reports whether a tunnel has to be looked into for the rule.
func (r *Rule) Inspects() bool { return len(r.inspecting()) > 0 }

// tunnelsMeet reports whether there is a host that both patterns are about, at
// a port at which a tunnel has to be looked into: on port 80 requests are seen
// without.
func tunnelsMeet(a, b Pattern) bool {
	if !hostsMeet(a, b) {
		return false
	}
	for _, s := range a.ports.ranges() {
		for _, t := range b.ports.ranges() {
			both := portSet{max(s.first, t.first), min(s.last, t.last)}
			if both.first <= both.last && both != (portSet{80, 80}) {
				return true
			}
		}
	}
	return false
}

// hostsMeet reports whether there is a host that both patterns are about.
func hostsMeet(a, b Pattern) bool {
	if a.kind < b.kind {
		a, b = b, a
	}
	switch {
	case b.kind == none:
		return false
	case b.kind == anyHost:
		return true
	case a.kind == addresses:
		return a.prefix.Overlaps(b.prefix)
	case a.kind == exactHost:
		return b.CoversName(a.name)
	case b.kind == hostsBelow:
		return a.name == b.name || a.CoversName(b.name) || b.CoversName(a.name)
	}
	return false
}

// ranges returns s as ranges of ports, the default as its two.
func (s portSet) ranges() []portSet {
	if s == (portSet{}) {
		return []portSet{{80, 80}, {443, 443}}
	}
	return []portSet{s}
}
