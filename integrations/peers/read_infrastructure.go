package peers

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// readHardenRunner reads the inputs of step-security/harden-runner: a workflow with one such step, or the inputs alone.
func readHardenRunner(r *reading, text []byte) error {
	top, err := parseYAML(text)
	if err != nil {
		return err
	}
	if _, jobs := top["jobs"]; jobs {
		if top, err = hardenRunnerStep(top); err != nil {
			return err
		}
	} else if with, ok := top["with"]; ok {
		if top, err = objectOf(with, "with is no mapping"); err != nil {
			return err
		}
	}
	mode, endpoints := "block", ""
	if err := top.takeAll(map[string]any{"egress-policy": &mode, "allowed-endpoints": &endpoints}); err != nil {
		return err
	}
	r.left(top.keys("")...)
	switch mode {
	case "audit":
		r.open = true
		return nil
	case "block":
	default:
		return fmt.Errorf("egress-policy %q is neither audit nor block", mode)
	}
	for _, text := range strings.Fields(endpoints) {
		host, ports, ok := cutPort(text)
		if !ok {
			return fmt.Errorf("%q is no host with a port", text)
		}
		if ports == nil {
			ports = []span{port(443)}
		}
		s, err := hostScope(host, anyDepth)
		if err != nil {
			return err
		}
		r.allow(text, s, clause{ports: ports})
	}
	return nil
}

