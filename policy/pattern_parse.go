package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// A PatternError says why text is not a pattern, and what to type instead.
type PatternError struct {
	Text    string
	Problem string // a clause: "it has a scheme"
	Hint    string // the pattern that was probably meant; empty where that is not clear
}

// Error is one sentence of printable ASCII, whatever Text holds.
func (e *PatternError) Error() string {
	sentence := quoteBriefly(e.Text) + " is not a pattern: " + e.Problem
	if e.Hint != "" {
		sentence += "; write " + e.Hint
	}
	return sentence
}

// ParsePattern reads one pattern of a rule file:
//
//	example.com             the host itself
//	*.example.com           every host below it, at any depth, not itself
//	*{1}.example.com        every host directly below it
//	prod-*.example.com      every host directly below it whose label begins with prod-
//	*-prod.example.com      the same, by the end of the label
//	*                       any host
//	93.184.216.34           one address
//	2606:2800::/32          a prefix, without host bits
//	example.com:8443        at one port; an IPv6 address then needs brackets
//	example.com:8000-8999   at a range of ports
//	example.com:*           at any port
//
// A star within a label stands for any text without a dot, none included, and needs a name of two labels behind it.
// Names are compared in their ASCII form, so the label cannot be part of an A-label (xn--).
//
// Without a port it means 80 and 443. Hosts are read as by [ParseHost]. Every
// error is a [*PatternError].
func ParsePattern(text string) (Pattern, error) {
	p, problem := parsePattern(text)
	if problem == "" {
		return p, nil
	}
	explained := explainPattern(text, problem)
	if _, stillWrong := parsePattern(explained.Hint); stillWrong != "" {
		explained.Hint = ""
	}
	return Pattern{}, explained
}

func parsePattern(text string) (p Pattern, problem string) {
	host, port, hasPort, problem := splitPattern(text)
	if problem != "" {
		return Pattern{}, problem
	}
	if p, problem = parsePatternHost(host); problem != "" {
		return Pattern{}, problem
	}
	if !hasPort {
		return p, ""
	}
	if p.ports, problem = parsePorts(port); problem != "" {
		return Pattern{}, problem
	}
	return p, ""
}

// splitPattern takes the brackets off an IPv6 address; without them, more
// than one colon is an address without a port.
func splitPattern(text string) (host, port string, hasPort bool, problem string) {
	if strings.HasPrefix(text, "[") {
		host, rest, closed := strings.Cut(text[1:], "]")
		if !closed || !strings.Contains(host, ":") {
			return "", "", false, "brackets stand only around an IPv6 address or prefix"
		}
		if rest == "" {
			return host, "", false, ""
		}
		port, hasPort = strings.CutPrefix(rest, ":")
		if !hasPort {
			return "", "", false, "what follows the brackets is not a port"
		}
		return host, port, true, ""
	}
	if strings.Count(text, ":") > 1 {
		return text, "", false, ""
	}
	host, port, hasPort = strings.Cut(text, ":")
	return host, port, hasPort, ""
}

func parsePatternHost(host string) (Pattern, string) {
	if host == "*" {
		return Pattern{kind: anyHost}, ""
	}
	if suffix, below := strings.CutPrefix(host, "*."); below {
		name, problem := parseName(suffix)
		if problem == "" && endsInNumber(name) {
			problem = "addresses have no names below them"
		}
		return Pattern{kind: hostsBelow, name: name}, problem
	}
	if strings.Contains(host, "*") {
		return parseOneLabel(host)
	}
	if strings.Contains(host, "/") {
		return parsePrefix(host)
	}
	name, addr, problem := parseHost(host)
	if !addr.IsValid() {
		return Pattern{kind: exactHost, name: name}, problem
	}
	if addr.Is4() && strings.Contains(host, ":") {
		return Pattern{}, "it is an IPv4 address in IPv6 clothes"
	}
	return Pattern{kind: addresses, prefix: netip.PrefixFrom(addr, addr.BitLen())}, problem
}

// anyLabel is how a pattern of hosts directly below a name begins.
const anyLabel = "*{1}."

