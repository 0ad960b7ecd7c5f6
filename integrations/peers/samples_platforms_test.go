package peers

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
)

// dockerMatches is a resource of sbx: "*." one label, "**." any depth, "*" within a label else.
func dockerMatches(resource string, q question) bool {
	host, port, hasPort := strings.Cut(resource, ":")
	if hasPort && port != fmt.Sprint(q.port) {
		return false
	}
	rest, deep := strings.CutPrefix(host, "**.")
	switch {
	case host == "**":
		return true
	case deep:
		return !q.addr.IsValid() && isBelow(q.host, rest)
	case strings.Contains(host, "*"):
		glob := "^" + strings.ReplaceAll(regexp.QuoteMeta(host), `\*`, `[^.]*`) + "$"
		return !q.addr.IsValid() && regexp.MustCompile(glob).MatchString(q.host)
	}
	return host == q.host || anyIn([]string{host}, q.addrs()) && strings.ContainsAny(host, "0123456789/") && host[0] <= '9'
}

func sampleDocker(r *rand.Rand) sample {
	if r.IntN(4) == 0 {
		return sampleDockerDesktop(r)
	}
	resource := func() string {
		name := pick(r, slices.Concat(nameTexts[:6], []string{"**.x.test", "*.x.test", "**.a.x.test", "*.test", "prod-*.x.test", "*-1.x.test", "**"})...)
		return pick(r, name, name, name+":443", pick(r, name+":22", "93.184.216.34", "10.1.2.3"), "93.184.0.0/16")
	}
	type rule struct {
		Name         string   `json:"name"`
		ResourceType string   `json:"resource_type"`
		Decision     string   `json:"decision"`
		Status       string   `json:"status"`
		Resources    []string `json:"resources"`
		Methods      []string `json:"methods,omitempty"`
		Actions      []string `json:"actions,omitempty"`
	}
	rules := some(r, 5, func() rule {
		one := rule{"r", pick(r, "network", "network", "network", "filesystem"), pick(r, "allow", "allow", "deny"), pick(r, "active", "active", "inactive"), some(r, 2, resource), nil, nil}
		if r.IntN(3) == 0 {
			one.Methods = some(r, 2, func() string { return pick(r, methodTexts...) })
		}
		if r.IntN(4) == 0 {
			one.Actions = pick(r, []string{"connect:tcp"}, []string{"connect:udp"}, []string{"connect:tcp", "connect:udp"})
		}
		return one
	})
	if rules == nil {
		rules = []rule{}
	}
	return sample{text: asJSON(map[string]any{"rules": rules}), allows: func(q question) bool {
		holds := func(decision string) bool {
			return slices.ContainsFunc(rules, func(one rule) bool {
				tcp := len(one.Actions) == 0 || slices.Contains(one.Actions, "connect:tcp")
				method := len(one.Methods) == 0 || slices.Contains(one.Methods, q.method)
				return one.Decision == decision && one.Status == "active" && one.ResourceType == "network" && tcp && method &&
					slices.ContainsFunc(one.Resources, func(s string) bool {
						if decision == "allow" && len(q.resolved) > 0 {
							q.resolved = nil // an allowed range opens no name
						}
						return dockerMatches(s, q)
					})
			})
		}
		return !holds("deny") && holds("allow")
	}}
}

// sampleDockerDesktop is proxy-config.json: the most specific entry about the host decides, and a blocked range holds
// against the addresses of what is not allowed by name.
func sampleDockerDesktop(r *rand.Rand) sample {
	host := func() string { return pick(r, nameWildcards...) + pick(r, "", "", ":443") }
	mode := pick(r, "allow", "deny")
	allowed, blocked := some(r, 3, host), some(r, 3, host)
	blockedPrefixes := some(r, 2, func() string { return pick(r, prefixTexts[:6]...) })
	return sample{
		text: asJSON(map[string]any{"policy": mode, "network": map[string]any{"allowedDomains": allowed, "blockedDomains": blocked, "blockCIDR": blockedPrefixes}}),
		allows: func(q question) bool {
			best, verdict, named := -1, mode == "allow", false
			for i, list := range [][]string{allowed, blocked} {
				for _, entry := range list {
					name, port, hasPort := strings.Cut(entry, ":")
					if !wildcard(name, q) || hasPort && port != fmt.Sprint(q.port) {
						continue
					}
					weight := 2 * len(strings.TrimPrefix(name, "*."))
					if !strings.HasPrefix(name, "*.") {
						weight += 1000
					}
					if weight > best || weight == best && i == 1 {
						best, verdict, named = weight, i == 0, true
					}
				}
			}
			if named && verdict {
				return true
			}
			return verdict && !anyIn(blockedPrefixes, q.addrs())
		},
	}
}

