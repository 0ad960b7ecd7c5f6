package policy

import (
	"net/netip"
	"strings"
)

// A listedLine is what one line of a file of hosts says.
type listedLine struct {
	patterns []Pattern
	problem  string // a clause about what is not in patterns: "it has a scheme"; empty if nothing is missing
	write    string // what to write instead, of a line that is no pattern; empty if that is not clear
}

// publishedLine reads a line in one of the forms in which lists of hosts to block are published, and reports whether it
// has such a form. The forms mean:
//
//	0.0.0.0 a.example b.example       the hosts themselves (a hosts file); any loopback address may stand in front
//	||a.example^                      the host and every host below it (AdGuard, Adblock Plus)
//	server=/a.example/b.example/      the same, of each host (dnsmasq); local= and address= too
//
// Lines with modifiers that narrow them, and lines that redirect the host, have a problem instead of patterns.
func publishedLine(line string) (l listedLine, published bool) {
	switch {
	case strings.HasPrefix(line, "||"), strings.HasPrefix(line, "@@"):
		return adblockLine(line), true
	case strings.HasPrefix(line, "server=/"), strings.HasPrefix(line, "local=/"), strings.HasPrefix(line, "address=/"):
		return dnsmasqLine(line), true
	case strings.ContainsAny(line, " \t"):
		return hostsLine(line)
	}
	return l, false
}

// isListComment reports whether a line is a comment or the title of an Adblock list.
func isListComment(line string) bool {
	if strings.HasPrefix(line, "!") {
		return true
	}
	title, isTitle := strings.CutPrefix(strings.ToLower(line), "[ad")
	return isTitle && (strings.HasPrefix(title, "block") || strings.HasPrefix(title, "guard"))
}

// adblockLine reads a rule for hosts. The modifiers important and all leave its meaning as it is; others narrow it.
func adblockLine(line string) (l listedLine) {
	rest, isBlock := strings.CutPrefix(line, "||")
	if !isBlock {
		l.problem = "it is an exception of an Adblock list, and this file denies"
		if host, ok := strings.CutPrefix(line, "@@||"); ok {
			l.write = hostsIn(strings.TrimRight(host, "^|")) + " under allow in the policy, if it is meant to pass"
		}
		return l
	}
	rest, modifiers, _ := strings.Cut(rest, "$")
	for one := range strings.SplitSeq(modifiers, ",") {
		if one != "" && one != "important" && one != "all" {
			l.problem = "the modifier " + quoteBriefly(one) + " of an Adblock list narrows the rule in a way that is not read here"
			return l
		}
	}
	host, closed := strings.CutSuffix(rest, "^")
	if !closed {
		l.problem = "a rule of an Adblock list without ^ at its end holds more than hosts"
		return l
	}
	if parent, below := strings.CutPrefix(host, "*."); below {
		var p Pattern
		if p, l.problem = parsePatternHost("*." + parent); l.problem == "" {
			l.patterns = []Pattern{p}
		}
		return l
	}
	l.patterns, l.problem = hostAndBelow(host)
	return l
}

// dnsmasqLine reads a setting that keeps names from being resolved: one without an address, or with one that leads nowhere.
func dnsmasqLine(line string) (l listedLine) {
	setting, rest, _ := strings.Cut(line, "=/")
	hosts := strings.Split(rest, "/")
	to := hosts[len(hosts)-1]
	hosts = hosts[:len(hosts)-1]
	switch {
	case len(hosts) == 0:
		l.problem = "the setting of dnsmasq has no / behind the host"
	case setting == "address" && to != "" && to != "#" && !leadsNowhere(to), setting != "address" && to != "":
		l.problem = "the setting of dnsmasq sends the host elsewhere, and blocks nothing"
	}
	if l.problem != "" {
		return l
	}
	for _, host := range hosts {
		patterns, problem := hostAndBelow(strings.TrimLeft(host, "."))
		l.patterns = append(l.patterns, patterns...)
		if problem != "" {
			l.problem = quoteBriefly(host) + " is not a host: " + problem
		}
	}
	return l
}

// hostAndBelow returns the patterns for a host and for every host below it.
func hostAndBelow(host string) ([]Pattern, string) {
	name, addr, problem := parseHost(host)
	switch {
	case problem != "":
		return nil, problem
	case addr.IsValid():
		return []Pattern{{kind: addresses, prefix: netip.PrefixFrom(addr, addr.BitLen())}}, ""
	}
	return []Pattern{{kind: exactHost, name: name}, {kind: hostsBelow, name: name}}, ""
}

// hostsLine reads a line of a hosts file (hosts(5)). The names of every machine itself are passed over.
func hostsLine(line string) (l listedLine, isHosts bool) {
	fields := strings.Fields(line)
	address, _, _ := strings.Cut(fields[0], "%")
	if _, err := netip.ParseAddr(address); err != nil {
		return l, false
	}
	nowhere := leadsNowhere(address)
	for _, one := range fields[1:] {
		if isOwnName(one) || leadsNowhere(one) {
			continue
		}
		if !nowhere {
			l.problem = "the line of a hosts file gives " + quoteBriefly(one) + " an address, and blocks nothing"
			return l, true
		}
		name, addr, problem := parseHost(one)
		switch {
		case problem != "":
			l.problem = quoteBriefly(one) + " is not a host: " + problem
		case addr.IsValid():
			l.problem = quoteBriefly(one) + " is an address, and a hosts file lists names"
		default:
			l.patterns = append(l.patterns, Pattern{kind: exactHost, name: name})
		}
	}
	return l, true
}

// leadsNowhere reports whether text is an address that lists of hosts give to what they block.
func leadsNowhere(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && (addr.IsUnspecified() || addr.IsLoopback())
}

// isOwnName reports whether every machine has name in its hosts file for itself or its network.
func isOwnName(name string) bool {
	switch strings.ToLower(name) {
	case "localhost", "localhost.localdomain", "localhost4", "localhost6", "localhost4.localdomain4", "localhost6.localdomain6", "local", "broadcasthost",
		"ip6-localhost", "ip6-loopback", "ip6-localnet", "ip6-mcastprefix", "ip6-allnodes", "ip6-allrouters", "ip6-allhosts":
		return true
	}
	return false
}

// hostsIn is how the hosts of an Adblock rule are written as patterns: "a.example and *.a.example".
func hostsIn(host string) string {
	patterns, problem := hostAndBelow(host)
	if problem != "" {
		return "its host"
	}
	return textsOf(patterns, " and ")
}

func textsOf(patterns []Pattern, between string) string {
	texts := make([]string, len(patterns))
	for i, p := range patterns {
		texts[i] = p.String()
	}
	return strings.Join(texts, between)
}