// parseOneLabel reads a host with one star within its first label.
func parseOneLabel(host string) (Pattern, string) {
	if parent, whole := strings.CutPrefix(host, anyLabel); whole {
		name, problem := parseName(parent)
		if problem == "" && endsInNumber(name) {
			problem = "addresses have no names below them"
		}
		return Pattern{kind: oneLabel, name: "*." + name}, problem
	}
	label, parent, _ := strings.Cut(host, ".")
	if strings.Count(host, "*") != 1 || !strings.HasPrefix(label, "*") && !strings.HasSuffix(label, "*") {
		return Pattern{}, "* stands alone, in front for everything below a name, or at one end of the first label"
	}
	name, problem := parseName(strings.Replace(label, "*", starStands, 1) + "." + parent)
	switch {
	case strings.HasPrefix(strings.ToLower(label), "xn--"):
		return Pattern{}, "the beginning of an A-label says nothing about its name"
	case problem != "":
		return Pattern{}, problem
	case endsInNumber(name):
		return Pattern{}, "addresses have no names below them"
	case strings.Count(name, ".") < 2:
		return Pattern{}, "a star within a label needs a name of two labels behind it"
	}
	_, parent, _ = strings.Cut(name, ".")
	return Pattern{kind: oneLabel, name: strings.ToLower(label) + "." + parent}, ""
}

// starStands takes the place of a star where the rest of a label is checked.
const starStands = "a"

func parsePrefix(text string) (Pattern, string) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return Pattern{}, "it is neither a host nor an address prefix"
	case prefix.Addr().Is4In6():
		return Pattern{}, "it is an IPv4 prefix in IPv6 clothes"
	case prefix != prefix.Masked():
		return Pattern{}, "it has host bits set"
	}
	return Pattern{kind: addresses, prefix: prefix}, ""
}

func parsePorts(text string) (portSet, string) {
	if text == "*" {
		return everyPort(), ""
	}
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, problem := parsePort(low)
	if problem != "" {
		return portSet{}, "the port is not a number from 1 to 65535, a range such as 8000-8999, or *"
	}
	last, problem := parsePort(high)
	if problem != "" || last < first {
		return portSet{}, "the range of ports does not run from a lower port to a higher one"
	}
	return portSet{first, last}, ""
}

// explainPattern names the mistake behind text that is no pattern, with what
// was probably meant. The hint is not checked here. It never holds a host that the
// text, read as a glob, does not hold.
func explainPattern(text, problem string) *PatternError {
	e := &PatternError{Text: text, Problem: problem}
	for _, explain := range []func(*PatternError) bool{
		explainEmpty, explainURL, explainLines, explainPorts, explainWildcard, explainUnicode, explainAddress, explainColons,
	} {
		if explain(e) {
			return e
		}
	}
	return e
}

func explainEmpty(e *PatternError) bool {
	switch {
	case strings.TrimSpace(e.Text) == "":
		e.Problem = "it is empty"
	case e.Text != strings.TrimSpace(e.Text):
		e.Problem, e.Hint = "it has spaces around it", strings.TrimSpace(e.Text)
	case e.Text[0] == ':' && strings.Count(e.Text, ":") == 1:
		e.Problem = "the host is missing"
	default:
		return false
	}
	return true
}

// explainURL finds the parts of a URL that are not host and port.
func explainURL(e *PatternError) bool {
	rest, found := e.Text, false
	if _, after, scheme := strings.Cut(rest, "://"); scheme {
		rest, found, e.Problem = after, true, "it has a scheme"
	}
	if host, _, path := cutAny(rest, "/?#"); path && (found || !isPrefixText(rest)) {
		rest, found, e.Problem = host, true, "it is a URL; paths stand under the key paths"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest, found, e.Problem = rest[at+1:], true, "it has a user name"
	}
	if found {
		e.Hint = rest
	}
	return found
}

func cutAny(text, chars string) (before, after string, found bool) {
	if i := strings.IndexAny(text, chars); i >= 0 {
		return text[:i], text[i+1:], true
	}
	return text, "", false
}

// isPrefixText reports whether the slash in text belongs to an address.
func isPrefixText(text string) bool {
	before, _, found := strings.Cut(strings.TrimPrefix(text, "["), "/")
	_, err := netip.ParseAddr(before)
	return found && (err == nil || endsInNumber(before))
}

// explainLines finds two items of a YAML list that were read as one, since the second is indented deeper.
func explainLines(e *PatternError) bool {
	first, second, found := strings.Cut(e.Text, " - ")
	if found {
		e.Problem = "two items of a list were read as one; indent both alike: - " + quoteBriefly(first) + " and - " + quoteBriefly(second)
	}
	return found
}