func pathMatch(r *rand.Rand) map[string]string {
	return pick(r, map[string]string{"exact": pick(r, pathTexts...)}, map[string]string{"startsWith": pick(r, pathTexts...)}, map[string]string{"regex": "^/a.*"})
}

type vercelAnswer map[string]any

// vercelHolds reports whether the match of a rule holds.
func vercelHolds(rule vercelAnswer, q question) bool {
	match, ok := rule["match"].(map[string]any)
	if !ok {
		return true
	}
	if methods, ok := match["method"].([]string); ok && !slices.Contains(methods, q.method) {
		return false
	}
	for key, text := range map[string]string{"headers": q.key, "queryString": q.parameter} {
		conditions, _ := match[key].([]map[string]map[string]string)
		for _, c := range conditions {
			exact, isExact := c["value"]["exact"]
			if text == "" || c["value"]["regex"] != "" && !strings.HasSuffix(text, "b") || isExact && exact != text || !strings.HasPrefix(text, c["value"]["startsWith"]) {
				return false
			}
		}
	}
	path, _ := match["path"].(map[string]string)
	for kind, text := range path {
		switch kind {
		case "exact":
			return q.path == text
		case "startsWith":
			return strings.HasPrefix(q.path, text)
		case "regex":
			return regexp.MustCompile(text).MatchString(q.path)
		}
	}
	return true
}

func sampleVercel(r *rand.Rand) sample {
	allowed := some(r, 3, func() string { return pick(r, nameWildcards...) })
	rules := map[string][]vercelAnswer{}
	subnets := map[string][]string{
		"allow": some(r, 2, func() string { return pick(r, prefixTexts[:6]...) }), "deny": some(r, 2, func() string { return pick(r, prefixTexts[:6]...) }),
	}
	var allow any = allowed
	if r.IntN(2) == 0 {
		for _, name := range allowed {
			rules[name] = some(r, 3, func() vercelAnswer {
				rule := vercelAnswer{}
				if r.IntN(4) > 0 {
					match := map[string]any{}
					if r.IntN(2) == 0 {
						match["method"] = []string{pick(r, methodTexts...), pick(r, methodTexts...)}
					}
					if r.IntN(2) == 0 {
						match["path"] = pathMatch(r)
					}
					for _, key := range []string{"headers", "queryString"} {
						if r.IntN(4) == 0 {
							name := map[string]string{"headers": "X-Key", "queryString": "k"}[key]
							value := pick(r, nil, map[string]string{"exact": "a"}, map[string]string{"exact": "v"}, map[string]string{"startsWith": "v"}, map[string]string{"startsWith": "a"}, map[string]string{"regex": "b$"})
							match[key] = []map[string]map[string]string{{"key": {"exact": name}, "value": value}}
						}
					}
					rule["match"] = match
				}
				rule[pick(r, "transform", "response")] = map[string]any{}
				return rule
			})
			if rules[name] = append([]vercelAnswer{}, rules[name]...); r.IntN(2) == 0 {
				rules[name] = append(rules[name], vercelAnswer{"response": map[string]any{}}) // which denies the rest
			}
		}
		allow = rules
	}
	return sample{
		text: asJSON(map[string]any{"allow": allow, "subnets": subnets}),
		allows: func(q question) bool {
			if anyIn(subnets["deny"], q.addrs()) {
				return false
			}
			if anyIn(subnets["allow"], q.addrs()) {
				return true
			}
			best := ""
			for _, name := range allowed {
				if !q.addr.IsValid() && wildcard(name, q) && (best == "" || name == q.host || best != q.host && len(name) > len(best)) {
					best = name
				}
			}
			if best == "" || q.port == 80 {
				return false // a domain is the server name of TLS
			}
			for _, rule := range rules[best] {
				if vercelHolds(rule, q) {
					_, answers := rule["response"]
					return !answers
				}
			}
			return true
		},
		differs: func(q question) bool { return !q.addr.IsValid() && q.port != 443 },
	}
}

