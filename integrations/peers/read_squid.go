package peers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// readSquid reads acl and http_access of a squid.conf. The first line of http_access of which all lists hold
// decides; after the last one the opposite of it does. ".example.com" stands for the name and what is below it.
func readSquid(r *reading, text []byte) error {
	lists := map[string]*squidList{
		"all":          {kind: "src", everyone: true},
		"to_localhost": {kind: "dst", hosts: []scope{just(withinText("127.0.0.0/8"), withinText("::1/128"), withinText("0.0.0.0/32"))}},
		"localhost":    {kind: "src", values: []string{"127.0.0.1"}},
		"manager":      {kind: "manager"},
	}
	var access [][]string
	for n, line := range squidLines(string(text)) {
		words := strings.Fields(line)
		switch words[0] {
		case "include":
			return fmt.Errorf("line %d: include is not followed; put its lines in its place", n+1)
		case "acl":
			if err := addSquidList(lists, words[1:]); err != nil {
				return fmt.Errorf("line %d: %w", n+1, err)
			}
		case "http_access":
			access = append(access, words[1:])
		}
	}
	if len(access) == 0 {
		return fmt.Errorf("it has no line of http_access")
	}
	for _, words := range access {
		if len(words) == 0 || words[0] != "allow" && words[0] != "deny" {
			return fmt.Errorf("http_access %s: neither allow nor deny", strings.Join(words, " "))
		}
		if err := r.squidAccess(words[0] == "allow", words[1:], lists); err != nil {
			return fmt.Errorf("http_access %s: %w", strings.Join(words, " "), err)
		}
		r.open = words[0] == "deny"
	}
	return nil
}

// squidLines are the lines without comments; an empty one is a line that squid skips.
func squidLines(text string) func(func(int, string) bool) {
	return func(yield func(int, string) bool) {
		for n, line := range strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n") {
			if at := strings.IndexByte(line, '#'); at >= 0 && (at == 0 || strings.IndexByte(" \t", line[at-1]) >= 0) {
				line = line[:at]
			}
			if strings.TrimSpace(line) != "" && !yield(n, line) {
				return
			}
		}
	}
}

// A squidList is an acl: hosts, ports, methods, or something that egressd has no word for.
type squidList struct {
	kind     string
	values   []string
	hosts    []scope // of dstdomain and dst
	ports    []span
	everyone bool // of src: all clients
}

// privateRanges are where clients are; a list of sources that has all of them has every sandbox.
var privateRanges = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"}

func addSquidList(lists map[string]*squidList, words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("acl needs a name, a type and values")
	}
	name, kind, values := words[0], words[1], words[2:]
	l := lists[name]
	if l == nil || name == "localhost" || name == "to_localhost" {
		l = &squidList{kind: kind}
		lists[name] = l
	}
	if l.kind != kind {
		return fmt.Errorf("%s is of type %s and of type %s", name, l.kind, kind)
	}
	for _, v := range values {
		if strings.HasPrefix(v, `"`) {
			return fmt.Errorf("%s is read from %s; put its lines in its place", name, v)
		}
	}
	l.values = append(l.values, values...)
	switch kind {
	case "dstdomain":
		for _, v := range values {
			s, err := squidDomain(v)
			if err != nil {
				return err
			}
			l.hosts = append(l.hosts, s)
		}
	case "dst":
		for _, v := range values {
			p, ok := prefixOf(v)
			if !ok {
				return fmt.Errorf("%q is no address and no prefix", v)
			}
			l.hosts = append(l.hosts, just(within(p)))
		}
	case "port":
		for _, v := range values {
			s, err := squidPorts(v)
			if err != nil {
				return err
			}
			l.ports = append(l.ports, s)
		}
	case "src":
		missing := func(p string) bool { return !slices.Contains(l.values, p) }
		l.everyone = slices.Contains(l.values, "all") || slices.Contains(l.values, "0.0.0.0/0") || !slices.ContainsFunc(privateRanges, missing)
	}
	return nil
}

func squidDomain(text string) (scope, error) {
	if rest, ok := strings.CutPrefix(text, "."); ok {
		name, err := policy.ParseName(rest)
		return anyDepthAndName.scope(name), err
	}
	if strings.Contains(text, "*") || strings.HasPrefix(text, "-") {
		return scope{}, fmt.Errorf("%q is no domain of squid", text)
	}
	return hostScope(text, anyDepth)
}

