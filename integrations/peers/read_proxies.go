package peers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// readSmokescreen reads an ACL of smokescreen, for the service that Options.Name names. Domains of the service
// count before global_deny_list, and "*." stands for any depth.
func readSmokescreen(r *reading, text []byte) error {
	var version string
	var services []smokescreenService
	var fallback *smokescreenService
	var allowed, denied []string
	if err := onlySettings(text, parseYAML, map[string]any{"version": &version, "services": &services, "default": &fallback, "global_allow_list": &allowed, "global_deny_list": &denied}); err != nil {
		return err
	}
	s, err := chosenService(r.Name, services, fallback)
	if err != nil {
		return err
	}
	for _, list := range []struct {
		allow bool
		texts []string
	}{{true, s.AllowedDomains}, {false, denied}, {true, allowed}} {
		if err := r.list(list.allow, list.texts, hostScope, anyDepth, clause{}); err != nil {
			return err
		}
	}
	switch s.Action {
	case "open", "report":
		r.open = true
	case "enforce":
	default:
		return fmt.Errorf("action %q of %s is none of open, report, enforce", s.Action, s.Name)
	}
	if len(s.MITM)+len(s.Proxies) > 0 {
		r.left(s.Name + ": mitm_domains, allowed_external_proxies")
	}
	return nil
}

type smokescreenService struct {
	Name, Project, Action string
	AllowedDomains        []string          `json:"allowed_domains"`
	Proxies               []string          `json:"allowed_external_proxies"`
	MITM                  []json.RawMessage `json:"mitm_domains"`
}

func (s *smokescreenService) UnmarshalJSON(text []byte) error {
	return onlySettings(text, parseMember, map[string]any{
		"name": &s.Name, "project": &s.Project, "action": &s.Action,
		"allowed_domains": &s.AllowedDomains, "allowed_external_proxies": &s.Proxies, "mitm_domains": &s.MITM,
	})
}

// chosenService is the service of a name; without a name the only one, or the default where there is none.
func chosenService(name string, services []smokescreenService, fallback *smokescreenService) (*smokescreenService, error) {
	var names []string
	for i := range services {
		if services[i].Name == name || name == "" && len(services) == 1 {
			return &services[i], nil
		}
		names = append(names, services[i].Name)
	}
	if fallback != nil && (name == "default" || name == "" && len(services) == 0) {
		return fallback, nil
	}
	if fallback != nil {
		names = append(names, "default")
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("it has no service")
	}
	return nil, fmt.Errorf("it has the services %s; choose one with --name", strings.Join(names, ", "))
}

// readPipelock reads a portable policy (policy_version), in which the first rule decides, or a configuration of pipelock. A "*."
// in a portable policy stands for the name, too.
func readPipelock(r *reading, text []byte) error {
	top, err := parseYAML(text)
	if err != nil {
		return err
	}
	if _, portable := top["policy_version"]; portable {
		return readPortable(r, top)
	}
	var mode string
	var list, internal []string
	var fetch, monitoring object
	var blocked []string
	if err := top.takeAll(map[string]any{"mode": &mode, "api_allowlist": &list, "internal": &internal, "fetch_proxy": &fetch}); err != nil {
		return err
	}
	if err := fetch.take("monitoring", &monitoring); err != nil {
		return err
	}
	if err := monitoring.take("blocklist", &blocked); err != nil {
		return err
	}
	r.left(top.keys("")...)
	if err := r.prefixes(false, internal, clause{}); err != nil {
		return fmt.Errorf("internal: %w", err)
	}
	if err := r.list(false, blocked, scopeOf, anyDepthAndName, clause{}); err != nil {
		return err
	}
	switch mode {
	case "strict":
	case "", "balanced", "audit":
		r.open = true
		if len(list) > 0 {
			r.left("api_allowlist, which holds in mode strict alone")
		}
		return nil
	default:
		return fmt.Errorf("mode %q is none of strict, balanced, audit", mode)
	}
	return r.list(true, list, scopeOf, anyDepth, clause{})
}

func readPortable(r *reading, top object) error {
	var egress *struct {
		Default string
		Rules   []struct {
			Name, Action   string
			Domains, CIDRs []string
		}
	}
	if err := top.take("egress", &egress); err != nil {
		return err
	}
	for _, key := range []string{"policy_version", "name", "description"} {
		delete(top, key)
	}
	r.left(top.keys("")...)
	if egress == nil {
		return fmt.Errorf("it has no section egress, so it says nothing about destinations")
	}
	var err error
	if r.open, err = allows(egress.Default); err != nil && egress.Default != "" {
		return fmt.Errorf("egress.default: %w", err)
	}
	for i, rule := range egress.Rules {
		allow, err := allows(rule.Action)
		if err != nil {
			return fmt.Errorf("egress.rules[%d]: %w", i, err)
		}
		if err := r.list(allow, rule.Domains, namesOr, anyDepthAndName, clause{}); err != nil {
			return fmt.Errorf("egress.rules[%d]: %w", i, err)
		}
		if err := r.prefixes(allow, rule.CIDRs, clause{}); err != nil {
			return fmt.Errorf("egress.rules[%d]: %w", i, err)
		}
	}
	return nil
}

func allows(action string) (bool, error) {
	switch strings.ToLower(action) {
	case "allow":
		return true, nil
	case "deny":
		return false, nil
	}
	return false, fmt.Errorf("action %q is neither allow nor deny", action)
}

