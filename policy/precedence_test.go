package policy

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A line is a rule in the words of a file, for an oracle that shares nothing with the code.
type line struct {
	effect           Verdict
	host, port       string
	methods, paths   []string
	methodAt, pathAt []bool // by index into [methodsTried] and [pathsTried]
	grant, over      bool   // a temporary allow, also over denies
}

// hostsTried tell all hostPatterns apart, and their combinations.
var hostsTried = func() (all []string) {
	for _, begin := range []string{"", "a", "ab"} {
		for _, middle := range []string{"", "q"} {
			for _, end := range []string{"", "z", "yz"} {
				if label := begin + middle + end; label != "" {
					all = append(all, label+".x.test")
				}
			}
		}
	}
	slices.Sort(all)
	return append(slices.Compact(all), "x.test", "r.x.test", "q.q.x.test", "q.test", "q.q.test", "example.com", "93.184.216.34", "93.184.200.1", "93.184.1.1", "9.9.9.9")
}()

var (
	hostPatterns = []string{
		"ab.x.test", "abyz.x.test", "x.test", "q.x.test", "a*.x.test", "ab*.x.test", "*z.x.test", "*yz.x.test", "*{1}.x.test", "*{1}.test", "*.x.test", "*.test", "*",
		"93.184.216.34", "93.184.128.0/17", "93.184.0.0/17", "93.184.0.0/16",
	}
	portPatterns   = []string{"", "", ":443", ":22", ":80-443", ":*"}
	portsTried     = []uint16{22, 80, 100, 443, 8443}
	methodsTried   = []string{"GET", "HEAD", "POST", "get", "head", "post", "PUT"}
	pathsTried     = []string{"/", "/x", "/x/", "/x/1", "/x/1/2", "/y", "/z", "/z/1", "/x//1"}
	methodPatterns = [][]string{nil, nil, {"GET"}, {"POST"}, {"HEAD", "POST"}}
	pathPatterns   = [][]string{nil, nil, {"/x/**"}, {"/x/*"}, {"/y"}, {"/y", "/x"}, {"/**"}, {"/*"}}
)

func hostMatches(pattern, host string) bool {
	literal, star := strings.CutPrefix(pattern, "*{1}")
	switch {
	case pattern == host, pattern == "*":
		return true
	case strings.Contains(pattern, "/"):
		return strings.HasPrefix(host, "93.184.") && (strings.HasSuffix(pattern, "/16") || strings.HasPrefix(host, "93.184.1.") == (pattern == "93.184.0.0/17"))
	case star:
		return strings.HasSuffix(host, literal) && strings.Count(host, ".") == strings.Count(literal, ".")
	case strings.HasPrefix(pattern, "*."):
		return strings.HasSuffix(host, pattern[1:])
	}
	ok, _ := path.Match(strings.ReplaceAll(pattern, ".", "/"), strings.ReplaceAll(host, ".", "/")) // a star holds no dot
	return ok && strings.Contains(pattern, "*")
}

func portMatches(l *line, port uint16) bool {
	first, last, ranged := strings.Cut(strings.TrimPrefix(l.port, ":"), "-")
	low, _ := strconv.Atoi(first)
	high, _ := strconv.Atoi(last)
	switch {
	case l.port == ":*", l.port == "" && l.effect != Allow:
		return true
	case l.port == "":
		return port == 80 || port == 443
	case ranged:
		return low <= int(port) && int(port) <= high
	}
	return low == int(port)
}

func methodMatches(l *line, method string) bool {
	all := l.methods
	if slices.Contains(all, "GET") {
		all = append(slices.Clone(all), "HEAD")
	}
	return len(all) == 0 || slices.Contains(all, method) || l.effect != Allow && slices.Contains(all, strings.ToUpper(method))
}

func pathMatches(l *line, at string) bool {
	if strings.Contains(at, "//") && len(l.paths) > 0 {
		return l.effect != Allow
	}
	return len(l.paths) == 0 || slices.ContainsFunc(l.paths, func(pattern string) bool {
		return pattern == at || pattern == "/**" || pattern == "/x/**" && (at == "/x" || strings.HasPrefix(at, "/x/")) ||
			strings.HasSuffix(pattern, "/*") && strings.HasPrefix(at, pattern[:len(pattern)-1]) && !strings.Contains(at[len(pattern)-1:], "/")
	})
}

