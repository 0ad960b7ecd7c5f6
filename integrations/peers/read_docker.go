package peers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// readDocker reads three forms: what "sbx policy ls --json" prints and an allow list of the governance API
// (docs.docker.com/reference/api/ai-governance, read 2026-11-25), both with "rules", and the proxy-config.json of
// Docker Desktop's docker sandbox. In the first two a deny wins.
func readDocker(r *reading, text []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		text = slices.Concat([]byte(`{"rules":`), text, []byte("}"))
	}
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	if _, ok := top["rules"]; !ok {
		return readDockerDesktop(r, top)
	}
	var rules []object
	var domain string
	if err := top.takeOnly("", map[string]any{"rules": &rules, "domain": &domain}); err != nil {
		return err
	}
	var all []dockerRule
	for i, o := range rules {
		rule, err := dockerRuleOf(o, domain)
		if err != nil {
			return fmt.Errorf("rules[%d]: %w", i, err)
		}
		all = append(all, rule)
	}
	return r.dockerRules(all)
}

// A dockerRule is a row of sbx policy ls, or a rule of an allow list.
type dockerRule struct {
	name, kind, decision, status, scope string
	resources, actions, methods         []string
	paths                               json.RawMessage
}

func dockerRuleOf(o object, domain string) (d dockerRule, err error) {
	d.kind = cmp.Or(domain, "network")
	var id, policyID, appliesTo, origin, sandbox string
	var editable bool
	if err := o.takeAll(map[string]any{
		"id": &id, "name": &d.name, "policy_id": &policyID, "scope": &d.scope, "applies_to": &appliesTo, "resource_type": &d.kind,
		"decision": &d.decision, "resources": &d.resources, "origin": &origin, "status": &d.status, "editable": &editable,
		"sandbox_id": &sandbox, "actions": &d.actions, "methods": &d.methods, "paths": &d.paths,
	}); err != nil {
		return d, err
	}
	if d.decision != "allow" && d.decision != "deny" {
		return d, fmt.Errorf("decision %q is neither allow nor deny", d.decision)
	}
	if d.status != "" && d.status != "active" && d.status != "inactive" {
		return d, fmt.Errorf("status %q is neither active nor inactive", d.status)
	}
	_, err = o.only("")
	return d, err
}

// about reports whether a rule is in effect and about connections over TCP.
func (d *dockerRule) about() bool {
	return d.status != "inactive" && d.kind == "network" && (len(d.actions) == 0 || slices.Contains(d.actions, "connect:tcp"))
}

func (r *reading) dockerRules(all []dockerRule) error {
	scopes := map[string]bool{}
	for _, d := range all {
		if strings.HasPrefix(d.scope, "sandbox:") {
			scopes[d.scope] = true
		}
	}
	for _, decision := range []string{"deny", "allow"} {
		for _, d := range all {
			switch {
			case d.decision != decision:
			case !d.about():
				r.left(cmp.Or(d.name, strings.Join(d.resources, ",")))
			default:
				if err := r.dockerRule(d, len(scopes) > 1); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// dockerRule adds the clauses of one rule. several says that the rules are of several sandboxes.
func (r *reading) dockerRule(d dockerRule, several bool) error {
	allow := d.decision == "allow"
	if len(d.paths) > 0 {
		if allow {
			r.stricterf("%s is left out: which paths a pattern of sbx stands for is not documented", d.name)
			return nil
		}
		r.stricterf("%s denies all paths: which a pattern of sbx stands for is not documented", d.name)
	}
	for _, text := range d.resources {
		s, ports, err := dockerResource(text)
		if err != nil {
			return err
		}
		if allow && several && strings.HasPrefix(d.scope, "sandbox:") && !r.widens(text, "it is for "+d.scope+" alone, and the rules are of several sandboxes") {
			continue
		}
		r.say(allow, text, s, clause{ports: ports, methods: d.methods})
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
func readDockerDesktop(r *reading, top object) error {
	var mode string
	var network object
	if err := top.takeAll(map[string]any{"policy": &mode, "network": &network}); err != nil {
		return err
	}
	if mode != "allow" && mode != "deny" {
		return fmt.Errorf("policy %q is neither allow nor deny; it is neither a proxy-config.json nor a list of rules", mode)
	}
	if _, err := top.only(""); err != nil {
		return err
	}
	r.open = mode == "allow"
	var allowed, blocked, allowedPrefixes, blockedPrefixes, bypass, bypassed []string
	if err := network.takeOnly("network.", map[string]any{
		"allowedDomains": &allowed, "blockedDomains": &blocked, "allowCIDR": &allowedPrefixes, "blockCIDR": &blockedPrefixes,
		"bypassDomains": &bypass, "bypassCIDR": &bypassed,
	}); err != nil {
		return err
	}
	if len(bypass)+len(bypassed) > 0 {
		r.stricter("the entries that bypass its inspection are left out: egressd looks into tunnels only where a rule needs it")
	}
	if err := r.hostPorts(false, blocked, anyDepth); err != nil {
		return err
	}
	if err := r.prefixes(false, blockedPrefixes, clause{}); err != nil {
		return err
	}
	if err := r.hostPorts(true, allowed, anyDepth); err != nil {
		return err
	}
	if err := r.prefixes(true, allowedPrefixes, clause{}); err != nil {
		return err
	}
	slices.SortStableFunc(r.clauses, func(a, b clause) int { return a.hosts.specific(b.hosts) })
	return nil
}
