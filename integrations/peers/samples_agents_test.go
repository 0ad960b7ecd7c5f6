package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// sampleCodex: a deny wins, "**." holds the name too, a hooked host passes only what a hook matches.
func sampleCodex(r *rand.Rand) sample {
	pattern := func() string {
		return pick(r, append(slices.Clone(nameWildcards), "**.x.test", "**.a.x.test", "93.184.216.34")...)
	}
	domains := map[string]string{}
	for range r.IntN(5) {
		domains[pattern()] = pick(r, "allow", "allow", "allow", "deny", "none")
	}
	limited, mitm, enabled := r.IntN(4) == 0, r.IntN(2) == 0, r.IntN(8) > 0
	type hook struct {
		host              string
		methods, prefixes []string
		headers           bool
	}
	hooks := some(r, 2, func() hook {
		h := hook{host: pick(r, nameTexts[:5]...), headers: r.IntN(5) == 0}
		h.methods = some(r, 2, func() string { return pick(r, methodTexts...) })
		h.prefixes = some(r, 2, func() string { return pick(r, pathTexts...) })
		return h
	})
	var b strings.Builder
	fmt.Fprintf(&b, "default_permissions = \"work\"\n[permissions.work.network]\nenabled = %t\nmode = %q\nmitm = %t\n", enabled, map[bool]string{true: "limited", false: "full"}[limited], mitm)
	b.WriteString("[permissions.work.network.domains]\n")
	for _, name := range sortedKeys(domains) {
		fmt.Fprintf(&b, "%q = %q\n", name, domains[name])
	}
	for _, h := range hooks {
		fmt.Fprintf(&b, "[[permissions.work.network.mitm_hooks]]\nhost = %q\n[permissions.work.network.mitm_hooks.match]\nmethods = [%s]\npath_prefixes = [%s]\n",
			h.host, strings.Join(quotedAll(h.methods), ", "), strings.Join(quotedAll(h.prefixes), ", "))
		if h.headers {
			b.WriteString("headers = {\"x-key\" = [\"1\"]}\n")
		}
	}
	b.WriteString("[permissions.other.network]\nenabled = true\n[permissions.other.network.domains]\n\"*\" = \"allow\"\n")
	matches := func(pattern string, q question) bool {
		if rest, ok := strings.CutPrefix(pattern, "**."); ok {
			return q.host == rest || wildcard("*."+rest, q)
		}
		return wildcard(pattern, q)
	}
	return sample{text: []byte(b.String()), allows: func(q question) bool {
		allowed := false
		for name, word := range domains {
			if matches(name, q) && word == "deny" {
				return false
			}
			allowed = allowed || word == "allow" && matches(name, q)
		}
		if !enabled || !allowed {
			return false
		}
		if limited && (!slices.Contains([]string{"GET", "HEAD", "OPTIONS"}, q.method) || q.port != 80 && !mitm) {
			return false
		}
		hooked := false
		for _, h := range hooks {
			if h.host != q.host {
				continue
			}
			hooked = true
			method := len(h.methods) == 0 || slices.Contains(h.methods, q.method)
			path := len(h.prefixes) == 0 || slices.ContainsFunc(h.prefixes, func(p string) bool { return strings.HasPrefix(q.path, p) })
			if q.method != "" && method && path && !h.headers {
				return true
			}
		}
		return !hooked
	}}
}

// sampleGhAw: a name holds what is below it, a block wins, and only ports 80 and 443 are served.
func sampleGhAw(r *rand.Rand) sample {
	pattern := func() string {
		return pick(r, "", "", "", "https://", "http://") + pick(r, append(slices.Clone(nameWildcards), "prod-*.x.test")...)
	}
	allowed, blocked := some(r, 3, pattern), some(r, 2, pattern)
	type rule struct {
		Domain     string `json:"domain"`
		Subdomains bool   `json:"subdomains"`
	}
	rules := some(r, 2, func() rule { return rule{pick(r, nameTexts[:6]...), r.IntN(2) == 0} })
	matches := func(pattern string, q question) bool {
		scheme, rest, ok := strings.Cut(pattern, "://")
		if !ok {
			scheme, rest = "", pattern
		}
		if scheme == "https" && q.port != 443 || scheme == "http" && q.port != 80 || q.addr.IsValid() {
			return false
		}
		if strings.Contains(rest, "*") {
			return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(rest), `\*`, `.*`) + "$").MatchString(q.host)
		}
		return q.host == rest || isBelow(q.host, rest)
	}
	return sample{
		text: asJSON(map[string]any{"network": map[string]any{"allowDomains": allowed, "blockDomains": blocked}, "version": 1, "rules": rules}),
		allows: func(q question) bool {
			if q.port != 80 && q.port != 443 || slices.ContainsFunc(blocked, func(b string) bool { return matches(b, q) }) {
				return false
			}
			return slices.ContainsFunc(allowed, func(a string) bool { return matches(a, q) }) ||
				slices.ContainsFunc(rules, func(one rule) bool {
					return !q.addr.IsValid() && (q.host == one.Domain || one.Subdomains && isBelow(q.host, one.Domain))
				})
		},
	}
}

