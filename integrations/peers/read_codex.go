package peers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// readCodex reads the network of a permission profile, or the older network_proxy.policy, of Codex's config.toml.
// A deny wins; "**." stands for a name and what is below it, "*." for what is below it
// (github.com/openai/codex, codex-rs/network-proxy, read 2026-11-25).
func readCodex(r *reading, text []byte) error {
	top, err := parseTOML(text)
	if err != nil {
		return err
	}
	network, err := codexNetwork(r, top)
	if err != nil {
		return err
	}
	enabled, full := true, "full"
	mitm := false
	var domains map[string]string
	var allowed, denied []string
	var hooks []codexHook
	if err := network.takeAll(map[string]any{
		"enabled": &enabled, "mode": &full, "mitm": &mitm, "domains": &domains, "allowed_domains": &allowed, "denied_domains": &denied, "mitm_hooks": &hooks,
	}); err != nil {
		return err
	}
	if full != "full" && full != "limited" {
		return fmt.Errorf("mode %q is neither full nor limited", full)
	}
	for _, name := range sortedKeys(domains) {
		switch domains[name] {
		case "allow":
			allowed = append(allowed, name)
		case "deny":
			denied = append(denied, name)
		case "none":
		default:
			return fmt.Errorf("domains: %q of %q is none of allow, deny, none", domains[name], name)
		}
	}
	r.left(network.keys("")...)
	if !enabled {
		r.stricter("the network of the profile is not enabled, so nothing is allowed")
		return nil
	}
	return r.codexDomains(allowed, denied, hooks, full == "limited", mitm)
}

// codexNetwork finds the settings of the profile that is meant.
func codexNetwork(r *reading, top object) (object, error) {
	var chosen string
	var profiles map[string]object
	var older, flat object
	if err := top.takeAll(map[string]any{"default_permissions": &chosen, "permissions": &profiles, "network_proxy": &older, "network": &flat}); err != nil {
		return nil, err
	}
	if r.Name == "" {
		r.Name = chosen
	}
	if len(profiles) == 1 && r.Name == "" {
		r.Name = sortedKeys(profiles)[0]
	}
	if len(profiles) > 0 {
		profile, ok := profiles[r.Name]
		if !ok {
			return nil, fmt.Errorf("it has the profiles %s; choose one with --name", strings.Join(sortedKeys(profiles), ", "))
		}
		var network object
		err := profile.take("network", &network)
		r.left(profile.keys("permissions." + r.Name + ".")...)
		return network, err
	}
	if older != nil {
		var policy object
		if err := older.take("policy", &policy); err != nil {
			return nil, err
		}
		for _, key := range []string{"enabled", "mode"} {
			if value, ok := older[key]; ok {
				policy[key] = value
			}
		}
		return policy, nil
	}
	if flat == nil {
		return nil, fmt.Errorf("it has no permissions.NAME.network and no network_proxy.policy")
	}
	return flat, nil
}

type codexHook struct {
	Host  string
	Match struct {
		Methods, PathPrefixes []string
		Query, Headers        json.RawMessage
	}
	Actions json.RawMessage
}

func (h *codexHook) UnmarshalJSON(text []byte) error {
	var o, match object
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if err := o.takeAll(map[string]any{"host": &h.Host, "match": &match, "actions": &h.Actions}); err != nil {
		return err
	}
	if err := match.takeOnly("match.", map[string]any{"methods": &h.Match.Methods, "path_prefixes": &h.Match.PathPrefixes, "query": &h.Match.Query, "headers": &h.Match.Headers}); err != nil {
		return err
	}
	_, err := o.only("mitm_hooks.")
	return err
}

// readOnlyMethods are the methods of Codex's limited mode.
var readOnlyMethods = []string{"GET", "HEAD", "OPTIONS"}

func (r *reading) codexDomains(allowed, denied []string, hooks []codexHook, limited, mitm bool) error {
	base := clause{}
	if limited {
		base.methods = readOnlyMethods
		if !mitm {
			base.ports = []span{port(80)}
			r.stricter("mode limited without mitm: plain HTTP at port 80 alone")
		}
	}
	if err := r.list(false, denied, codexScope, anyDepth, clause{}); err != nil {
		return err
	}
	if err := r.list(true, allowed, codexScope, anyDepth, base); err != nil {
		return err
	}
	// A host with hooks passes only what a hook is about.
	slices.SortStableFunc(r.clauses, func(a, b clause) int { return boolFirst(!a.allow, !b.allow) })
	at := slices.IndexFunc(r.clauses, func(c clause) bool { return c.allow })
	if at < 0 {
		return nil
	}
	open := slices.Clone(r.clauses[at:])
	r.clauses = r.clauses[:at]
	if err := r.codexHooks(hooks, open, base); err != nil {
		return err
	}
	r.clauses = append(r.clauses, open...)
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

// codexHooks allows what hooks are about at hosts that are allowed anyway, and denies the rest of these hosts.
func (r *reading) codexHooks(hooks []codexHook, open []clause, base clause) error {
	var rest []scope
	for i, h := range hooks {
		s, err := codexScope(h.Host, anyDepth)
		if err != nil {
			return err
		}
		rest = append(rest, s)
		said := fmt.Sprintf("hook %d, for %s", i+1, h.Host)
		r.left(said + ": actions")
		held := func(set hostSet) bool {
			return slices.ContainsFunc(open, func(c clause) bool { return c.hosts.holds(set) })
		}
		if !slices.ContainsFunc(s.sets, held) {
			continue
		}
		if len(h.Match.Query)+len(h.Match.Headers) > 0 || s.part != "" || len(s.sets) != 1 || s.sets[0].kind != oneName {
			r.stricterf("%s is left out: it matches more than a host, methods and the beginning of a path", said)
			continue
		}
		c := base
		if c.methods = common(base.methods, h.Match.Methods); c.methods == nil && len(base.methods)+len(h.Match.Methods) > 0 {
			continue
		}
		for _, p := range h.Match.PathPrefixes {
			if pattern := startingWith(p); pattern != "" {
				c.paths = append(c.paths, pattern)
			} else {
				r.stricterf("%s: the path %s is left out", said, p)
			}
		}
		if len(h.Match.PathPrefixes) > 0 && len(c.paths) == 0 {
			continue
		}
		if !c.conditional() {
			c.paths = []string{"/**"} // a hook is about requests
		}
		r.allow(said, s, c)
	}
	for i, s := range rest {
		r.deny("what no hook of "+hooks[i].Host+" is about", s, clause{})
	}
	return nil
}

// common is what is in both lists, of which an empty one has all. Nil is nothing, or all if both are empty.
func common(a, b []string) (in []string) {
	if len(a) == 0 || len(b) == 0 {
		return append(slices.Clone(a), b...)
	}
	for _, m := range a {
		if slices.Contains(b, m) {
			in = append(in, m)
		}
	}
	return in
}

func codexScope(text string, wild star) (scope, error) {
	if rest, ok := strings.CutPrefix(text, "**."); ok {
		return scopeOf("*."+rest, anyDepthAndName)
	}
	return everyOr(text, wild)
}
