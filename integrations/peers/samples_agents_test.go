package peers

import (
	"fmt"
	"math/rand/v2"
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
	fmt.Fprintf(&b, "default_permissions = \"work\"\n[permissions.work.network]\nenabled = %t\nmode = %q\nmitm.enabled = %t\n", enabled, map[bool]string{true: "limited", false: "full"}[limited], mitm)
	b.WriteString("[permissions.work.network.domains]\n")
	for _, name := range sortedKeys(domains) {
		fmt.Fprintf(&b, "%q = %q\n", name, domains[name])
	}
	older := r.IntN(2) == 0
	for i, h := range hooks {
		if !older {
			fmt.Fprintf(&b, "[permissions.work.network.mitm.hooks.h%d]\nhost = %q\nmethods = [%s]\npath_prefixes = [%s]\naction = [\"a\"]\n",
				i, h.host, strings.Join(quotedAll(h.methods), ", "), strings.Join(quotedAll(h.prefixes), ", "))
			if h.headers {
				b.WriteString("headers = {\"x-key\" = [\"1\"]}\n")
			}
			continue
		}
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

type shellMatch struct {
	Method string         `json:"method,omitempty"`
	Path   string         `json:"path,omitempty"`
	Query  map[string]any `json:"query,omitempty"`
}

// queryHolds compares k of the query: "*" is text without a dot, "**" any text.
func (m shellMatch) queryHolds(parameter string) bool {
	globs := map[string]string{"v": "^v$", "*": "^[^.]*$", "**": "^.*$", "v*": "^v[^.]*$"}
	matcher, ok := m.Query["k"]
	if !ok {
		return len(m.Query) == 0
	}
	all, _ := matcher.(map[string]any)
	texts, several := all["any"].([]string)
	if !several {
		texts = []string{matcher.(string)}
	}
	return parameter != "" && slices.ContainsFunc(texts, func(text string) bool { return regexp.MustCompile(globs[text]).MatchString(parameter) })
}

// holds is a match of OpenShell: "*" is within a segment, "**" any text.
func (m shellMatch) holds(q question) bool {
	glob := regexp.QuoteMeta(m.Path)
	glob = strings.ReplaceAll(glob, `\*\*`, "\x00")
	glob = strings.ReplaceAll(strings.ReplaceAll(glob, `\*`, "[^/]*"), "\x00", ".*")
	return m.queryHolds(q.parameter) && q.method != "" && (m.Method == "" || m.Method == "*" || m.Method == q.method) &&
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
		if r.IntN(3) == 0 {
			m.Query = map[string]any{"k": pick[any](r, "v", "v", "v", "**", "*", "v*", map[string]any{"any": []string{"v", "**"}})}
		}
		return m
	}
	anyProgram := r.IntN(4) > 0
	endpoints := some(r, 8, func() endpoint {
		e := endpoint{Host: pick(r, "x.test", "x.test", "a.x.test", "b.a.x.test", "**.x.test", "**.a.x.test", "93.184.216.34", "*.x.test"), Enforce: "enforce"}
		e.Ports = append(some(r, 3, func() int { return pick(r, 443, 80, 22, 8080) }), 443)
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
		rest, deep := strings.CutPrefix(e.Host, "**.")
		label, single := strings.CutPrefix(e.Host, "*.")
		host := e.Host == q.host || deep && isBelow(q.host, rest) || single && labelsBelow(q.host, label) == 1
		return host && slices.Contains(e.Ports, int(q.port))
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
func sampleHardenRunner(r *rand.Rand) sample {
	mode := pick(r, "block", "block", "block", "audit")
	endpoints := some(r, 5, func() string {
		return pick(r, append(slices.Clone(nameWildcards), "93.184.216.34")...) + pick(r, ":443", ":443", ":80", ":22")
	})
	text := "with:\n  egress-policy: " + mode + "\n  allowed-endpoints: >\n    " + strings.Join(append(endpoints, ""), "\n    ") + "\n"
	if r.IntN(2) == 0 {
		step := "      - uses: step-security/harden-runner@v2\n        " + strings.ReplaceAll(text, "\n", "\n        ")
		text = "on: push\njobs:\n  test:\n    steps:\n      - uses: actions/checkout@v5\n" + step + "\n"
	}
	return sample{text: []byte(text), allows: func(q question) bool {
		return mode == "audit" || slices.ContainsFunc(endpoints, func(e string) bool {
			host, port, _ := strings.Cut(e, ":")
			return port == fmt.Sprint(q.port) && wildcard(host, q)
		})
	}}
}
