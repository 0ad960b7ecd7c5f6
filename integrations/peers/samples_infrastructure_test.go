package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

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

func sampleInitFirewall(r *rand.Rand) sample {
	names := append(some(r, 4, func() string { return pick(r, nameTexts...) }), "x.test")
	prefixes := some(r, 2, func() string { return pick(r, "93.184.216.0/24", "10.1.0.0/16") })
	script := "#!/bin/bash\nset -euo pipefail\niptables -P OUTPUT DROP\n# for domain in \"evil.test\"; do\n"
	for _, p := range prefixes {
		script += "ipset add allowed-domains " + p + "\n"
	}
	github := r.IntN(2) == 0
	if github {
		script += "gh_ranges=$(curl -s https://api.github.com/meta)\n"
	}
	script += "for domain in \\\n    " + strings.Join(quotedAll(names), " \\\n    ") + "; do\n  dig +short A \"$domain\"\ndone\n"
	return sample{text: []byte(script), allows: func(q question) bool {
		return slices.Contains(names, q.host) || anyIn(prefixes, q.addrs()) || github && (q.host == "github.com" || q.host == "api.github.com")
	}}
}

func sampleCilium(r *rand.Rand) sample {
	type anyMap = map[string]any
	ports := func() []any {
		p := anyMap{"ports": []any{anyMap{"port": pick(r, "443", "80", "22", "0"), "protocol": pick(r, "TCP", "UDP", "ANY")}}}
		if r.IntN(3) == 0 {
			rule := map[string]string{}
			if r.IntN(2) == 0 {
				rule["method"] = pick(r, "GET", "GET|POST", "PO.*")
			}
			if r.IntN(2) == 0 {
				rule["path"] = pick(r, "/a", "/a/.*", "/a.*", "/(a|b)")
			}
			p["rules"] = anyMap{"http": []any{rule}}
		}
		return []any{p}
	}
	rules := some(r, 4, func() anyMap {
		rule := anyMap{}
		switch r.IntN(4) {
		case 0:
			rule["toCIDRSet"] = []any{anyMap{"cidr": pick(r, "93.184.0.0/16", "10.0.0.0/8"), "except": []any{pick(r, "93.184.216.0/24", "10.1.0.0/16")}}}
		case 1:
			rule["toEntities"] = []any{pick(r, "world", "cluster")}
		default:
			rule["toFQDNs"] = []any{
				anyMap{"matchName": pick(r, nameTexts...)},
				anyMap{"matchPattern": pick(r, "*.x.test", "**.x.test", "prod-*.x.test", "**.y.test")},
			}[r.IntN(2):]
		}
		if r.IntN(3) > 0 {
			rule["toPorts"] = ports()
		}
		return rule
	})
	denies := some(r, 2, func() anyMap { return anyMap{"toCIDR": []any{pick(r, prefixTexts[:6]...)}} })
	spec := anyMap{"endpointSelector": anyMap{}}
	limited := r.IntN(8) > 0
	if limited {
		spec["egress"] = append([]anyMap{}, rules...)
		spec["egressDeny"] = denies
	}
	return sample{
		text: asJSON(anyMap{"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": anyMap{"name": "p"}, "spec": spec}),
		allows: func(q question) bool {
			if !limited {
				return true
			}
			for _, d := range denies {
				if anyIn([]string{d["toCIDR"].([]any)[0].(string)}, q.addrs()) {
					return false
				}
			}
			return slices.ContainsFunc(rules, func(rule anyMap) bool { return ciliumReaches(rule, q) && ciliumServes(rule, q) })
		},
		differs: func(q question) bool { return q.path != "" && strings.HasSuffix(q.path, "/") },
	}
}

func ciliumReaches(rule map[string]any, q question) bool {
	if list, ok := rule["toEntities"].([]any); ok {
		return list[0] == "world"
	}
	if list, ok := rule["toCIDRSet"].([]any); ok {
		set := list[0].(map[string]any)
		return slices.ContainsFunc(q.addrs(), func(a netip.Addr) bool {
			return inPrefix(set["cidr"].(string), a) && !inPrefix(set["except"].([]any)[0].(string), a)
		})
	}
	return slices.ContainsFunc(rule["toFQDNs"].([]any), func(n any) bool {
		name := n.(map[string]any)
		if exact, ok := name["matchName"]; ok {
			return exact == q.host
		}
		return !q.addr.IsValid() && ciliumPattern(name["matchPattern"].(string)).MatchString(q.host)
	})
}

