package peers

import (
	"fmt"
	"slices"
	"strings"
)

// readVercel reads networkPolicy of Vercel Sandbox (npm @vercel/sandbox 3.5.0, dist/network-policy.d.ts). The rules of a
// domain count in their order; a rule that answers by itself keeps the request from the domain.
func readVercel(r *reading, text []byte) error {
	switch strings.Trim(string(text), " \t\r\n\"'") {
	case "allow-all":
		r.open = true
		return nil
	case "deny-all":
		return nil
	}
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	if nested := top.at("networkPolicy"); nested != nil && len(top.members) == 1 {
		if nested.kind == isText {
			return readVercel(r, []byte(nested.text))
		}
		top = nested
	}
	var allow *setting
	var allowed, denied []word
	s := schema{"allow": into(&allow), "subnets": fields(schema{"allow": into(&allowed), "deny": into(&denied)}), "networkPolicy": {}}
	if err := r.take(top, s); err != nil {
		return err
	}
	if err := r.prefixes(r.deny, denied, clause{}); err != nil {
		return err
	}
	if err := r.prefixes(r.allow, allowed, clause{}); err != nil {
		return err
	}
	switch {
	case allow == nil:
	case allow.kind == isList:
		var names []word
		if err := allow.into(&names, "allow"); err != nil {
			return err
		}
		for _, w := range names {
			if err := r.vercelDomain(w, nil); err != nil {
				return err
			}
		}
	case allow.kind == isMapping:
		return r.vercelDomains(allow)
	default:
		return allow.errorf("allow is %s; it has to be a list or a mapping of domains", kindNames[allow.kind])
	}
	return nil
}

// vercelDomains reads domains with their rules.
func (r *reading) vercelDomains(allow *setting) error {
	domains := slices.Clone(allow.members)
	slices.SortStableFunc(domains, func(a, b pair) int { return moreSpecific(a.key, b.key) })
	for _, m := range domains {
		var rules []*vercelRule
		if m.value.kind != isList && m.value.kind != isNull {
			return m.value.errorf("allow.%s is %s; it has to be a list of rules", m.key, kindNames[m.value.kind])
		}
		if err := r.items(m.value, vercelRules(&rules), "allow."+m.key); m.value.kind == isList && err != nil {
			return err
		}
		if err := r.vercelDomain(word{m.key, &setting{line: m.line, column: m.column}}, rules); err != nil {
			return err
		}
	}
	return nil
}

// moreSpecific orders patterns of names: a name, a longer wildcard, a shorter one.
func moreSpecific(a, b string) int {
	stars := func(s string) int { return strings.Count(s, "*") }
	if d := stars(a) - stars(b); d != 0 {
		return d
	}
	return len(b) - len(a)
}

// A vercelRule is a rule of a domain.
type vercelRule struct {
	matches, answers, forwards, transforms bool
	path                                   matcher
	hasPath                                bool
	methods                                []word
	headers, query                         []vercelCondition
}

// A vercelCondition is about one header field or parameter.
type vercelCondition struct{ key, value matcher }

func vercelRules(found *[]*vercelRule) items {
	return func(string, string) (schema, func(*setting) error) {
		v := &vercelRule{}
		conditions := func(found *[]vercelCondition) field {
			return field{items: func(string, string) (schema, func(*setting) error) {
				c := &vercelCondition{}
				return schema{"key": fields(c.key.schema()), "value": fields(c.value.schema())}, func(*setting) error { *found = append(*found, *c); return nil }
			}}
		}
		s := schema{
			"match": fields(schema{"path": fields(v.path.schema()), "method": into(&v.methods), "queryString": conditions(&v.query), "headers": conditions(&v.headers)}),
		}.known("transform response forwardURL")
		return s, func(n *setting) error {
			v.matches, v.answers, v.forwards, v.transforms = n.at("match") != nil, n.at("response") != nil, n.at("forwardURL") != nil, n.at("transform") != nil
			v.hasPath = v.matches && n.at("match").at("path") != nil
			*found = append(*found, v)
			return nil
		}
	}
}

// vercelDomain adds the clauses of a domain: its rules, then that the rest is allowed. Other
// domains do not count where one has rules.
func (r *reading) vercelDomain(name word, rules []*vercelRule) error {
	s, err := namesOr(name.text, anyDepth)
	if err != nil {
		return name.at.errorf("allow: %w", err)
	}
	if len(rules) > 0 && s.part != "" && !r.widens(name.text, s.part) {
		return nil
	}
	for i, rule := range rules {
		if r.vercelRule(fmt.Sprintf("%s, rule %d", name.text, i+1), scope{sets: s.sets}, rule) {
			return nil
		}
	}
	r.allow(name.text, s, clause{ports: []span{port(443)}})
	return nil
}

// vercelRule adds the clause of a rule, and reports whether the rule is about all requests.
func (r *reading) vercelRule(said string, s scope, rule *vercelRule) (ended bool) {
	if rule.transforms {
		r.left(said + ": transform")
	}
	if rule.forwards {
		r.stricterf("%s: a request that went to forwardURL is denied", said)
	}
	c := clause{ports: []span{port(443)}}
	for _, m := range rule.methods {
		c.methods = append(c.methods, strings.ToUpper(m.text))
	}
	whole := conditions(rule.headers, c.only.field) && conditions(rule.query, c.only.parameter) // all that match says can be said here
	if rule.hasPath {
		path := rule.path.pattern()
		whole = whole && path != ""
		if path != "" {
			c.paths = []string{path}
		}
	}
	switch {
	case rule.answers || rule.forwards:
		if !whole {
			r.stricterf("%s denies more: its match says more than egressd can compare: methods, a path, fields and parameters by name, each exact or by its beginning", said)
		}
		r.deny(said, s, c)
		return !rule.matches
	case !whole:
		r.stricterf("%s is left out: its match says more than egressd can compare: methods, a path, fields and parameters by name, each exact or by its beginning", said)
		return false
	}
	r.allow(said, s, c)
	return !rule.matches
}

// conditions adds what is compared. It reports whether that is all.
func conditions(all []vercelCondition, add func(name string, values ...string) bool) bool {
	whole := true
	for _, c := range all {
		value, ok := c.value.value()
		whole = whole && ok && c.key.exact.at != nil && c.key.startsWith.at == nil && c.key.regex.at == nil && add(c.key.exact.text, value)
	}
	return whole
}

// A matcher is a condition of Vercel on a text.
type matcher struct{ exact, startsWith, regex word }

func (m *matcher) schema() schema {
	return schema{"exact": into(&m.exact), "startsWith": into(&m.startsWith), "regex": into(&m.regex)}
}

// value returns the pattern of egressd's field rules that matches the same texts. ok is false if there is none.
func (m *matcher) value() (text string, ok bool) {
	switch {
	case m.regex.at != nil || m.exact.at != nil && m.startsWith.at != nil || strings.Contains(m.exact.text+m.startsWith.text, "*"):
		return "", false
	case m.exact.at != nil:
		return m.exact.text, true
	}
	return m.startsWith.text + "*", true
}

// pattern is the same as a pattern of paths, or "" if there is none.
func (m *matcher) pattern() string {
	switch {
	case m.exact.at != nil && m.startsWith.at == nil && m.regex.at == nil:
		return exactly(m.exact.text)
	case m.startsWith.at != nil && m.exact.at == nil && m.regex.at == nil:
		return startingWith(m.startsWith.text)
	}
	return ""
}
