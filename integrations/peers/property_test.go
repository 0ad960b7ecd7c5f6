package peers

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

var policies = flag.Int("policies", 200, "how many random policies each peer's property test converts")

const questionsEach = 25

// A question is one request of a sandbox: a tunnel, or, with a method, an HTTP request. Except on
// port 80, that is inside TLS.
type question struct {
	host         string     // a name, or the text of addr
	addr         netip.Addr // valid where an address is asked for
	resolved     []netip.Addr
	port         uint16
	method, path string
	key          string // of the field x-key; empty: there is none
	parameter    string // k of the query; empty: there is none
	query        string // in place of parameter
}

func (q question) String() string {
	text := fmt.Sprintf("%s %s:%d%s?%s k=%q x-key=%q", q.method, q.host, q.port, q.path, q.query, q.parameter, q.key)
	if len(q.resolved) > 0 {
		text += fmt.Sprint(" => ", q.resolved)
	}
	return text
}

// plain reports whether no address of the question is special, so that egressd's baseline is silent.
func (q question) plain() bool {
	special := func(a netip.Addr) bool { return policy.ClassOf(a) != "" }
	return len(q.resolved) == 0 && !(q.addr.IsValid() && special(q.addr))
}

// addrs are the addresses that a connection goes to, as far as they are known.
func (q question) addrs() []netip.Addr {
	if q.addr.IsValid() {
		return []netip.Addr{q.addr}
	}
	return q.resolved
}