// closerThan holds for patterns of hostPatterns: all hosts of p are hosts of q, and not the other way round.
var closerThan = func() map[[2]string]bool {
	closer := map[[2]string]bool{}
	for _, p := range hostPatterns {
		for _, q := range hostPatterns {
			inside := !slices.ContainsFunc(hostsTried, func(h string) bool { return hostMatches(p, h) && !hostMatches(q, h) })
			more := slices.ContainsFunc(hostsTried, func(h string) bool { return !hostMatches(p, h) && hostMatches(q, h) })
			closer[[2]string{p, q}] = inside && more
		}
	}
	return closer
}()

// winners is the rule of precedence: of the lines that match, deny beats ask beats allow, unless the other line names
// the host more closely. It returns the lines that decide, which have one verdict.
func winners(matching []*line) (by []*line) {
	for _, l := range matching {
		if slices.ContainsFunc(matching, func(m *line) bool { return closerThan[[2]string{m.host, l.host}] }) {
			continue
		}
		strictness := func(l *line) Verdict {
			if l.over {
				return Deny
			}
			return l.effect + 1
		}
		if len(by) > 0 && strictness(l) > strictness(by[0]) {
			continue
		}
		if len(by) > 0 && strictness(l) < strictness(by[0]) {
			by = by[:0]
		}
		by = append(by, l)
	}
	return by
}

func matchingOf(lines []*line, host string, port uint16, method, at int) (matching []*line) {
	for _, l := range lines {
		if l.methodAt[method] && l.pathAt[at] && portMatches(l, port) && hostMatches(l.host, host) {
			matching = append(matching, l)
		}
	}
	return matching
}

// granted are the lines that decide with a temporary allow among them: it opens what no line speaks of.
func granted(matching []*line) []*line {
	if by := winners(slices.DeleteFunc(slices.Clone(matching), func(l *line) bool { return l.grant && !l.over })); len(by) > 0 {
		return by
	}
	return matching
}

// drawLines draws lines, the last of which may be a grant.
func drawLines(r *rand.Rand, grants bool) []*line {
	pick := func(n int) int { return r.IntN(n) }
	near := hostPatterns
	if pick(2) == 0 { // few hosts, which meet more often
		at := pick(len(hostPatterns) - 3)
		near = hostPatterns[at : at+3]
	}
	lines := make([]*line, 1+pick(6))
	for i := range lines {
		l := &line{
			effect: []Verdict{Deny, Ask, Allow}[pick(3)], host: near[pick(len(near))], port: portPatterns[pick(len(portPatterns))],
			methods: methodPatterns[pick(len(methodPatterns))], paths: pathPatterns[pick(len(pathPatterns))],
		}
		if grants && i > 0 && i == len(lines)-1 && pick(3) == 0 {
			l.effect, l.grant, l.over = Allow, true, pick(2) == 0
			l.methods, l.paths = l.methods[:min(1, len(l.methods))], l.paths[:min(1, len(l.paths))]
		}
		for _, m := range methodsTried {
			l.methodAt = append(l.methodAt, methodMatches(l, m))
		}
		for _, p := range pathsTried {
			l.pathAt = append(l.pathAt, pathMatches(l, p))
		}
		lines[i] = l
	}
	return lines
}

func (l *line) String() string {
	return fmt.Sprintf("%s %s%s %v %v", l.effect, l.host, l.port, l.methods, l.paths)
}

// listsOf writes the lines as rules, whose ids are their numbers.
func listsOf(t testing.TB, lines []*line) (all *Lists, grants []Grant) {
	all = &Lists{Layer: User}
	for i, l := range lines {
		p, err := ParsePattern(l.host + l.port)
		if err != nil {
			t.Fatal(err)
		}
		rule := Rule{Pattern: p, ID: fmt.Sprintf("line[%d]", i), Methods: l.methods}
		for _, text := range l.paths {
			under, err := ParsePathPattern(text)
			if err != nil {
				t.Fatal(err)
			}
			rule.Paths = append(rule.Paths, under)
		}
		if l.grant {
			opening := Opening{Pattern: p, Method: strings.Join(l.methods, ""), Path: strings.Join(l.paths, "")}
			grants = append(grants, Grant{ID: rule.ID, Effect: Allow, Opening: opening, OverDeny: l.over})
			continue
		}
		into := map[Verdict]*[]Rule{Deny: &all.Deny, Ask: &all.Ask, Allow: &all.Allow}[l.effect]
		*into = append(*into, rule)
	}
	return all, grants
}

// often is the number of tries: n, or that of an environment variable.
func often(n int, variable string) int {
	if more, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return more
	}
	return n
}