type shellMatch struct {
	Method string         `json:"method,omitempty"`
	Path   string         `json:"path,omitempty"`
	Query  map[string]any `json:"query,omitempty"`
}

// holds is a match of OpenShell: "*" is within a segment, "**" any text.
func (m shellMatch) holds(q question) bool {
	glob := regexp.QuoteMeta(m.Path)
	glob = strings.ReplaceAll(glob, `\*\*`, "\x00")
	glob = strings.ReplaceAll(strings.ReplaceAll(glob, `\*`, "[^/]*"), "\x00", ".*")
	return len(m.Query) == 0 && q.method != "" && (m.Method == "" || m.Method == "*" || m.Method == q.method) &&
		(m.Path == "" || regexp.MustCompile("^"+glob+"$").MatchString(q.path))
}

func sampleOpenShell(r *rand.Rand) sample {
	type endpoint struct {
		Host     string                   `json:"host"`
		Ports    []int                    `json:"ports,omitempty"`
		Protocol string                   `json:"protocol,omitempty"`
		Enforce  string                   `json:"enforcement"`
		Access   string                   `json:"access,omitempty"`
		Rules    []map[string]*shellMatch `json:"rules,omitempty"`
		Denies   []shellMatch             `json:"deny_rules,omitempty"`
		IPs      []string                 `json:"allowed_ips,omitempty"`
	}
	match := func() shellMatch {
		m := shellMatch{Method: pick(r, "", "*", "GET", "POST", "HEAD"), Path: pick(r, "", "/**", "/a/**", "/a/**", "/a/*", "/a", "/a/*/c", pick(r, "/a/**", "/**/c", "/[ab]"))}
		if r.IntN(8) == 0 {
			m.Query = map[string]any{"k": "v"}
		}
		return m
	}
	anyProgram := r.IntN(4) > 0
	endpoints := some(r, 8, func() endpoint {
		e := endpoint{Host: pick(r, "x.test", "x.test", "a.x.test", "b.a.x.test", "**.x.test", "**.test", "93.184.216.34", "*.x.test"), Enforce: "enforce"}
		e.Ports = some(r, 4, func() int { return pick(r, 443, 80, 22, 8080) })
		if r.IntN(2) == 0 {
			e.Protocol = "rest"
			e.Access = pick(r, "", "read-only", "read-write", "full")
			e.Rules = some(r, 2, func() map[string]*shellMatch { m := match(); return map[string]*shellMatch{"allow": &m} })
			e.Denies = some(r, 2, match)
		}
		if r.IntN(8) == 0 {
			e.IPs = []string{"10.0.0.0/8"}
		}
		return e
	})
	binaries := []map[string]string{{"path": map[bool]string{true: "/**", false: "/usr/bin/git"}[anyProgram]}}
	about := func(e endpoint, q question) bool {
		ports := e.Ports
		if len(ports) == 0 {
			ports = []int{443}
		}
		rest, deep := strings.CutPrefix(e.Host, "**.")
		label, single := strings.CutPrefix(e.Host, "*.")
		host := e.Host == q.host || deep && isBelow(q.host, rest) || single && labelsBelow(q.host, label) == 1
		return host && slices.Contains(ports, int(q.port))
	}
	return sample{
		text: asJSON(map[string]any{"version": 1, "network_policies": map[string]any{"p": map[string]any{"name": "p", "endpoints": endpoints, "binaries": binaries}}}),
		allows: func(q question) bool {
			if !anyProgram {
				return false // to the program that asks
			}
			for _, e := range endpoints {
				if about(e, q) && slices.ContainsFunc(e.Denies, func(d shellMatch) bool { return d.holds(q) }) {
					return false
				}
			}
			return slices.ContainsFunc(endpoints, func(e endpoint) bool {
				if !about(e, q) || len(e.IPs) > 0 && !anyIn(e.IPs, q.addrs()) {
					return false
				}
				if e.Protocol == "" {
					return true
				}
				methods := map[string][]string{"read-only": {"GET", "HEAD", "OPTIONS"}, "read-write": {"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"}, "full": methodTexts}[e.Access]
				return slices.Contains(methods, q.method) || slices.ContainsFunc(e.Rules, func(rule map[string]*shellMatch) bool { return rule["allow"].holds(q) })
			})
		},
	}
}