func sampleDaytona(r *rand.Rand) sample {
	prefixes := some(r, 3, func() string { return pick(r, prefixTexts[:6]...) })
	domains := some(r, 3, func() string { return pick(r, nameWildcards...) })
	blocked := r.IntN(8) == 0
	return sample{
		text: asJSON(map[string]any{"networkAllowList": strings.Join(prefixes, ","), "domainAllowList": strings.Join(domains, ","), "networkBlockAll": blocked}),
		allows: func(q question) bool {
			if blocked {
				return false
			}
			web := q.port == 80 || q.port == 443
			return anyIn(prefixes, q.addrs()) || web && slices.ContainsFunc(domains, func(d string) bool { return wildcard(d, q) })
		},
	}
}

func sampleModal(r *rand.Rand) sample {
	settings := map[string]any{}
	prefixes := some(r, 3, func() string { return pick(r, prefixTexts[:6]...) })
	domains := some(r, 3, func() string { return pick(r, nameWildcards...) })
	python := "sandbox = modal.Sandbox.create(\n  \"sleep\",  # outbound_cidr_allowlist=[\"0.0.0.0/0\"]\n"
	list := func(key string, values []string) {
		settings[key] = append([]string{}, values...)
		python += "  " + key + "=[" + strings.Join(quotedAll(values), ", ") + "],\n"
	}
	hasPrefixes, hasDomains, blocked := r.IntN(3) > 0, r.IntN(3) > 0, r.IntN(8) == 0
	if hasPrefixes {
		list("outbound_cidr_allowlist", prefixes)
	}
	if hasDomains {
		list("outbound_domain_allowlist", domains)
	}
	settings["block_network"] = blocked
	python += fmt.Sprintf("  block_network=%s,\n)\n", map[bool]string{true: "True", false: "False"}[blocked])
	text := asJSON(settings)
	if r.IntN(2) == 0 {
		text = []byte(python)
	}
	return sample{text: text, allows: func(q question) bool {
		if blocked {
			return false
		}
		if !hasPrefixes && !hasDomains {
			return true
		}
		return hasPrefixes && anyIn(prefixes, q.addrs()) || hasDomains && q.port == 443 && slices.ContainsFunc(domains, func(d string) bool { return wildcard(d, q) })
	}}
}

func quotedAll(texts []string) []string {
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = quoted(text)
	}
	return all
}

// sampleSprites: a name is allowed by its most specific rule, and a deny wins between two for the same. Addresses are closed.
func sampleSprites(r *rand.Rand) sample {
	type rule struct {
		Domain  string `json:"domain,omitempty"`
		Action  string `json:"action,omitempty"`
		Include string `json:"include,omitempty"`
	}
	rules := some(r, 6, func() rule {
		if r.IntN(8) == 0 {
			return rule{Include: "defaults"}
		}
		return rule{Domain: pick(r, append(slices.Clone(nameWildcards), "*")...), Action: pick(r, "allow", "allow", "deny")}
	})
	return sample{text: asJSON(map[string]any{"rules": rules}), allows: func(q question) bool {
		best, verdict := -1, false
		for _, one := range rules {
			weight := len(one.Domain)
			switch {
			case q.addr.IsValid() || one.Domain == "":
				continue
			case one.Domain == "*":
				weight = 0
			case !wildcard(one.Domain, q):
				continue
			case one.Domain == q.host:
				weight += 1000
			}
			if weight > best || weight == best && one.Action == "deny" {
				best, verdict = weight, one.Action == "allow"
			}
		}
		return verdict
	}}
}