// hardenRunnerStep finds the inputs of the only such step of a workflow.
func hardenRunnerStep(workflow object) (object, error) {
	var jobs map[string]struct {
		Steps []struct {
			Uses string
			With object
		}
	}
	if err := workflow.take("jobs", &jobs); err != nil {
		return nil, err
	}
	var found []object
	for _, job := range sortedKeys(jobs) {
		for _, step := range jobs[job].Steps {
			if strings.HasPrefix(step.Uses, "step-security/harden-runner@") {
				found = append(found, step.With)
			}
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("it has %d steps of step-security/harden-runner; give a file with the inputs of one", len(found))
	}
	if found[0] == nil {
		return object{}, nil
	}
	return found[0], nil
}

// readInitFirewall reads the script of the reference dev container: the names of its loop, the ranges that it adds to
// its set, and whether it adds those of GitHub.
func readInitFirewall(r *reading, text []byte) error {
	script := strings.ReplaceAll(string(text), "\\\n", " ")
	names, found := loopWords(script)
	if !found {
		return fmt.Errorf("it has no loop over names, such as: for domain in \"example.com\"; do")
	}
	for _, name := range names {
		if strings.ContainsAny(name, "$`(") {
			r.stricterf("%s is left out: the shell computes it", name)
			continue
		}
		s, err := scopeOf(name, anyDepth)
		if err != nil || s.part != "" {
			return fmt.Errorf("%q is no name", name)
		}
		r.allow(name, s, clause{})
	}
	for _, line := range codeLines(script) {
		words := strings.Fields(line)
		if len(words) >= 4 && words[0] == "ipset" && words[1] == "add" {
			if p, ok := prefixOf(strings.Trim(words[3], `"'`)); ok {
				r.allow(p.String(), just(within(p)), clause{})
			}
		}
		switch {
		case strings.Contains(line, "api.github.com/meta"):
			r.allow("the ranges of GitHub", just(one("github.com"), one("api.github.com")), clause{})
			r.stricter("GitHub: its names github.com and api.github.com, where the script takes all addresses that GitHub lists")
		case slices.Contains(words, "OUTPUT") && slices.Contains(words, "ACCEPT") && slices.Contains(words, "--dport"):
			r.stricterf("%s is left out: it opens a port of every host", strings.Join(words, " "))
		case strings.Contains(line, "HOST_NETWORK") && slices.Contains(words, "ACCEPT"):
			r.stricter("the host's network is left out")
		}
	}
	return nil
}

// codeLines are the lines of a shell script without comments.
func codeLines(script string) (lines []string) {
	for line := range strings.Lines(script) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines
}

var loopHead = regexp.MustCompile(`^for\s+(domain|host|hostname|name|site)\s+in\s+(.*)$`)

// loopWords are the words of the loops over names.
func loopWords(script string) (words []string, found bool) {
	for _, line := range codeLines(script) {
		head := loopHead.FindStringSubmatch(line)
		if head == nil {
			continue
		}
		found = true
		list, _, _ := strings.Cut(head[2], ";")
		for _, w := range strings.Fields(list) {
			if w == "do" {
				break
			}
			words = append(words, strings.Trim(w, `"'`))
		}
	}
	return words, found
}

// readCilium reads the egress rules of CiliumNetworkPolicy objects for one set of pods. Rules add up, and egressDeny
// wins. A star is part of a label, "*" alone is every name, "**." any depth
// (docs.cilium.io, policy language, read 2026-11-25).
func readCilium(r *reading, text []byte) error {
	documents, err := parseDocuments(text)
	if err != nil {
		return err
	}
	var specs []ciliumSpec
	for _, d := range documents {
		var kind string
		var spec *ciliumSpec
		var more []ciliumSpec
		if err := d.takeAll(map[string]any{"kind": &kind, "spec": &spec, "specs": &more}); err != nil {
			return err
		}
		if kind != "CiliumNetworkPolicy" && kind != "CiliumClusterwideNetworkPolicy" {
			return fmt.Errorf("kind %q is no policy of Cilium", kind)
		}
		if spec != nil {
			specs = append(specs, *spec)
		}
		specs = append(specs, more...)
	}
	r.open = true
	for _, s := range specs {
		if s.selector != specs[0].selector {
			return fmt.Errorf("its policies are for different pods, %s and %s; keep those of one", specs[0].selector, s.selector)
		}
		r.open = r.open && s.egress == nil && s.denies == nil
	}
	for _, deny := range []bool{true, false} {
		for _, s := range specs {
			rules := s.egress
			if deny {
				rules = s.denies
			}
			for i, rule := range rules {
				if err := r.ciliumRule(fmt.Sprintf("egress rule %d", i+1), !deny, rule); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

type ciliumSpec struct {
	selector       string
	egress, denies []ciliumRule
}

func (s *ciliumSpec) UnmarshalJSON(text []byte) error {
	var selector json.RawMessage
	o, err := settings(text, parseMember, map[string]any{"endpointSelector": &selector, "egress": &s.egress, "egressDeny": &s.denies})
	if err != nil {
		return err
	}
	s.selector = string(selector)
	_, err = o.only("spec.", "description", "ingress", "ingressDeny", "labels")
	return err
}

type ciliumRule struct {
	names  []struct{ MatchName, MatchPattern string }
	cidrs  []string
	sets   []ciliumSet
	groups []string
	ports  []ciliumPorts
	others []string // keys of destinations that egressd has no word for
}

type ciliumSet struct {
	CIDR   string
	Except []string
	Ref    string `json:"cidrGroupRef"`
}

type ciliumPorts struct {
	Ports []struct {
		Port     any
		EndPort  uint16
		Protocol string
	}
	Rules map[string]json.RawMessage
	more  bool
}

func (p *ciliumPorts) UnmarshalJSON(text []byte) error {
	o, err := settings(text, parseMember, map[string]any{"ports": &p.Ports, "rules": &p.Rules})
	p.more = len(o) > 0 // serverNames, listener, terminatingTLS and the like
	return err
}

func (c *ciliumRule) UnmarshalJSON(text []byte) error {
	o, err := settings(text, parseMember, map[string]any{"toFQDNs": &c.names, "toCIDR": &c.cidrs, "toCIDRSet": &c.sets, "toEntities": &c.groups, "toPorts": &c.ports})
	c.others = o.keys("")
	return err
}

func (r *reading) ciliumRule(said string, allow bool, rule ciliumRule) error {
	if len(rule.others) > 0 {
		if !allow {
			return fmt.Errorf("egressDeny has %s, which egressd has no word for; take it out if it is about the cluster", strings.Join(rule.others, ", "))
		}
		r.stricterf("%s: %s is left out", said, strings.Join(rule.others, ", "))
		return nil
	}
	scopes, err := r.ciliumHosts(said, allow, rule)
	if err != nil {
		return err
	}
	if len(rule.names)+len(rule.cidrs)+len(rule.sets)+len(rule.groups) == 0 && len(rule.ports) > 0 {
		scopes = append(scopes, just(everything))
	}
	ways, err := r.ciliumPorts(said, allow, rule.ports)
	if err != nil {
		return err
	}
	for _, s := range scopes {
		for _, c := range ways {
			r.say(allow, said, s, c)
		}
	}
	return nil
}

func (r *reading) ciliumHosts(said string, allow bool, rule ciliumRule) (scopes []scope, err error) {
	for _, n := range rule.names {
		s, err := ciliumName(n.MatchName, n.MatchPattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", said, err)
		}
		if s.part != "" && (!allow || !r.widens(said+", "+n.MatchPattern, s.part)) {
			continue // Cilium has no names in egressDeny
		}
		scopes = append(scopes, just(s.sets...))
	}
	for _, text := range rule.cidrs {
		rule.sets = append(rule.sets, ciliumSet{CIDR: text})
	}
	for _, set := range rule.sets {
		p, ok := prefixOf(set.CIDR)
		if !ok && set.Ref != "" && allow {
			r.stricterf("%s: the group %s is left out", said, set.Ref)
			continue
		}
		if !ok {
			return nil, fmt.Errorf("%s: %q is no prefix", said, set.CIDR)
		}
		rest := []netip.Prefix{p}
		for _, text := range set.Except {
			hole, ok := prefixOf(text)
			if !ok {
				return nil, fmt.Errorf("%s: except: %q is no prefix", said, text)
			}
			rest = without(rest, hole)
		}
		for _, p := range rest {
			scopes = append(scopes, just(within(p)))
		}
	}
	for _, e := range rule.groups {
		switch {
		case e == "world" || e == "all":
			scopes = append(scopes, just(everything))
		case allow:
			r.stricterf("%s: the entity %s is left out", said, e)
		default:
			return nil, fmt.Errorf("%s: egressd has no word for the entity %s", said, e)
		}
	}
	return scopes, nil
}

func ciliumName(name, pattern string) (scope, error) {
	if name != "" {
		exact, err := policy.ParseName(name)
		return just(one(exact)), err
	}
	if rest, ok := strings.CutPrefix(pattern, "**."); ok {
		return scopeOf("*."+rest, anyDepth)
	}
	return namesOr(pattern, oneLabel)
}

// without cuts a prefix out of prefixes.
func without(all []netip.Prefix, hole netip.Prefix) (rest []netip.Prefix) {
	for _, p := range all {
		switch {
		case !p.Overlaps(hole):
			rest = append(rest, p)
		case p.Bits() < hole.Bits():
			low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
			raised := p.Addr().AsSlice()
			raised[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
			addr, _ := netip.AddrFromSlice(raised)
			rest = append(rest, without([]netip.Prefix{low, netip.PrefixFrom(addr, p.Bits()+1)}, hole)...)
		}
	}
	return rest
}

// ciliumPorts are clauses without hosts, one for each way that ports and requests are named.
func (r *reading) ciliumPorts(said string, allow bool, all []ciliumPorts) (ways []clause, err error) {
	if len(all) == 0 {
		return []clause{{}}, nil
	}
	for _, some := range all {
		c := clause{}
		named := len(some.Ports) > 0
		for _, p := range some.Ports {
			s, ok := ciliumPort(p.Port, p.EndPort)
			switch {
			case p.Protocol != "" && !strings.EqualFold(p.Protocol, "TCP") && !strings.EqualFold(p.Protocol, "ANY"):
			case ok:
				c.ports = append(c.ports, s)
			case allow:
				r.stricterf("%s: the port %v is left out, which has a name", said, p.Port)
			default:
				return nil, fmt.Errorf("%s: the port %v has a name; write its number", said, p.Port)
			}
		}
		if named && len(c.ports) == 0 {
			continue
		}
		if some.more {
			if !allow {
				return nil, fmt.Errorf("%s: its toPorts has more than ports", said)
			}
			r.stricterf("%s is left out: its toPorts has more than ports and rules of HTTP", said)
			continue
		}
		ways = append(ways, r.ciliumHTTP(said, c, some.Rules)...)
	}
	return ways, nil
}

func ciliumPort(number any, end uint16) (span, bool) {
	n, err := strconv.ParseUint(fmt.Sprint(number), 10, 16)
	first := uint16(n)
	if err == nil && n == 0 {
		return allPorts, true
	}
	return span{first, max(first, end)}, err == nil
}

// ciliumHTTP is c, or what rules of HTTP leave of it.
func (r *reading) ciliumHTTP(said string, c clause, rules map[string]json.RawMessage) (ways []clause) {
	if len(rules) == 0 {
		return []clause{c}
	}
	text, ok := rules["http"]
	var all []map[string]json.RawMessage
	if !ok || len(rules) > 1 || json.Unmarshal(text, &all) != nil {
		r.stricterf("%s is left out: its rules are not of HTTP", said)
		return nil
	}
	for _, rule := range all {
		way := c
		whole := true
		for key, value := range rule {
			var text string
			err := json.Unmarshal(value, &text)
			switch {
			case err == nil && key == "method" && methodList.MatchString(text):
				way.methods = strings.Split(text, "|")
			case err == nil && key == "path":
				pattern := regexPath(text)
				way.paths = []string{pattern}
				whole = whole && pattern != ""
			default:
				whole = false
			}
		}
		if !whole {
			r.stricterf("%s: a rule of HTTP is left out that says more than methods and the beginning of a path", said)
			continue
		}
		if !way.conditional() {
			way.paths = []string{"/**"}
		}
		ways = append(ways, way)
	}
	return ways
}

var methodList = regexp.MustCompile(`^[A-Z]+(\|[A-Z]+)*$`)

var plainPath = regexp.MustCompile(`^/[A-Za-z0-9/_~-]*(\\\.[A-Za-z0-9/_~-]+)*$`)

// regexPath turns a regular expression into a pattern of paths: a path, or a path and ".*". Other
// expressions give "".
func regexPath(text string) string {
	base, open := strings.CutSuffix(text, ".*")
	if !plainPath.MatchString(base) {
		return ""
	}
	base = strings.ReplaceAll(base, `\.`, ".")
	if open {
		return startingWith(base)
	}
	return exactly(base)
}