func sampleSmokescreen(r *rand.Rand) sample {
	domain := func() string { return pick(r, append(slices.Clone(nameWildcards), "93.184.216.34")...) }
	own, allowed, denied := some(r, 3, domain), some(r, 2, domain), some(r, 2, domain)
	action := pick(r, "enforce", "enforce", "enforce", "report", "open")
	service := map[string]any{"name": "ci", "project": "p", "action": action, "allowed_domains": own}
	other := map[string]any{"name": "other", "project": "p", "action": "open"}
	return sample{
		name: "ci",
		text: asJSON(map[string]any{"version": "v1", "services": []any{other, service}, "global_allow_list": allowed, "global_deny_list": denied}),
		allows: func(q question) bool {
			in := func(list []string) bool {
				return slices.ContainsFunc(list, func(d string) bool { return wildcard(d, q) })
			}
			switch {
			case in(own):
				return true
			case in(denied):
				return false
			}
			return in(allowed) || action != "enforce"
		},
	}
}

// ruleMatches is a target of first-match policies: a name, a wildcard, an address or a prefix.
func ruleMatches(target string, q question, withName bool) bool {
	if rest, ok := strings.CutPrefix(target, "*."); ok && withName && q.host == rest {
		return true
	}
	return target == "*" || wildcard(target, q) || anyIn([]string{target}, q.addrs())
}

// firstMatch decides by the first rule that is about a question, by its name or by any of its addresses.
func firstMatch(open bool, n int, matches func(int, question) bool, allows func(int) bool) func(question) bool {
	return func(q question) bool {
		for i := range n {
			if matches(i, q) {
				return allows(i)
			}
		}
		return open
	}
}

func sampleOpenSandbox(r *rand.Rand) sample {
	type rule struct {
		Action string `json:"action"`
		Target string `json:"target"`
	}
	open := r.IntN(3) == 0
	rules := some(r, 5, func() rule {
		return rule{pick(r, "allow", "allow", "deny"), pick(r, slices.Concat(nameWildcards, prefixTexts[:6])...)}
	})
	return sample{
		text: asJSON(map[string]any{"defaultAction": map[bool]string{true: "allow", false: "deny"}[open], "egress": append([]rule{}, rules...)}),
		allows: firstMatch(open, len(rules), func(i int, q question) bool { return ruleMatches(rules[i].Target, q, false) },
			func(i int) bool { return rules[i].Action == "allow" }),
	}
}

func samplePipelock(r *rand.Rand) sample {
	if r.IntN(4) == 0 {
		return samplePipelockNative(r)
	}
	type rule struct {
		Name    string   `json:"name"`
		Action  string   `json:"action"`
		Domains []string `json:"domains,omitempty"`
		CIDRs   []string `json:"cidrs,omitempty"`
	}
	open := r.IntN(3) == 0
	rules := some(r, 4, func() rule {
		return rule{"n", pick(r, "allow", "deny"), some(r, 2, func() string { return pick(r, append(slices.Clone(nameWildcards), "*")...) }), some(r, 2, func() string { return pick(r, prefixTexts[:6]...) })}
	})
	return sample{
		text: asJSON(map[string]any{"policy_version": "0.1", "egress": map[string]any{"default": map[bool]string{true: "allow", false: "deny"}[open], "rules": append([]rule{}, rules...)}}),
		allows: firstMatch(open, len(rules), func(i int, q question) bool {
			return slices.ContainsFunc(rules[i].Domains, func(d string) bool {
				return d == "*" && !q.addr.IsValid() || d != "*" && ruleMatches(d, question{host: q.host, addr: q.addr}, true)
			}) || anyIn(rules[i].CIDRs, q.addrs())
		}, func(i int) bool { return rules[i].Action == "allow" }),
	}
}