// explainPorts finds several ports of one host.
func explainPorts(e *PatternError) bool {
	host, ports, _ := strings.Cut(e.Text, ":")
	if !strings.Contains(ports, ",") || !isASCII(e.Text) || problemOfHost(host) != "" {
		return false
	}
	var each []string
	for port := range strings.SplitSeq(ports, ",") {
		if _, problem := parsePorts(strings.TrimSpace(port)); problem != "" {
			return false
		}
		each = append(each, host+":"+strings.TrimSpace(port))
	}
	e.Problem = "it has several ports; write a pattern for each: " + strings.Join(each, ", ")
	return true
}

func explainWildcard(e *PatternError) bool {
	host, port, _ := strings.Cut(e.Text, ":")
	if port != "" {
		port = ":" + port
	}
	below := strings.TrimLeft(host, "*")
	switch {
	case strings.HasPrefix(host, "."):
		e.Problem, e.Hint = "a name does not begin with a dot", "*"+e.Text
	case !strings.Contains(host, "*") || e.Problem != problemOfHost(host) || !isASCII(host):
		return false
	case octetsBefore(host) > 0:
		e.Problem, e.Hint = "a set of addresses is written as a prefix, such as 10.0.0.0/8", prefixOf(host, port)
	case below != host && !strings.Contains(below, "*"):
		e.Hint = "*." + strings.TrimPrefix(below, ".") + port
	default:
		e.Problem += ", so name each host"
	}
	return true
}

func problemOfHost(host string) string {
	_, problem := parsePatternHost(host)
	return problem
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c >= 0x80 })
}

// octetsBefore counts the leading labels of host that are octets.
func octetsBefore(host string) (n int) {
	for label := range strings.SplitSeq(host, ".") {
		if _, err := strconv.ParseUint(label, 10, 8); err != nil {
			break
		}
		n++
	}
	return n
}

// prefixOf turns "10.1.*" into 10.1.0.0/16, and what names other addresses than a
// prefix holds into "".
func prefixOf(host, port string) string {
	n, labels := octetsBefore(host), strings.Split(host, ".")
	isStar := func(label string) bool { return label != "" && strings.Trim(label, "*") == "" }
	if len(labels) > 4 || slices.ContainsFunc(labels[n:], func(label string) bool { return !isStar(label) }) {
		return ""
	}
	octets := append(labels[:n:n], "0", "0", "0", "0")
	return strings.Join(octets[:4], ".") + "/" + strconv.Itoa(8*n) + port
}

func explainUnicode(e *PatternError) bool {
	host, rest := e.Text, ""
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 {
		host, rest = host[:colon], host[colon:]
	}
	if isASCII(host) {
		return false
	}
	label := ""
	if first, parent, _ := strings.Cut(host, "."); strings.Contains(first, "*") {
		label, host = first+".", parent
	}
	e.Problem = "a name has only ASCII"
	ascii := toALabels(host)
	why := lookalike(host)
	switch {
	case ascii == "":
	case why != "":
		e.Problem = "it " + why + "; type its letters anew, or write " + label + ascii + rest + " if that name is meant"
	default:
		e.Hint = label + ascii + rest
	}
	return true
}

// explainColons finds an IPv6 address or prefix that has a port and no
// brackets.
func explainColons(e *PatternError) bool {
	colon := strings.LastIndexByte(e.Text, ':')
	if strings.Count(e.Text, ":") < 2 || e.Text[0] == '[' {
		return false
	}
	host := e.Text[:colon]
	if _, problem := parsePatternHost(host); problem != "" || !strings.Contains(host, ":") {
		return false
	}
	e.Problem, e.Hint = "an IPv6 address with a port needs brackets", "["+host+"]"+e.Text[colon:]
	return true
}

// explainAddress finds addresses and prefixes that are not written in the one
// way that is read here.
func explainAddress(e *PatternError) bool {
	host, port, hasPort, problem := splitPattern(e.Text)
	if problem != "" {
		host = strings.Trim(e.Text, "[]")
	}
	prefix, err := netip.ParsePrefix(host)
	if err != nil {
		addr, err := netip.ParseAddr(host)
		if err != nil {
			return false
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	p := Pattern{kind: addresses, prefix: prefix.Masked()}
	if hasPort {
		p.ports, _ = parsePorts(port)
	}
	e.Hint = p.String()
	return true
}

// toALabels returns the ASCII form (A-labels, RFC 5890) of a name, or "" if it has none.
// Only hints use the result; no decision does.
func toALabels(name string) string {
	ascii, err := idna.Lookup.ToASCII(name)
	if err != nil {
		return ""
	}
	return ascii
}