func (q question) request() policy.Request {
	r := policy.Request{Via: policy.ViaConnect, Destination: policy.Destination{Host: q.host, Addr: q.addr, Port: q.port, Addrs: q.resolved}}
	if q.method != "" {
		r.HTTP = &policy.HTTPRequest{Method: q.method, Path: q.path, Header: map[string][]string{}}
		if r.HTTP.Query = q.query; q.parameter != "" {
			r.HTTP.Query = "k=" + q.parameter
		}
		if q.key != "" {
			r.HTTP.Header["x-key"] = []string{q.key}
		}
		if q.port == 80 {
			r.Via = policy.ViaHTTP
		}
	}
	return r
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// some draws up to n of from, with repetition.
func some[T any](r *rand.Rand, n int, draw func() T) []T {
	all := make([]T, r.IntN(n+1))
	for i := range all {
		all[i] = draw()
	}
	return all
}

var (
	nameTexts    = []string{"x.test", "a.x.test", "b.a.x.test", "c.b.a.x.test", "y.test", "a.y.test", "prod-1.x.test", "prod-2.a.x.test", "xx.test", "test.example"}
	addressTexts = []string{"93.184.216.34", "93.184.216.99", "93.184.1.1", "10.1.2.3", "10.9.9.9", "192.168.1.1", "127.0.0.1", "169.254.169.254", "2606:2800:220::1", "fd00::1", "8.8.8.8"}
	prefixTexts  = []string{"93.184.216.34", "93.184.216.0/24", "93.184.0.0/16", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0", "192.168.0.0/16"}
	methodTexts  = []string{"GET", "HEAD", "POST", "OPTIONS", "DELETE", "PUT"}
	pathTexts    = []string{"/", "/a", "/a/", "/a/b", "/a/b/c", "/ab", "/ab/c", "/v1/x", "/b"}
)

func drawQuestion(r *rand.Rand) question {
	q := question{port: pick[uint16](r, 80, 443, 443, 443, 22, 8080, 8443, 53)}
	if r.IntN(4) == 0 {
		q.addr = netip.MustParseAddr(pick(r, addressTexts...))
		q.host = q.addr.String()
	} else {
		q.host = pick(r, slices.Concat(nameTexts, nameTexts[:3], nameTexts[:3])...) // those that patterns meet in most often
		if r.IntN(3) == 0 {
			for range 1 + r.IntN(2) {
				q.resolved = append(q.resolved, netip.MustParseAddr(pick(r, addressTexts...)))
			}
		}
	}
	if q.port == 80 || q.port > 8000 || q.port == 443 && r.IntN(2) == 0 {
		q.method, q.path = pick(r, methodTexts...), pick(r, pathTexts...)
		q.parameter, q.key = pick(r, "", "v", "v", "v.x", "w"), pick(r, "", "", "a", "ab")
	}
	return q
}

// A sample is a random policy of a peer, and what that peer decides, as far as it is documented.
type sample struct {
	text   []byte
	name   string // for [Options]
	allows func(question) bool

	// differs holds for questions on which egressd is stricter for all policies of the peer, as its import says.
	differs func(question) bool
}

// TestNothingThatThePeerDeniesIsAllowed converts random policies of each peer, and asks egressd and a
// reference evaluator of the peer, which knows nothing of the reader, the same questions. Where
// nothing is said to be stricter, both also allow the same.
func TestNothingThatThePeerDeniesIsAllowed(t *testing.T) {
	for _, k := range kinds {
		draw, ok := samples[k.Name]
		if !ok {
			t.Errorf("%s has no reference evaluator", k.Name)
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			holdsImports(t, k, draw)
		})
	}
}

func holdsImports(t *testing.T, k Kind, draw func(*rand.Rand) sample) {
	r, n := rand.New(rand.NewPCG(1, 2)), *policies
	if testing.Short() {
		n /= 10
	}
	allowed, exact := 0, 0
	for range n {
		s := draw(r)
		c, err := Import(k.Name, s.text, Options{Name: s.name})
		if err != nil {
			t.Fatalf("%v\n%s", err, s.text)
		}
		p := compiled(t, c.Text)
		for range questionsEach {
			q := drawQuestion(r)
			verdict, theirs := lets(p, q), s.allows(q)
			ours := verdict == policy.Allow
			if ours && !theirs {
				t.Fatalf("%v is allowed, and denied by\n%s\nwhich became\n%s%q", q, s.text, c.Text, c.Stricter)
			}
			if theirs && q.plain() && same(k, c) && (s.differs == nil || !s.differs(q)) {
				exact++
				if verdict < policy.Inspect {
					t.Fatalf("%v is denied, and nothing says that it is stricter than\n%s\nwhich became\n%s", q, s.text, c.Text)
				}
			}
			if ours {
				allowed++
			}
		}
	}
	if total := n * questionsEach; !testing.Short() && (allowed < total/100 || exact < total/200) {
		t.Errorf("of %d questions %d are allowed and %d compared exactly: too few to show anything", total, allowed, exact)
	}
}

// same reports whether nothing of a conversion is said to be stricter but what all of its kind are.
func same(k Kind, c *Conversion) bool {
	return !slices.ContainsFunc(c.Stricter, func(s string) bool { return s != cleanPaths && s != onceEach && !slices.Contains(k.stricter, s) })
}

// lets is the verdict on q. A tunnel to a host with rules for requests is inspected, and may carry HTTP alone.
func lets(p *policy.Policy, q question) policy.Verdict {
	d, _ := p.Judge(context.Background(), q.request())
	return d.Verdict
}

// compiled loads an imported policy. Its denies and asks name their ports: without one, such a line is about every port.
func compiled(t *testing.T, text string) *policy.Policy {
	t.Helper()
	parsed, err := file.Parse("converted", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	imported := strings.HasPrefix(text, "# From the settings of ")
	for _, rule := range slices.Concat(parsed.Deny, parsed.Ask) {
		if imported && rule.Pattern.String() == rule.Pattern.Host() {
			t.Fatalf("%s has no port\n%s", rule.Pattern, text)
		}
	}
	p, err := parsed.Compile(file.Environment{Inspection: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return p.AsWritten()
}

func asJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// The reference evaluators are built of what follows, which shares nothing with the readers.

// isBelow reports whether name is below suffix, at any depth.
func isBelow(name, suffix string) bool { return strings.HasSuffix(name, "."+suffix) }

// labelsBelow is how many labels name has more than suffix, or 0.
func labelsBelow(name, suffix string) int {
	if !isBelow(name, suffix) {
		return 0
	}
	return strings.Count(name, ".") - strings.Count(suffix, ".")
}

func inPrefix(text string, a netip.Addr) bool {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Contains(a)
	}
	return a.String() == text
}

func anyIn(prefixes []string, addrs []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return inPrefix(p, a) })
	})
}

// wildcard matches a name by "*.x", any depth below x, or by itself.
func wildcard(pattern string, q question) bool {
	if rest, ok := strings.CutPrefix(pattern, "*."); ok {
		return !q.addr.IsValid() && isBelow(q.host, rest)
	}
	return pattern == q.host
}
