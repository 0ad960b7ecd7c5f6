package peers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// readDocker reads three forms: what "sbx policy ls --json" prints and an allow list of the governance API
// (docs.docker.com/reference/api/ai-governance, read 2026-11-25), both with "rules", and the proxy-config.json of
// Docker Desktop's docker sandbox. In the first two a deny wins.
func readDocker(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	if top.kind == isList {
		top = &setting{kind: isMapping, line: 1, column: 1, members: []pair{{"rules", 1, 1, top}}}
	}
	if top.at("rules") == nil {
		return readDockerDesktop(r, top)
	}
	domain := "network"
	var rules []*dockerRule
	s := schema{"domain": into(&domain), "rules": {items: func(string, string) (schema, func(*setting) error) {
		d := &dockerRule{}
		return d.schema(), func(n *setting) error {
			d.at = n
			rules = append(rules, d)
			return d.check()
		}
	}}}.aside("id name description created_at updated_at createdAt updatedAt")
	if err := r.take(top, s); err != nil {
		return err
	}
	for _, d := range rules {
		d.kind = cmp.Or(d.kind, domain)
	}
	return r.dockerRules(rules)
}

// A dockerRule is a row of sbx policy ls, or a rule of an allow list.
type dockerRule struct {
	name, kind, decision, status, scope, appliesTo string
	resources, actions, methods                    []word
	paths, at                                      *setting
}

func (d *dockerRule) schema() schema {
	return schema{
		"name": into(&d.name), "scope": into(&d.scope), "applies_to": into(&d.appliesTo), "resource_type": into(&d.kind), "decision": into(&d.decision),
		"resources": into(&d.resources), "status": into(&d.status), "actions": into(&d.actions), "methods": into(&d.methods), "paths": into(&d.paths),
	}.known("id policy_id origin editable sandbox_id created_at updated_at description")
}

func (d *dockerRule) check() error {
	if err := choice(d.decision, "decision", d.at, "allow", "deny"); err != nil {
		return err
	}
	return choice(cmp.Or(d.status, "active"), "status", d.at, "active", "inactive")
}

func (d *dockerRule) said() string {
	var all []string
	for _, w := range d.resources {
		all = append(all, w.text)
	}
	return cmp.Or(d.name, strings.Join(all, ","))
}

// about reports whether a rule is in effect and about connections over TCP.
func (d *dockerRule) about() bool {
	tcp := func(w word) bool { return w.text == "connect:tcp" }
	return d.status != "inactive" && d.kind == "network" && (len(d.actions) == 0 || slices.ContainsFunc(d.actions, tcp))
}

// alone is whom a rule is for, or "" if that is every sandbox.
func (d *dockerRule) alone() string {
	switch {
	case strings.HasPrefix(d.scope, "sandbox:"):
		return d.scope
	case d.appliesTo != "" && d.appliesTo != "all":
		return d.appliesTo
	}
	return ""
}

func (r *reading) dockerRules(all []*dockerRule) error {
	whom := map[string]bool{}
	for _, d := range all {
		whom[d.alone()] = true
	}
	delete(whom, "")
	for _, decision := range []string{"deny", "allow"} {
		for _, d := range all {
			switch {
			case d.decision != decision:
			case !d.about():
				r.left(d.said())
			default:
				if err := r.dockerRule(d, len(whom) > 1); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// dockerRule adds the clauses of one rule. several says that the rules are of several sandboxes.
func (r *reading) dockerRule(d *dockerRule, several bool) error {
	allow := d.decision == "allow"
	if d.paths != nil && len(d.paths.list) > 0 {
		if allow {
			r.stricterf("%s is left out: which paths a pattern of sbx stands for is not documented", d.said())
			return nil
		}
		r.stricterf("%s denies all paths: which a pattern of sbx stands for is not documented", d.said())
	}
	var methods []string
	for _, m := range d.methods {
		methods = append(methods, strings.ToUpper(m.text))
	}
	for _, w := range d.resources {
		s, ports, err := dockerResource(w.text)
		if err != nil {
			return w.at.errorf("%w", err)
		}
		if allow && several && d.alone() != "" && !r.widens(w.text, "it is for "+d.alone()+" alone, and the rules are of several sandboxes") {
			continue
		}
		r.sayer(allow)(w.text, s, clause{ports: ports, methods: methods})
	}
	return nil
}

// dockerResource reads a resource: "*." is one label, "**." any depth, and "**" everything.
func dockerResource(text string) (scope, []span, error) {
	if p, ok := prefixOf(text); ok {
		return just(within(p)), nil, nil
	}
	host, ports, ok := cutPort(text)
	if !ok {
		return scope{}, nil, fmt.Errorf("%q is no resource of a network", text)
	}
	if host == "**" {
		return just(everything), ports, nil
	}
	if rest, ok := strings.CutPrefix(host, "**."); ok && !strings.Contains(rest, "*") {
		s, err := scopeOf("*."+rest, anyDepth)
		return s, ports, err
	}
	s, err := hostScope(host, oneLabel)
	return s, ports, err
}

// readDockerDesktop reads proxy-config.json, in which the most specific entry decides. The keys are
// those of files that people have shown; the product is superseded by sbx.
func readDockerDesktop(r *reading, top *setting) error {
	var mode word
	var allowed, blocked, allowedPrefixes, blockedPrefixes, bypass, bypassed []word
	s := schema{"policy": into(&mode), "network": fields(schema{
		"allowedDomains": into(&allowed), "blockedDomains": into(&blocked), "allowCIDR": into(&allowedPrefixes), "blockCIDR": into(&blockedPrefixes),
		"bypassDomains": into(&bypass), "bypassCIDR": into(&bypassed),
	}), "rules": field{}}
	if err := r.take(top, s); err != nil {
		return err
	}
	if mode.at == nil {
		return top.errorf("it has neither rules, as sbx policy ls --json prints them, nor a policy, as a proxy-config.json has it")
	}
	if err := choice(mode.text, "policy", mode.at, "allow", "deny"); err != nil {
		return err
	}
	r.open = mode.text == "allow"
	for _, w := range slices.Concat(bypass, bypassed) {
		r.stricterf("%s does not bypass anything: egressd looks into tunnels only where a rule needs it", w.text)
	}
	if err := r.hostPorts(r.deny, blocked, anyDepth); err != nil {
		return err
	}
	if err := r.prefixes(r.deny, blockedPrefixes, clause{}); err != nil {
		return err
	}
	if err := r.hostPorts(r.allow, allowed, anyDepth); err != nil {
		return err
	}
	if err := r.prefixes(r.allow, allowedPrefixes, clause{}); err != nil {
		return err
	}
	slices.SortStableFunc(r.clauses, func(a, b clause) int { return a.hosts.specific(b.hosts) })
	return nil
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
