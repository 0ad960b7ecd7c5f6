package peers

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A ranked is a clause with its place among the clauses for the same host: the stricter effect comes first.
type ranked struct {
	clause
	kind  hostKind // of the pattern that the rule has: a deny that is taken wider keeps its place
	order int
}

func (r ranked) compare(other ranked) int {
	return cmp.Or(
		-cmp.Compare(r.kind, other.kind),
		r.hosts.specific(other.hosts), cmp.Compare(r.order, other.order),
	)
}

func (w *writing) rankedOf(rule *policy.Rule, allow bool, order int) (all []ranked, err error) {
	s, err := patternScope(rule.Pattern)
	if err != nil {
		return nil, err
	}
	kind := s.sets[0].kind
	if kind != everyHost && strings.Contains(strings.TrimPrefix(rule.Pattern.Host(), "*."), "*") {
		kind = labelName
	}
	s = w.oneFamily(s)
	if h := s.sets[0]; h.kind == labelName && !w.labels {
		_, _, parent := h.aroundStar()
		s = scope{sets: []hostSet{below(parent)}, part: "it is of one label"}
	}
	if s.part != "" && !allow {
		w.stricterf("%s denies more: %s", rule.Pattern, s.part)
	}
	if s.part != "" && allow && !w.widens(rule.Pattern.String(), s.part) {
		return nil, nil
	}
	if tie := w.tie(rule.Pattern, s.sets[0]); tie != "" && allow && !w.widens(rule.Pattern.String(), "egressd denies the hosts in it that "+tie+" names") {
		return nil, nil
	}
	c := clause{allow: allow, methods: slices.Clone(rule.Methods)}
	if slices.Contains(c.methods, "GET") && !slices.Contains(c.methods, "HEAD") {
		c.methods = append(c.methods, "HEAD")
	}
	for _, p := range rule.Paths {
		c.paths = append(c.paths, p.String())
	}
	if !allow && s.sets[0].kind == somePrefix && rule.Conditional() {
		w.stricterf("%s denies all requests to its addresses", rule.Pattern)
		c.methods, c.paths = nil, nil
	}
	about := rule.Pattern
	if !allow {
		about = about.AnyPort()
	}
	if c.ports, err = patternPorts(about); err != nil {
		return nil, err
	}
	if rule.ReadsFurther() {
		if allow && !w.widens(rule.Pattern.String(), "it asks for "+rule.Conditions()) {
			return nil, nil
		} else if !allow {
			w.stricterf("%s denies more: the rule asks for %s", rule.Pattern, rule.Conditions())
			c.methods, c.paths = nil, nil
		}
	}
	if rule.PathsFold && len(rule.Paths) > 0 {
		if allow {
			w.stricterf("%s allows the paths only as they are written, and not in other case", rule.Pattern)
		} else {
			w.stricterf("%s denies all paths: those of the rule are compared without case", rule.Pattern)
			c.paths = nil
		}
	}
	if rule.Inject != nil {
		w.left(rule.Pattern.String() + ": inject")
	}
	if len(rule.Set) > 0 {
		w.left(rule.Pattern.String() + ": set")
	}
	for _, h := range s.sets {
		c.hosts = h
		all = append(all, ranked{c, kind, order})
	}
	return all, nil
}

// tie returns a pattern of a rule that refuses some hosts of h at ports of p, though neither pattern is more specific. No
// set has just the hosts of both.
func (w *writing) tie(p policy.Pattern, h hostSet) string {
	for i := range w.refusing {
		other := w.refusing[i].Pattern.AnyPort()
		s, err := patternScope(other)
		if err == nil && s.sets[0].crosses(h) && other.SharesPort(p) {
			return other.String()
		}
	}
	return ""
}

func patternScope(p policy.Pattern) (scope, error) {
	if p.Host() == "*" {
		return just(everything), nil
	}
	if text := strings.Replace(p.Host(), "*{1}.", "*.", 1); text != p.Host() || strings.Contains(strings.TrimPrefix(text, "*."), "*") {
		return labelScope(text), nil
	}
	return anyScope(p.Host(), anyDepth)
}

// patternPorts reads the ports of a pattern; none are all.
func patternPorts(p policy.Pattern) (ports []span, err error) {
	text := p.String()
	if text == p.Host() {
		return webPorts, nil
	}
	text = text[strings.LastIndexByte(text, ':')+1:]
	if text == "*" {
		return nil, nil
	}
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, err := strconv.ParseUint(low, 10, 16)
	last, more := strconv.ParseUint(high, 10, 16)
	return []span{{uint16(first), uint16(last)}}, cmp.Or(err, more)
}
