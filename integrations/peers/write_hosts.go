package peers

import (
	"encoding/json"
	"slices"
	"strings"
)

func writeJSON(v any) (string, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return string(text) + "\n", err
}

// srtForm: a deny wins, a line is a host or a host with one port, "*:22" denies a port. Prefixes stand in deniedResolvedAddresses.
var srtForm = form{
	single: true, resolves: true, decides: denyFirst,
	says: func(e entry) bool {
		switch {
		case e.hosts == everything:
			return !e.allow && e.ports != nil
		case isPrefix(e.hosts) && !e.allow:
			return e.ports == nil
		}
		return isName(e.hosts) || isSingle(e.hosts)
	},
}

func (w *writing) srtNetwork() map[string]any {
	lines := w.lines(srtForm)
	denied := slices.DeleteFunc(slices.Clone(lines), func(e entry) bool { return isPrefix(e.hosts) })
	addresses := slices.DeleteFunc(slices.Clone(lines), func(e entry) bool { return !isPrefix(e.hosts) })
	resolved := texts(addresses, false, func(e entry) string { return e.hosts.String() })
	return map[string]any{
		"allowedDomains": texts(lines, true, hostText), "deniedDomains": texts(denied, false, hostText), "deniedResolvedAddresses": resolved,
	}
}

func writeSRT(w *writing) (string, error) {
	return writeJSON(map[string]any{"network": w.srtNetwork()})
}

func writeClaude(w *writing) (string, error) {
	network := w.srtNetwork()
	network["strictAllowlist"] = true
	return writeJSON(map[string]any{"sandbox": map[string]any{"enabled": true, "network": network}})
}

// writeDocker: a deny wins, "**." is any depth. Whether a denied range holds against allowed names is not documented.
func writeDocker(w *writing) (string, error) {
	lines := w.lines(form{single: true, resolves: true, decides: denyFirst, says: func(e entry) bool {
		return e.ports == nil || !isPrefix(e.hosts) || isSingle(e.hosts)
	}})
	w.saysResolved()
	w.saysOpen(lines)
	text := func(e entry) string {
		switch e.hosts.kind {
		case belowName, everyHost:
			return "*" + hostText(e)
		case labelName:
			return strings.Replace(hostText(e), "*{1}.", "*.", 1)
		}
		return hostText(e)
	}
	var b strings.Builder
	b.WriteString("#!/bin/sh\nset -eu\nsbx policy init deny-all\n")
	for _, list := range []struct {
		word  string
		allow bool
	}{{"allow", true}, {"deny", false}} {
		if all := texts(lines, list.allow, text); len(all) > 0 {
			b.WriteString("sbx policy " + list.word + " network '" + strings.Join(all, ",") + "'\n")
		}
	}
	return b.String(), nil
}

// writeE2B: an allow wins, names are for ports 80 and 443, addresses for any port.
func writeE2B(w *writing) (string, error) {
	lines := w.lines(form{decides: allowFirst, serves: namesAtWeb, says: func(e entry) bool {
		return e.allow && isName(e.hosts) || isIPv4(e.hosts)
	}})
	w.saysResolved()
	return writeJSON(map[string]any{"allowOut": texts(lines, true, hostText), "denyOut": []string{"0.0.0.0/0"}})
}

func namesAtWeb(h hostSet) []span {
	if isName(h) {
		return webPorts
	}
	return nil
}

// writeDaytona: two lists of what is allowed.
func writeDaytona(w *writing) (string, error) {
	const most = 10 // ranges in a networkAllowList
	lines := w.lines(form{decides: allowFirst, serves: namesAtWeb, says: func(e entry) bool {
		return e.allow && (isName(e.hosts) || isIPv4(e.hosts))
	}})
	var names, prefixes []string
	for _, e := range lines {
		switch {
		case isName(e.hosts):
			names = append(names, e.hosts.String())
		case len(prefixes) < most:
			prefixes = append(prefixes, e.hosts.prefix.String())
		default:
			w.stricterf("%s is left out: Daytona takes %d ranges", e.hosts, most)
		}
	}
	w.saysResolved()
	return writeJSON(map[string]any{"networkBlockAll": len(names)+len(prefixes) == 0, "networkAllowList": strings.Join(prefixes, ","), "domainAllowList": strings.Join(names, ",")})
}

// writeSprites: the most specific name decides, at every port. Addresses are closed, private ones behind names, too.
func writeSprites(w *writing) (string, error) {
	lines := w.lines(form{decides: mostSpecific, says: func(e entry) bool { return isName(e.hosts) }})
	for _, r := range w.table.rows {
		if isPrefix(r.hosts) && !r.hosts.special() && slices.Contains(r.denied, true) && !slices.Contains(specialPrefixes, r.hosts.prefix.String()) {
			w.widerf("a name is let pass that leads to %s", r.hosts)
		}
	}
	type rule struct {
		Domain string `json:"domain"`
		Action string `json:"action"`
	}
	rules := []rule{}
	for _, e := range lines {
		rules = append(rules, rule{e.hosts.String(), map[bool]string{true: "allow", false: "deny"}[e.allow]})
	}
	return writeJSON(map[string]any{"rules": append(rules, rule{"*", "deny"})})
}

// writeVercel: names are for TLS at any port, and subnets.deny comes before all.
func writeVercel(w *writing) (string, error) {
	lines := w.lines(form{decides: denyFirst, resolves: true, says: func(e entry) bool {
		return e.allow && isName(e.hosts) || isPrefix(e.hosts)
	}})
	named := slices.DeleteFunc(slices.Clone(lines), func(e entry) bool { return !isName(e.hosts) })
	ranges := slices.DeleteFunc(slices.Clone(lines), func(e entry) bool { return isName(e.hosts) })
	prefix := func(e entry) string { return e.hosts.prefix.String() }
	return writeJSON(map[string]any{"allow": texts(named, true, hostText), "subnets": map[string]any{"allow": texts(ranges, true, prefix), "deny": texts(ranges, false, prefix)}})
}