func squidPorts(text string) (span, error) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, err := strconv.ParseUint(low, 10, 16)
	last, more := strconv.ParseUint(high, 10, 16)
	if err != nil || more != nil || first == 0 || last < first {
		return span{}, fmt.Errorf("%q is no port and no range of ports", text)
	}
	return span{uint16(first), uint16(last)}, nil
}

// squidAccess adds the clauses of one line: all of its lists have to hold.
func (r *reading) squidAccess(allow bool, words []string, lists map[string]*squidList) error {
	said := strings.Join(words, " ")
	line := squidLine{allow: allow, ports: []span{allPorts}}
	for _, word := range words {
		name, negated := strings.CutPrefix(word, "!")
		l := lists[name]
		if l == nil {
			return fmt.Errorf("there is no acl %s", name)
		}
		line.and(l, negated)
	}
	for _, n := range line.narrow {
		r.stricterf("%s: %s", said, n)
	}
	switch {
	case line.never || len(line.ports) == 0:
		return nil
	case allow && line.unclear != "":
		if !line.clients || !r.widens(said, line.unclear) {
			if !line.clients {
				r.stricterf("%s is left out: %s", said, line.unclear)
			}
			return nil
		}
	case line.unclear != "":
		r.stricterf("%s denies more: %s", said, line.unclear)
	}
	if len(line.hosts) == 0 {
		line.hosts = []scope{just(everything)}
	}
	c := clause{ports: line.ports, methods: line.methods, except: line.except}
	if len(c.ports) == 1 && c.ports[0] == allPorts {
		c.ports = nil
	}
	if allow && len(c.methods) > 0 {
		r.stricterf("%s: its methods are of plain HTTP, which is port 80 here", said)
		if c.ports = both(line.ports, []span{port(80)}); len(c.ports) == 0 {
			return nil
		}
	}
	if allow && len(c.except) > 0 {
		r.stricterf("%s: addresses are left out, as excepted names may lead there", said)
	}
	if !allow && len(c.methods) > 0 {
		r.stricterf("%s: its methods are denied inside TLS, too, which squid does not look into", said)
	}
	for _, s := range line.hosts {
		r.say(allow, said, s, c)
	}
	return nil
}

// A squidLine is what the lists of a line come to.
type squidLine struct {
	allow   bool
	hosts   []scope // none: all
	except  []hostSet
	ports   []span
	methods []string // none: all
	never   bool     // it is about no connection to a destination
	unclear string   // what it asks beside these
	narrow  []string // where the clauses are about less, if it allows, or more, if it denies
	clients bool     // what is unclear is who asks, and nothing else
}

// and adds one more list.
func (s *squidLine) and(l *squidList, negated bool) {
	switch {
	case l.kind == "manager":
		s.never = s.never || !negated // its pages are no destinations
	case l.kind == "src" && l.everyone:
		s.never = s.never || negated
	case l.kind == "src":
		if s.unclear == "" {
			s.clients = true
		}
		s.unclear = "it is for some clients alone"
	case l.kind == "port" && negated:
		s.ports = both(s.ports, complement(l.ports))
	case l.kind == "port":
		s.ports = both(s.ports, l.ports)
	case l.kind == "method":
		s.method(l.values, negated)
	case l.kind == "dstdomain" && negated:
		for _, h := range l.hosts {
			s.except = append(s.except, h.sets...)
		}
	case (l.kind == "dstdomain" || l.kind == "dst") && !negated && s.hosts == nil:
		s.hosts = l.hosts
	default:
		s.unsure("egressd has no word for its " + l.kind + ", or not beside the other lists")
	}
}

func (s *squidLine) unsure(why string) { s.unclear, s.clients = why, false }

// method adds a list of methods. CONNECT stands for tunnels, which are no business of port 80 here.
func (s *squidLine) method(methods []string, negated bool) {
	connect := slices.Equal(methods, []string{"CONNECT"})
	switch {
	case connect && !negated && s.allow:
		s.ports = both(s.ports, []span{port(443)})
		s.narrow = append(s.narrow, "tunnels to port 443 alone, since what is allowed here may be plain HTTP elsewhere")
	case connect && !negated:
		s.ports = both(s.ports, complement([]span{port(80)}))
		s.narrow = append(s.narrow, "plain HTTP to ports other than 80 is denied, too")
	case connect && s.allow:
		s.ports = both(s.ports, []span{port(80)})
		s.narrow = append(s.narrow, "plain HTTP to port 80 alone")
	case connect:
		s.narrow = append(s.narrow, "tunnels are denied, too")
	case !negated && !slices.Contains(methods, "CONNECT") && s.methods == nil:
		s.methods = methods
	default:
		s.unsure("its methods are more than one list")
	}
}