// TestTheLinesDecideAsTheThreeSentencesSay compares random lines and requests with the oracle. The long form has
// EGRESSD_PAIRS=1000000.
func TestTheLinesDecideAsTheThreeSentencesSay(t *testing.T) {
	const requests = 10
	for n := range often(30_000, "EGRESSD_PAIRS") / requests {
		r := rand.New(rand.NewPCG(33, uint64(n)))
		lines := drawLines(r, true)
		lists, grants := listsOf(t, lines)
		evaluator := lists.evaluator(grants)
		p := New(evaluator)
		if longest, most := evaluator.longest(), len(lines); longest > most {
			t.Fatalf("the longest chain of %d lines has %d", most, longest)
		}
		for range requests {
			host, port := hostsTried[r.IntN(len(hostsTried))], portsTried[r.IntN(len(portsTried))]
			method, at := r.IntN(len(methodsTried)), r.IntN(len(pathsTried))
			matching := matchingOf(lines, host, port, method, at)
			want := Deny
			by := granted(matching)
			if len(by) > 0 {
				want = by[0].effect
			}
			dst, err := ParseDestination(fmt.Sprint(host, ":", port))
			if err != nil {
				t.Fatal(err)
			}
			request := &Request{Via: ViaHTTP, Destination: dst, HTTP: &HTTPRequest{Method: methodsTried[method], Path: pathsTried[at]}}
			d := p.Decide(t.Context(), request)
			if d.Verdict != want || len(by) > 0 && !slices.ContainsFunc(by, func(l *line) bool { return d.Rule == fmt.Sprintf("line[%d]", slices.Index(lines, l)) }) {
				t.Fatalf("file %d, %s %s:%d%s: %s by %s, want %s by %v of\n%v", n, methodsTried[method], host, port, pathsTried[at], d.Verdict, d.Rule, want, by, lines)
			}
		}
	}
}

// idleness goes through all requests: which lines decide none, and which change none.
type idleness struct{ decides, changes, hidden bool }

func idlenessOf(lines []*line) map[*line]*idleness {
	all := map[*line]*idleness{}
	for _, l := range lines {
		all[l] = &idleness{}
	}
	for _, host := range hostsTried {
		about := slices.DeleteFunc(slices.Clone(lines), func(l *line) bool { return !hostMatches(l.host, host) })
		for _, port := range portsTried {
			at := slices.DeleteFunc(slices.Clone(about), func(l *line) bool { return !portMatches(l, port) })
			for request := range len(methodsTried) * len(pathsTried) {
				matching := slices.DeleteFunc(slices.Clone(at), func(l *line) bool {
					return !l.methodAt[request%len(methodsTried)] || !l.pathAt[request/len(methodsTried)]
				})
				by := winners(matching)
				for _, l := range matching {
					if !slices.Contains(by, l) {
						all[l].hidden = all[l].hidden || by[0].effect != l.effect
						continue
					}
					without := winners(slices.DeleteFunc(slices.Clone(matching), func(m *line) bool { return m == l }))
					all[l].decides = true
					all[l].changes = all[l].changes || len(without) == 0 || without[0].effect != l.effect
				}
			}
		}
	}
	return all
}

// TestLinesThatNeverDecideAreFoundExactly compares with all requests of a finite world. The long form has
// EGRESSD_FILES=100000.
func TestLinesThatNeverDecideAreFoundExactly(t *testing.T) {
	count := map[string]int{}
	for n := range often(1500, "EGRESSD_FILES") {
		lines := drawLines(rand.New(rand.NewPCG(34, uint64(n))), false)
		lists, _ := listsOf(t, lines)
		said := map[string]string{}
		for _, idle := range lists.Idle() {
			said[idle.Rule.ID] = map[bool]string{true: "never decides", false: "repeats"}[idle.Hidden]
			if len(idle.By) == 0 {
				t.Fatalf("file %d: nothing stands in the way of %s", n, idle.Rule.ID)
			}
		}
		all, hidden := idlenessOf(lines), 0
		for i, l := range lines {
			is, want := all[l], ""
			switch {
			case !is.decides && is.hidden:
				want = "never decides"
				hidden++
			case !is.changes:
				want = "repeats"
			}
			if got := said[fmt.Sprintf("line[%d]", i)]; got != want {
				t.Fatalf("file %d: %s is said %q, want %q, of\n%v", n, l, got, want, lines)
			}
			count[want]++
		}
		if got := lists.Hidden(); len(got) != hidden {
			t.Fatalf("file %d: %d hidden lines, want %d", n, len(got), hidden)
		}
	}
	if count["never decides"] < 100 || count["repeats"] < 100 || count[""] < 100 {
		t.Errorf("the files are too much alike: %v", count)
	}
	t.Log(count)
}
