package policy

// promptRules bounds the rules for one host in a list that event loops evaluate. The evaluator
// compares a request with each rule of its host, and again for each resolved address and alias.
const promptRules = 256

// allShort reports whether no list of evaluators has more rules for one host than promptRules.
func allShort(evaluators []Evaluator) bool {
	for _, e := range evaluators {
		switch e := e.(type) {
		case *rules:
			if e.longest() > promptRules {
				return false
			}
		case sandboxLayer:
			for _, own := range e {
				if own.longest() > promptRules {
					return false
				}
			}
		case projectLayer:
			for _, own := range e {
				if !allShort(own.evaluators) {
					return false
				}
			}
		}
	}
	return true
}

// longest returns the length of the longest chain of rules for one host.
func (rs *rules) longest() (n int) {
	for _, ix := range []*index{rs.first, rs.own, rs.presets} {
		n += ix.longest()
	}
	return n
}

func (ix *index) longest() (most int) {
	if ix == nil {
		return 0
	}
	count := func(b *bucket) {
		n := 0
		for ; b != nil; b = b.next {
			n += len(b.rules)
		}
		most = max(most, n)
	}
	for _, b := range ix.exact {
		count(b)
	}
	for _, b := range ix.below {
		count(b)
	}
	for _, b := range ix.addresses.All() {
		count(b)
	}
	count(ix.any)
	return most
}

// short reports whether event loops may evaluate all lists of p.
func (p *Policy) short() bool {
	ceilings := make([]Evaluator, len(p.ceilings))
	for i, c := range p.ceilings {
		ceilings[i] = c.Evaluator
	}
	return allShort(p.evaluators) && allShort(p.below) && allShort(p.narrowing) && allShort(ceilings)
}