// readOpenSandbox reads a network policy of OpenSandbox, in which the first rule decides (its egress
// sidecar's README, read 2026-11-25).
func readOpenSandbox(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	if nested, ok := top["networkPolicy"]; ok && len(top) == 1 {
		return readOpenSandbox(r, nested)
	}
	var camel, snake string
	var rules []struct{ Action, Target string }
	if err := top.takeOnly("", map[string]any{"defaultAction": &camel, "default_action": &snake, "egress": &rules}); err != nil {
		return err
	}
	if camel != "" && snake != "" {
		return fmt.Errorf("defaultAction and default_action are the same setting")
	}
	if camel+snake != "" {
		if r.open, err = allows(camel + snake); err != nil {
			return err
		}
	}
	for i, rule := range rules {
		allow, err := allows(rule.Action)
		if err != nil {
			return fmt.Errorf("egress[%d]: %w", i, err)
		}
		s, err := anyScope(rule.Target, anyDepth)
		if err != nil {
			return fmt.Errorf("egress[%d]: %w", i, err)
		}
		r.say(allow, rule.Target, s, clause{})
	}
	return nil
}

// groups are microsandbox's groups of addresses.
var groups = map[string][]string{
	"loopback":   {"127.0.0.0/8", "::1/128"},
	"private":    {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"},
	"link_local": {"169.254.0.0/16", "fe80::/10"},
	"metadata":   {"169.254.169.254/32"},
	"multicast":  {"224.0.0.0/4", "ff00::/8"},
}

// readMicrosandbox reads a network policy of microsandbox, in which the first rule decides. A suffix stands for the
// name, too.
func readMicrosandbox(r *reading, text []byte) error {
	var out, in string
	var rules []object
	if err := onlySettings(text, parseJSON, map[string]any{"default_egress": &out, "default_ingress": &in, "rules": &rules}); err != nil {
		return err
	}
	if out != "" {
		var err error
		if r.open, err = allows(out); err != nil {
			return fmt.Errorf("default_egress: %w", err)
		}
	}
	for i, o := range rules {
		if err := r.microsandboxRule(fmt.Sprintf("rule %d", i+1), o); err != nil {
			return fmt.Errorf("rules[%d]: %w", i, err)
		}
	}
	return nil
}

func (r *reading) microsandboxRule(said string, o object) error {
	var direction, action string
	var destination json.RawMessage
	var protocols []string
	var ports []struct{ Start, End uint16 }
	if err := o.takeOnly("", map[string]any{"direction": &direction, "destination": &destination, "protocols": &protocols, "ports": &ports, "action": &action}); err != nil {
		return err
	}
	allow, err := allows(action)
	if err != nil {
		return err
	}
	tcp := func(p string) bool { return strings.EqualFold(p, "tcp") }
	if strings.EqualFold(direction, "ingress") || len(protocols) > 0 && !slices.ContainsFunc(protocols, tcp) {
		r.left(said)
		return nil
	}
	like := clause{}
	for _, p := range ports {
		if p.End < p.Start {
			return fmt.Errorf("ports run from %d to %d", p.Start, p.End)
		}
		like.ports = append(like.ports, span{max(p.Start, 1), max(p.End, 1)})
	}
	var word string
	if json.Unmarshal(destination, &word) == nil {
		if !strings.EqualFold(word, "any") {
			return fmt.Errorf("destination %q is not known here", word)
		}
		r.say(allow, said, just(everything), like)
		return nil
	}
	var to map[string]string
	if err := json.Unmarshal(destination, &to); err != nil || len(to) != 1 {
		return fmt.Errorf("its destination is not one of any, cidr, domain, domain_suffix, group")
	}
	for kind, value := range to {
		return r.microsandboxDestination(said, allow, strings.ToLower(strings.ReplaceAll(kind, "_", "")), value, like)
	}
	return nil
}

func (r *reading) microsandboxDestination(said string, allow bool, kind, value string, like clause) error {
	switch kind {
	case "cidr":
		return r.prefixes(allow, []string{value}, like)
	case "domain", "domainsuffix":
		s, err := scopeOf(strings.Trim(value, "."), anyDepth)
		if err != nil || len(s.sets) != 1 || s.sets[0].kind != oneName {
			return fmt.Errorf("%q is no name", value)
		}
		if kind == "domainsuffix" {
			s.sets = nameAndBelow(s.sets[0].name)
		}
		r.say(allow, value, s, like)
		return nil
	case "group":
		return r.microsandboxGroup(said, allow, strings.ReplaceAll(strings.ToLower(value), "-", "_"), like)
	}
	return fmt.Errorf("destination %s is not known here", kind)
}

// microsandboxGroup adds a group. Public is everything, without special-purpose space, which egressd
// opens by name alone.
func (r *reading) microsandboxGroup(said string, allow bool, group string, like clause) error {
	if group == "public" && allow {
		r.allow(said, just(everything), like)
		return nil
	}
	if group == "public" {
		r.deny(said, scope{sets: []hostSet{everything}, part: "egressd has no word for all public addresses"}, like)
		return nil
	}
	if group == "host" {
		r.stricterf("%s is left out: the host's own addresses stay closed", said)
		return nil
	}
	texts, ok := groups[group]
	if !ok {
		return fmt.Errorf("group %q is not known here", group)
	}
	return r.prefixes(allow, texts, like)
}
