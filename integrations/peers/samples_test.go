package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
)

// samples draws a policy for each peer.
var samples = map[string]func(*rand.Rand) sample{
	"claude": sampleClaude, "codex": sampleCodex, "daytona": sampleDaytona, "docker": sampleDocker, "e2b": sampleE2B,
	"harden-runner": sampleHardenRunner, "modal": sampleModal, "openshell": sampleOpenShell, "smokescreen": sampleSmokescreen,
	"sprites": sampleSprites, "srt": sampleSRT, "vercel": sampleVercel,
}

var nameWildcards = slices.Concat(nameTexts[:6], []string{"*.x.test", "*.a.x.test", "*.test", "*.y.test"})

// drawSRT draws lists of srt. There a deny wins, a host is for all ports, or for the one behind its colon.
func drawSRT(r *rand.Rand) (allowed, denied, addresses []string, allows func(question) bool) {
	entry := func() string {
		text := pick(r, slices.Concat(nameWildcards, []string{"93.184.216.34", "10.1.2.3", "127.0.0.1"})...)
		return text + pick(r, "", "", ":443", ":22")
	}
	allowed = some(r, 4, entry)
	denied = some(r, 3, func() string { return pick(r, entry(), entry(), entry(), "*:22") })
	if r.IntN(3) == 0 {
		addresses = some(r, 2, func() string { return pick(r, prefixTexts...) })
	}
	matches := func(entry string, q question) bool {
		host, port, hasPort := strings.Cut(entry, ":")
		return (!hasPort || port == fmt.Sprint(q.port)) && (host == "*" || wildcard(host, q))
	}
	return allowed, denied, addresses, func(q question) bool {
		for _, d := range denied {
			if matches(d, q) {
				return false
			}
		}
		if anyIn(addresses, q.addrs()) {
			return false
		}
		return slices.ContainsFunc(allowed, func(a string) bool { return matches(a, q) })
	}
}

func sampleSRT(r *rand.Rand) sample {
	allowed, denied, addresses, allows := drawSRT(r)
	network := map[string]any{"allowedDomains": allowed, "deniedDomains": denied, "deniedResolvedAddresses": addresses}
	return sample{text: asJSON(map[string]any{"network": network}), allows: allows}
}

func sampleClaude(r *rand.Rand) sample {
	allowed, denied, addresses, allows := drawSRT(r)
	var rules, refusals, questions []string
	for len(allowed) > 0 && r.IntN(2) == 0 {
		rules, allowed = append(rules, "WebFetch(domain:"+allowed[0]+")"), allowed[1:]
	}
	for len(denied) > 0 && r.IntN(2) == 0 {
		refusals, denied = append(refusals, "WebFetch(domain:"+denied[0]+")"), denied[1:]
	}
	asked := some(r, 2, func() string { return pick(r, nameWildcards...) })
	for _, host := range asked {
		questions = append(questions, "WebFetch(domain:"+host+")")
	}
	network := map[string]any{"allowedDomains": allowed, "deniedDomains": denied, "deniedResolvedAddresses": addresses}
	return sample{text: asJSON(map[string]any{
		"permissions": map[string]any{"allow": append(rules, "Bash(ls)"), "ask": questions, "deny": refusals}, "sandbox": map[string]any{"network": network},
	}), allows: func(q question) bool {
		return allows(q) && !slices.ContainsFunc(asked, func(host string) bool { return wildcard(host, q) })
	}}
}

func sampleE2B(r *rand.Rand) sample {
	open := r.IntN(3) > 0
	allowed := some(r, 4, func() string { return pick(r, slices.Concat(nameWildcards, prefixTexts[:6])...) })
	denied := some(r, 3, func() string { return pick(r, prefixTexts...) })
	at := func(q question, a netip.Addr) bool {
		web := q.port == 80 || q.port == 443
		for _, entry := range allowed {
			if web && !q.addr.IsValid() && wildcard(entry, q) || a.IsValid() && inPrefix(entry, a) {
				return true
			}
		}
		return open && !slices.Contains(denied, "0.0.0.0/0") && !anyIn(denied, []netip.Addr{a})
	}
	return sample{text: asJSON(map[string]any{"allowInternetAccess": open, "allowOut": allowed, "denyOut": denied}), allows: func(q question) bool {
		refused := func(a netip.Addr) bool { return !at(q, a) }
		if len(q.addrs()) == 0 {
			return at(q, netip.Addr{})
		}
		return !slices.ContainsFunc(q.addrs(), refused)
	}}
}