func samplePipelockNative(r *rand.Rand) sample {
	mode := pick(r, "strict", "strict", "balanced", "audit")
	allowed, blocked := some(r, 3, func() string { return pick(r, nameWildcards...) }), some(r, 2, func() string { return pick(r, nameWildcards...) })
	internal := some(r, 2, func() string { return pick(r, prefixTexts[:6]...) })
	return sample{
		text: asJSON(map[string]any{"mode": mode, "api_allowlist": allowed, "internal": internal, "fetch_proxy": map[string]any{"monitoring": map[string]any{"blocklist": blocked}}, "dlp": map[string]any{}}),
		allows: func(q question) bool {
			// Whether "*." holds the name is not documented for both lists: the stricter reading is asked.
			if slices.ContainsFunc(blocked, func(d string) bool { return ruleMatches(d, q, true) }) || anyIn(internal, q.addrs()) {
				return false
			}
			return mode != "strict" || slices.ContainsFunc(allowed, func(d string) bool { return wildcard(d, q) })
		},
	}
}

func sampleMicrosandbox(r *rand.Rand) sample {
	type rule struct {
		Direction   string              `json:"direction"`
		Destination any                 `json:"destination"`
		Protocols   []string            `json:"protocols,omitempty"`
		Ports       []map[string]uint16 `json:"ports,omitempty"`
		Action      string              `json:"action"`
	}
	open := r.IntN(4) == 0
	rules := some(r, 5, func() rule {
		one := rule{Direction: pick(r, "egress", "egress", "any", "ingress"), Action: pick(r, "allow", "allow", "deny")}
		one.Destination = pick[any](r, "any",
			map[string]string{"cidr": pick(r, prefixTexts[:6]...)}, map[string]string{"cidr": pick(r, prefixTexts[:6]...)},
			map[string]string{"domain": pick(r, nameTexts...)}, map[string]string{"domain": pick(r, nameTexts...)},
			map[string]string{"domain_suffix": pick(r, "x.test", "a.x.test", "test")},
			map[string]string{"group": pick(r, "public", "private", "loopback", "metadata", "host")})
		if r.IntN(3) == 0 {
			one.Protocols = pick(r, []string{"tcp"}, []string{"udp"}, []string{"udp", "tcp"})
		}
		if r.IntN(2) == 0 {
			one.Ports = []map[string]uint16{{"start": pick[uint16](r, 22, 80, 443), "end": pick[uint16](r, 443, 8443)}}
		}
		return one
	})
	return sample{
		text: asJSON(map[string]any{"default_egress": map[bool]string{true: "allow", false: "deny"}[open], "default_ingress": "deny", "rules": append([]rule{}, rules...)}),
		allows: firstMatch(open, len(rules), func(i int, q question) bool {
			one := rules[i]
			if one.Direction == "ingress" || one.Protocols != nil && !slices.Contains(one.Protocols, "tcp") {
				return false
			}
			if len(one.Ports) > 0 && (q.port < one.Ports[0]["start"] || q.port > one.Ports[0]["end"]) {
				return false
			}
			to, ok := one.Destination.(map[string]string)
			if !ok {
				return true
			}
			for kind, value := range to {
				switch kind {
				case "cidr":
					return anyIn([]string{value}, q.addrs())
				case "domain":
					return q.host == value
				case "domain_suffix":
					return q.host == value || isBelow(q.host, value)
				}
				return anyInGroup(value, q)
			}
			return false
		}, func(i int) bool { return rules[i].Action == "allow" }),
	}
}

// anyInGroup reports whether an address of the question is in a group. A name whose addresses are not known is public.
func anyInGroup(group string, q question) bool {
	in := func(group string, a netip.Addr) bool {
		switch group {
		case "loopback":
			return a.IsLoopback()
		case "private":
			return a.IsPrivate()
		case "metadata":
			return a.String() == "169.254.169.254"
		}
		return false
	}
	public := func(a netip.Addr) bool { return a.IsGlobalUnicast() && !a.IsPrivate() }
	if group == "public" {
		return len(q.addrs()) == 0 || slices.ContainsFunc(q.addrs(), public)
	}
	return slices.ContainsFunc(q.addrs(), func(a netip.Addr) bool { return in(group, a) })
}
