package peers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// readVercel reads networkPolicy of Vercel Sandbox. The rules of a domain count in their order; a rule
// that answers by itself keeps the request from the domain.
func readVercel(r *reading, text []byte) error {
	switch strings.Trim(string(text), " \t\r\n\"") {
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
	if nested, ok := top["networkPolicy"]; ok && len(top) == 1 {
		return readVercel(r, nested)
	}
	var subnets struct{ Allow, Deny []string }
	var allow json.RawMessage
	if err := top.takeOnly("", map[string]any{"allow": &allow, "subnets": &subnets}); err != nil {
		return err
	}
	if err := r.prefixes(false, subnets.Deny, clause{}); err != nil {
		return fmt.Errorf("subnets.deny: %w", err)
	}
	if err := r.prefixes(true, subnets.Allow, clause{}); err != nil {
		return fmt.Errorf("subnets.allow: %w", err)
	}
	var names []string
	if len(allow) == 0 || json.Unmarshal(allow, &names) == nil {
		for _, name := range names {
			if err := r.vercelDomain(name, nil); err != nil {
				return err
			}
		}
		return nil
	}
	return r.vercelRules(allow)
}

func (r *reading) vercelRules(text json.RawMessage) error {
	domains, err := objectOf(text, "allow is neither a list nor a mapping of domains")
	if err != nil {
		return err
	}
	keys := domains.keys("")
	slices.SortStableFunc(keys, moreSpecific)
	for _, name := range keys {
		var rules []object
		if err := domains.take(name, &rules); err != nil {
			return fmt.Errorf("allow.%w", err)
		}
		if err := r.vercelDomain(name, rules); err != nil {
			return fmt.Errorf("allow.%s: %w", name, err)
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

// vercelDomain adds the clauses of a domain: its rules, then that the rest is allowed. Other
// domains do not count where one has rules.
func (r *reading) vercelDomain(name string, rules []object) error {
	s, err := namesOr(name, anyDepth)
	if err != nil {
		return err
	}
	at443 := clause{ports: []span{port(443)}}
	if len(rules) > 0 && s.part != "" && !r.widens(name, s.part) {
		return nil
	}
	for i, rule := range rules {
		ended, err := r.vercelRule(fmt.Sprintf("%s, rule %d", name, i+1), scope{sets: s.sets}, rule)
		if err != nil || ended {
			return err
		}
	}
	r.allow(name, s, at443)
	return nil
}

// vercelRule adds the clause of a rule, and reports whether the rule is about all requests.
func (r *reading) vercelRule(said string, s scope, rule object) (ended bool, err error) {
	var match struct {
		Path                 *matcher
		Method               []string
		QueryString, Headers []json.RawMessage
	}
	_, matches := rule["match"]
	if err := rule.take("match", &match); err != nil {
		return false, err
	}
	_, transforms := rule["transform"]
	_, answers := rule["response"]
	_, forwards := rule["forwardURL"]
	if transforms {
		r.left(said + ": transform")
	}
	if forwards {
		r.stricterf("%s: a request that went to forwardURL is denied", said)
	}
	delete(rule, "transform")
	delete(rule, "response")
	delete(rule, "forwardURL")
	if _, err := rule.only(""); err != nil {
		return false, err
	}
	c := clause{ports: []span{port(443)}, methods: match.Method}
	whole := len(match.QueryString)+len(match.Headers) == 0 // all that match says can be said here
	if match.Path != nil {
		path := match.Path.pattern()
		whole = whole && path != ""
		if path != "" {
			c.paths = []string{path}
		}
	}
	switch {
	case answers || forwards:
		if !whole {
			r.stricterf("%s denies more: its match says more than methods, an exact path or the beginning of one", said)
		}
		r.deny(said, s, c)
		return !matches, nil
	case !whole:
		r.stricterf("%s is left out: its match says more than methods, an exact path or the beginning of one", said)
		return false, nil
	}
	r.allow(said, s, c)
	return !matches, nil
}

// A matcher is a condition of Vercel on a text.
type matcher struct {
	Exact      *string `json:"exact"`
	StartsWith *string `json:"startsWith"`
	Regex      *string `json:"regex"`
}

// pattern is the same as a pattern of paths, or "" if there is none.
func (m *matcher) pattern() string {
	switch {
	case m.Exact != nil && m.StartsWith == nil && m.Regex == nil:
		return exactly(*m.Exact)
	case m.StartsWith != nil && m.Exact == nil && m.Regex == nil:
		return startingWith(*m.StartsWith)
	}
	return ""
}

// readDaytona reads the network settings of a sandbox. Both lists are text with commas.
func readDaytona(r *reading, text []byte) error {
	var blocked bool
	var prefixes, domains commaList
	var proxy string
	top, err := settings(text, parseJSON, map[string]any{"networkBlockAll": &blocked, "networkAllowList": &prefixes, "domainAllowList": &domains, "outboundProxyUrl": &proxy})
	if err != nil {
		return err
	}
	r.left(top.keys("")...)
	if blocked {
		return nil
	}
	if len(prefixes)+len(domains) == 0 {
		r.open = r.widens("a sandbox without lists", "the organisation's tier says what it may reach")
		return nil
	}
	if err := r.prefixes(true, prefixes, clause{}); err != nil {
		return fmt.Errorf("networkAllowList: %w", err)
	}
	if err := r.list(true, domains, namesOr, anyDepth, clause{ports: webPorts}); err != nil {
		return fmt.Errorf("domainAllowList: %w", err)
	}
	return nil
}

type commaList []string

func (l *commaList) UnmarshalJSON(text []byte) error {
	var whole string
	if json.Unmarshal(text, &whole) != nil {
		return json.Unmarshal(text, (*[]string)(l))
	}
	for part := range strings.SplitSeq(whole, ",") {
		if part = strings.TrimSpace(part); part != "" {
			*l = append(*l, part)
		}
	}
	return nil
}

// readModal reads arguments of modal.Sandbox.create, as JSON or out of a Python call.
func readModal(r *reading, text []byte) error {
	top, err := settingsIn(text, []string{"block_network", "outbound_cidr_allowlist", "cidr_allowlist", "outbound_domain_allowlist"})
	if err != nil {
		return err
	}
	var blocked bool
	var prefixes, older, domains []string
	if err := top.takeAll(map[string]any{"block_network": &blocked, "outbound_cidr_allowlist": &prefixes, "cidr_allowlist": &older, "outbound_domain_allowlist": &domains}); err != nil {
		return err
	}
	r.left(top.keys("")...)
	r.open = !blocked && prefixes == nil && older == nil && domains == nil
	if blocked {
		return nil
	}
	if err := r.prefixes(true, slices.Concat(prefixes, older), clause{}); err != nil {
		return err
	}
	if err := r.list(true, domains, namesOr, anyDepth, clause{ports: []span{port(443)}}); err != nil {
		return fmt.Errorf("outbound_domain_allowlist: %w", err)
	}
	return nil
}

// readSprites reads the network policy of a Sprite, in which the most specific rule decides. It is enforced by
// name; "*" opens names, and addresses stay closed.
func readSprites(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	var rules []struct{ Domain, Action, Include string }
	if err := top.take("rules", &rules); err != nil {
		return err
	}
	if _, err := top.only(""); err != nil {
		return err
	}
	for i, rule := range rules {
		switch {
		case rule.Include != "":
			r.stricterf("include: %s is left out, since its hosts are not documented; name presets for what you need", rule.Include)
			continue
		case rule.Action != "allow" && rule.Action != "deny":
			return fmt.Errorf("rules[%d]: action %q is neither allow nor deny", i, rule.Action)
		}
		s, err := namesOr(rule.Domain, anyDepth)
		if err != nil {
			return fmt.Errorf("rules[%d]: %w", i, err)
		}
		if rule.Domain == "*" && rule.Action == "deny" {
			s = just(everything)
		}
		r.say(rule.Action == "allow", rule.Domain, s, clause{})
	}
	slices.SortStableFunc(r.clauses, func(a, b clause) int { return boolFirst(!a.allow, !b.allow) })
	slices.SortStableFunc(r.clauses, func(a, b clause) int { return a.hosts.specific(b.hosts) })
	return nil
}
