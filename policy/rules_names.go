package policy

import "slices"

// atSomePort decides a DNS question: a name may be resolved where any port of it
// may be reached in any way. That has to be one port for all of it: for the name,
// and for every address and alias that it resolved to.
func (rs *rules) atSomePort(r *Request) Decision {
	name := rs.searchFor(r)
	ports := name.boundaries(nil)
	var found []search
	rs.resolvedTo(r, func(s search) {
		if s.empty() { // nothing is said about it at any port
			return
		}
		found = append(found, s)
		ports = s.boundaries(ports)
	})
	slices.Sort(ports)
	best, blocked := Decision{Verdict: Abstain}, Decision{Verdict: Abstain}
	for i, port := range slices.Compact(ports) {
		d := name.at(r, port)
		opened := d.Verdict == Allow || d.Verdict == Inspect
		for j := range found {
			d = combine(d, restricting(found[j].at(r, port)))
		}
		switch {
		case d.Verdict == Inspect:
			d.Verdict, d.Needs, d.AllowedIf = Allow, 0, nil
		case opened && d.Verdict < Inspect && blocked.Verdict == Abstain:
			blocked = d
		}
		if i == 0 || looser(d, best) {
			best = d
		}
	}
	if best.Verdict == Abstain && rs.silence == silent && blocked.Verdict != Abstain {
		best = blocked // else the reason would be that no rule allows the name
	}
	best.Needs = 0
	return best
}

// empty reports whether no rule can be about what is searched for.
func (s *search) empty() bool {
	for _, b := range s.buckets {
		if b != nil && b.pattern.kind != anyHost {
			return false
		}
	}
	return true
}

// looser compares opinions of one list, in which silence allows nothing but
// leaves the word to others.
func looser(a, b Decision) bool {
	if b.Verdict == Allow {
		return false
	}
	return a.Verdict == Allow || a.Verdict > b.Verdict
}

// boundaries adds a port out of each stretch of ports over which the answer
// cannot change.
func (s *search) boundaries(ports []uint16) []uint16 {
	if ports == nil {
		ports = append(make([]uint16, 0, 16), 1, 80, 443)
	}
	for _, b := range s.buckets {
		for ; b != nil; b = b.next {
			for _, r := range b.rules {
				ports = append(ports, max(r.ports.first, 1))
				if r.ports.last < 65535 {
					ports = append(ports, r.ports.last+1)
				}
			}
		}
	}
	return ports
}