func ciliumPattern(pattern string) *regexp.Regexp {
	glob := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `[^.]*`)
	if rest, ok := strings.CutPrefix(pattern, "**."); ok {
		glob = `.+\.` + regexp.QuoteMeta(rest)
	}
	return regexp.MustCompile("^" + glob + "$")
}

func ciliumServes(rule map[string]any, q question) bool {
	list, ok := rule["toPorts"].([]any)
	if !ok {
		return true
	}
	ports := list[0].(map[string]any)
	p := ports["ports"].([]any)[0].(map[string]any)
	if p["protocol"] == "UDP" || p["port"] != "0" && p["port"] != fmt.Sprint(q.port) {
		return false
	}
	rules, ok := ports["rules"].(map[string]any)
	if !ok {
		return true
	}
	http := rules["http"].([]any)[0].(map[string]string)
	full := func(pattern, text string) bool {
		return pattern == "" || regexp.MustCompile("^("+pattern+")$").MatchString(text)
	}
	return q.method != "" && full(http["method"], q.method) && full(http["path"], q.path)
}

// sampleSquid: the first line of which all lists hold decides. A request that is not on port 80 is a CONNECT, whose own
// requests squid does not see.
func sampleSquid(r *rand.Rand) sample {
	type list struct {
		kind   string
		values []string
	}
	domain := func() string {
		return pick(r, "x.test", ".x.test", ".a.x.test", "a.x.test", ".test", "y.test")
	}
	lists := map[string]list{
		"localnet": {"src", []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"}},
		"admins":   {"src", []string{"10.9.9.9"}},
		"good":     {"dstdomain", []string{domain(), domain()}},
		"bad":      {"dstdomain", []string{domain()}},
		"nets":     {"dst", []string{pick(r, prefixTexts[:6]...)}},
		"SSL":      {"port", []string{"443"}},
		"Safe":     {"port", []string{"80", "443", "8000-8999"}},
		"CONNECT":  {"method", []string{"CONNECT"}},
		"reads":    {"method", []string{"GET", "HEAD"}},
		"noon":     {"time", []string{"12:00-13:00"}},
	}
	names := sortedKeys(lists)
	var b strings.Builder
	b.WriteString("# a comment\nhttp_port 3128\n")
	for _, name := range names {
		fmt.Fprintf(&b, "acl %s %s %s\n", name, lists[name].kind, strings.Join(lists[name].values, " "))
	}
	type line struct {
		allow bool
		words []string
	}
	lines := some(r, 5, func() line {
		l := line{allow: r.IntN(2) == 0}
		for range 1 + r.IntN(3) {
			l.words = append(l.words, pick(r, "", "", "!")+pick(r, names...))
		}
		return l
	})
	lines = append(lines, pick(r, line{false, []string{"all"}}, line{true, []string{"localnet"}}, line{false, []string{"bad"}}))
	for _, l := range lines {
		fmt.Fprintf(&b, "http_access %s %s\n", map[bool]string{true: "allow", false: "deny"}[l.allow], strings.Join(l.words, " "))
	}
	// Who asks, and when, a question does not say: a line counts as the stricter of its readings.
	holds := func(word string, allow bool, q question) bool {
		name, negated := strings.CutPrefix(word, "!")
		method := q.method
		if q.port != 80 {
			method = "CONNECT"
		}
		var is bool
		switch l := lists[name]; {
		case name == "all" || name == "localnet":
			is = true
		case name == "admins" || name == "noon":
			return !allow
		case l.kind == "dstdomain":
			is = slices.ContainsFunc(l.values, func(d string) bool {
				rest, dotted := strings.CutPrefix(d, ".")
				return q.host == rest || dotted && isBelow(q.host, rest)
			})
		case l.kind == "dst":
			is = anyIn(l.values, q.addrs())
		case name == "SSL":
			is = q.port == 443
		case name == "Safe":
			is = q.port == 80 || q.port == 443 || q.port >= 8000 && q.port <= 8999
		default:
			is = slices.Contains(l.values, method)
		}
		return is != negated
	}
	return sample{text: []byte(b.String()), allows: func(q question) bool {
		for _, l := range lines {
			if !slices.ContainsFunc(l.words, func(w string) bool { return !holds(w, l.allow, q) }) {
				return l.allow
			}
		}
		return !lines[len(lines)-1].allow
	}, differs: func(q question) bool { return q.port == 80 && q.method == "" }}
}
