package peers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
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
	if err := match.takeAll(map[string]any{"methods": &h.Match.Methods, "path_prefixes": &h.Match.PathPrefixes, "query": &h.Match.Query, "headers": &h.Match.Headers}); err != nil {
		return err
	}
	if _, err := match.only("match."); err != nil {
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
	var open []clause
	for _, list := range []struct {
		allow bool
		texts []string
	}{{false, denied}, {true, allowed}} {
		for _, text := range list.texts {
			s, err := codexScope(text)
			if err != nil {
				return err
			}
			like := clause{}
			if list.allow {
				like = base
			}
			r.say(list.allow, text, s, like)
		}
	}
	// A host with hooks passes only what a hook is about.
	slices.SortStableFunc(r.clauses, func(a, b clause) int { return boolFirst(!a.allow, !b.allow) })
	at := slices.IndexFunc(r.clauses, func(c clause) bool { return c.allow })
	if at < 0 {
		return nil
	}
	open = slices.Clone(r.clauses[at:])
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
		s, err := codexScope(h.Host)
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

func codexScope(text string) (scope, error) {
	if rest, ok := strings.CutPrefix(text, "**."); ok {
		return scopeOf("*."+rest, anyDepthAndName)
	}
	return everyOr(text, anyDepth)
}

// readGhAw reads the configuration of gh-aw-firewall, or its file of rules. A name stands for
// what is below it, too, and a deny wins. Its proxy serves ports 80 and 443.
func readGhAw(r *reading, text []byte) error {
	top, err := parseYAML(text)
	if err != nil {
		return err
	}
	var network object
	var rules []struct {
		Domain     string
		Subdomains *bool
	}
	var version json.RawMessage
	if err := top.takeAll(map[string]any{"network": &network, "rules": &rules, "version": &version}); err != nil {
		return err
	}
	var allowed, blocked []string
	if err := network.takeAll(map[string]any{"allowDomains": &allowed, "blockDomains": &blocked}); err != nil {
		return err
	}
	aside, err := network.only("network.", "dnsServers", "upstreamProxy", "isolation", "topologyAttach")
	if err != nil {
		return err
	}
	r.left(aside...)
	r.left(top.keys("")...)
	for _, list := range []struct {
		allow bool
		texts []string
	}{{false, blocked}, {true, allowed}} {
		for _, text := range list.texts {
			s, ports, err := ghAwDomain(text)
			if err != nil {
				return err
			}
			r.say(list.allow, text, s, clause{ports: ports})
		}
	}
	for _, rule := range rules {
		s, ports, err := ghAwDomain(rule.Domain)
		if err != nil {
			return err
		}
		if rule.Subdomains != nil && !*rule.Subdomains {
			s.sets = s.sets[:1]
		}
		r.allow(rule.Domain, s, clause{ports: ports})
	}
	return nil
}

func ghAwDomain(text string) (scope, []span, error) {
	ports := webPorts
	if rest, ok := strings.CutPrefix(text, "https://"); ok {
		text, ports = rest, []span{port(443)}
	} else if rest, ok := strings.CutPrefix(text, "http://"); ok {
		text, ports = rest, []span{port(80)}
	}
	s, err := scopeOf(strings.TrimPrefix(text, "."), anyDepth)
	if err == nil && len(s.sets) == 1 && s.sets[0].kind == oneName {
		s.sets = nameAndBelow(s.sets[0].name)
	}
	return s, ports, err
}

// readOpenShell reads network_policies of an OpenShell policy. Its "*" is one label, "**" any number. Which program
// may reach a host, egressd's rules do not say.
func readOpenShell(r *reading, text []byte) error {
	top, err := parseYAML(text)
	if err != nil {
		return err
	}
	var policies map[string]object
	var version int
	if err := top.takeAll(map[string]any{"network_policies": &policies, "version": &version}); err != nil {
		return err
	}
	r.left(top.keys("")...)
	var all []openShellEndpoint
	for _, key := range sortedKeys(policies) {
		var name string
		var endpoints []object
		var binaries []struct{ Path string }
		if err := policies[key].takeAll(map[string]any{"name": &name, "endpoints": &endpoints, "binaries": &binaries}); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if _, err := policies[key].only(key + "."); err != nil {
			return err
		}
		anyProgram := len(binaries) > 0
		for _, b := range binaries {
			anyProgram = anyProgram && (b.Path == "/**" || b.Path == "**")
		}
		for i, o := range endpoints {
			e, err := openShellEndpointOf(fmt.Sprintf("%s, endpoint %d", key, i+1), o)
			if err != nil {
				return err
			}
			e.anyProgram = anyProgram
			all = append(all, e)
		}
	}
	for _, e := range all {
		if err := e.deny(r); err != nil {
			return err
		}
	}
	for _, e := range all {
		if err := e.allow(r); err != nil {
			return err
		}
	}
	return nil
}

// An openShellEndpoint is one endpoint of a policy. Keys that it does not have make it narrower than egressd can say.
type openShellEndpoint struct {
	said                      string
	host, protocol, access    string
	ports                     []span
	rules                     []struct{ Allow openShellMatch }
	denies                    []openShellMatch
	addresses                 []string
	anyProgram, more, audited bool
}

type openShellMatch map[string]any

func openShellEndpointOf(said string, o object) (e openShellEndpoint, err error) {
	var one uint16
	var many []uint16
	var tls, enforcement, path string
	e.said = said
	if err := o.takeAll(map[string]any{
		"host": &e.host, "port": &one, "ports": &many, "protocol": &e.protocol, "tls": &tls, "enforcement": &enforcement, "access": &e.access,
		"rules": &e.rules, "deny_rules": &e.denies, "allowed_ips": &e.addresses, "path": &path,
	}); err != nil {
		return e, fmt.Errorf("%s: %w", said, err)
	}
	e.more = path != "" || len(o) > 0
	e.audited = enforcement != "enforce"
	if one != 0 {
		many = append(many, one)
	}
	if len(many) == 0 {
		many = []uint16{443}
	}
	for _, n := range many {
		if n == 0 {
			return e, fmt.Errorf("%s: a port is 0", said)
		}
		e.ports = append(e.ports, port(n))
	}
	return e, nil
}

func (e *openShellEndpoint) hosts() (scope, error) {
	if e.host == "" {
		return just(everything), nil
	}
	if rest, ok := strings.CutPrefix(e.host, "**."); ok {
		return scopeOf("*."+rest, anyDepth)
	}
	if e.host == "**" {
		return just(everything), nil
	}
	return hostScope(e.host, oneLabel)
}

func (e *openShellEndpoint) deny(r *reading) error {
	s, err := e.hosts()
	if err != nil {
		return fmt.Errorf("%s: %w", e.said, err)
	}
	for _, d := range e.denies {
		c, whole := d.clause()
		if !whole {
			r.stricterf("%s: a deny is taken for all that its method and path hold", e.said)
		}
		c.ports = e.ports
		r.deny(e.said, s, c)
	}
	return nil
}

func (e *openShellEndpoint) allow(r *reading) error {
	s, err := e.hosts()
	if err != nil {
		return fmt.Errorf("%s: %w", e.said, err)
	}
	if !e.anyProgram && !r.widens(e.said, "only some programs may reach it") {
		return nil
	}
	if e.more && !r.widens(e.said, "it has settings that no rule of egressd has") {
		return nil
	}
	if len(e.addresses) > 0 {
		if e.host == "" {
			r.stricterf("%s: by its addresses alone, and by no name", e.said)
			return r.prefixes(true, e.addresses, clause{ports: e.ports})
		}
		if !r.widens(e.said, "its names may lead to allowed_ips alone") {
			return nil
		}
	}
	clauses, whole := e.ways()
	if e.audited && e.protocol != "" {
		r.stricterf("%s: its rules hold, which OpenShell only reports", e.said)
	}
	if !whole {
		r.stricterf("%s: a rule is left out that says more than a method and a path", e.said)
	}
	for _, c := range clauses {
		c.ports = e.ports
		r.allow(e.said, s, c)
	}
	return nil
}

// ways returns the clauses of what the endpoint allows. whole is false if one had to be left out.
func (e *openShellEndpoint) ways() (clauses []clause, whole bool) {
	whole = true
	switch e.access {
	case "read-only":
		clauses = append(clauses, clause{methods: readOnlyMethods})
	case "read-write":
		clauses = append(clauses, clause{methods: []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"}})
	case "full":
		clauses = append(clauses, clause{paths: []string{"/**"}})
	}
	for _, rule := range e.rules {
		c, same := rule.Allow.clause()
		if whole = whole && same; same {
			clauses = append(clauses, c)
		}
	}
	if e.access == "" && len(e.rules) == 0 && e.protocol == "" {
		clauses = append(clauses, clause{})
	}
	return clauses, whole
}

// clause turns a match into a clause. whole is false if the match says more than a method and a path.
func (m openShellMatch) clause() (c clause, whole bool) {
	whole = true
	for key, value := range m {
		text, isText := value.(string)
		switch {
		case key == "method" && isText && text != "*":
			c.methods = []string{strings.ToUpper(text)}
		case key == "path" && isText && text != "/**" && text != "**":
			pattern := openShellPath(text)
			if whole = whole && pattern != ""; pattern != "" {
				c.paths = []string{pattern}
			}
		case key != "method" && key != "path" || !isText:
			whole = false
		}
	}
	if !c.conditional() {
		c.paths = []string{"/**"}
	}
	return c, whole
}

// openShellPath is the pattern of egressd for a glob of which "/**" at the end needs the slash.
func openShellPath(text string) string {
	base, deep := strings.CutSuffix(text, "/**")
	if strings.Contains(base, "**") || strings.ContainsAny(base, `[]{}!\?`) {
		return ""
	}
	if deep {
		text = base + "/*/**"
	}
	if _, err := policy.ParsePathPattern(text); err != nil {
		return ""
	}
	return text
}
