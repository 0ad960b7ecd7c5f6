package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// rulesIn reads a policy file of egressd.
func rulesIn(t *testing.T, text string) Rules {
	t.Helper()
	f, err := file.Parse("rules", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	r := Rules{Allow: f.Allow, Deny: f.Deny, Ask: f.Ask, Open: f.Default == policy.Allow}
	for _, name := range f.Presets {
		text, err := file.PresetText(name)
		if err != nil {
			t.Fatal(err)
		}
		preset, err := file.Parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		r.Presets = append(r.Presets, preset.Allow...)
	}
	return r
}

// drawRules draws a policy file. conditions says whether rules may look at requests.
func drawRules(r *rand.Rand, conditions bool) string {
	bare := r.IntN(3) == 0
	var hosts []string // few, so that rules meet
	if r.IntN(4) == 0 {
		hosts = []string{"prod-*.x.test", "*-1.x.test", "*{1}.x.test", "prod-1.x.test"}
	}
	for range 4 {
		hosts = append(hosts, pick(r, slices.Concat(nameWildcards, nameWildcards, []string{"93.184.216.34", "93.184.216.0/24", "93.184.0.0/16", "10.0.0.0/8", "10.1.2.3", "192.168.0.0/16", "*", "*{1}.x.test", "prod-*.x.test", "*-1.x.test"})...))
	}
	pattern := func() string {
		host := pick(r, hosts...)
		if bare {
			return host
		}
		return host + pick(r, "", "", ":443", ":22", ":8000-8999", ":*", ":*", ":*")
	}
	rule := func() string {
		host := pattern()
		if !conditions || r.IntN(3) > 0 {
			return fmt.Sprintf("  - %q\n", host)
		}
		more := pick(r, ", methods: [GET]", ", methods: [POST, PUT]", ", paths: [/a/**]", ", methods: [GET], paths: [/a/*]", ", paths: [/ab, /v1/**]")
		return fmt.Sprintf("  - {host: %q%s}\n", host, more)
	}
	text := "version: 1\n"
	if r.IntN(6) == 0 {
		text += "default: allow\n"
	}
	for _, list := range []string{"allow", "deny", "ask"} {
		n := map[string]int{"allow": 5, "deny": 3, "ask": 1}[list]
		seen := map[string]bool{}
		var lines string
		for _, line := range some(r, n, rule) {
			if _, err := file.Parse("rules", []byte(text+list+":\n"+lines+line)); err == nil && !seen[line] { // it can decide
				seen[line] = true
				lines += line
			}
		}
		if lines != "" {
			text += list + ":\n" + lines
		}
	}
	return text
}

// A reader evaluates what was written for a peer, as that documents it.
type reader struct {
	allows func(t *testing.T, text string) func(question) bool

	// wider holds for questions on which the peer is wider for all policies, as every export says.
	wider func(question) bool

	// differs holds for questions on which the peer is stricter for all policies.
	differs func(question) bool
}

func resolves(q question) bool { return len(q.resolved) > 0 }

var readers = map[string]reader{
	"srt":     {allows: evaluateSRT},
	"claude":  {allows: evaluateSRT},
	"docker":  {allows: evaluateDocker, wider: resolves},
	"e2b":     {allows: evaluateE2B, wider: resolves},
	"daytona": {allows: evaluateDaytona, wider: resolves},
	"sprites": {allows: evaluateSprites, differs: func(q question) bool { return q.addr.IsValid() }, wider: resolves},
	"vercel":  {allows: evaluateVercel, differs: func(q question) bool { return q.port == 80 }},
}

// TestNoExportAllowsWhatEgressdDenies writes random rules for each peer, and asks egressd and a
// reference evaluator of the peer the same questions.
func TestNoExportAllowsWhatEgressdDenies(t *testing.T) {
	for _, k := range targets {
		read, ok := readers[k.Name]
		if !ok {
			t.Errorf("%s has no reference evaluator", k.Name)
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			holdsExports(t, k, read)
		})
	}
}

func holdsExports(t *testing.T, k Kind, read reader) {
	r, n := rand.New(rand.NewPCG(3, 4)), *policies
	if testing.Short() {
		n /= 10
	}
	allowed, exact, widened := 0, 0, 0
	for i := range n {
		text := drawRules(r, r.IntN(2) == 0)
		widen := i%4 == 3
		c, err := export(k.Name, rulesIn(t, text), Options{Widen: widen})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		p, allows := compiled(t, text), read.allows(t, c.Text)
		for range questionsEach {
			q := drawQuestion(r)
			verdict, theirs := lets(p, q), allows(q)
			switch {
			case theirs && verdict < policy.Inspect && widen && len(c.Wider) > 0:
				widened++
			case theirs && verdict < policy.Inspect && (read.wider == nil || !read.wider(q) || len(c.Wider) == 0):
				t.Fatalf("%v is denied, and allowed by\n%s\nwhich was\n%s%q", q, c.Text, text, c.Wider)
			case verdict == policy.Allow && q.plain() && same(k, c) && (read.differs == nil || !read.differs(q)):
				exact++
				if !theirs {
					t.Fatalf("%v is allowed, and denied by\n%s\nwhich was\n%s and nothing says that it is stricter", q, c.Text, text)
				}
			}
			if theirs {
				allowed++
			}
		}
	}
	if total := n * questionsEach; !testing.Short() && (allowed < total/100 || exact == 0) {
		t.Errorf("of %d questions %d are allowed, %d compared exactly and %d wider: too few to show anything", total, allowed, exact, widened)
	}
}

func fromJSON[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}

// hostPort matches "host" and "host:port", with IPv6 addresses in brackets before a port.
func hostPort(entry string, q question, match func(string, question) bool) bool {
	host, port, hasPort := entry, "", false
	if strings.Count(entry, ":") == 1 || strings.HasPrefix(entry, "[") {
		if i := strings.LastIndexByte(entry, ':'); !strings.HasSuffix(entry, "]") {
			host, port, hasPort = entry[:i], entry[i+1:], true
		}
	}
	return (!hasPort || port == fmt.Sprint(q.port)) && match(strings.Trim(host, "[]"), q)
}

func evaluateSRT(t *testing.T, text string) func(question) bool {
	type network struct{ AllowedDomains, DeniedDomains, DeniedResolvedAddresses []string }
	top := fromJSON[struct {
		Network network
		Sandbox struct{ Network network }
	}](t, text)
	n := top.Network
	if n.AllowedDomains == nil {
		n = top.Sandbox.Network
	}
	match := func(host string, q question) bool { return host == "*" || wildcard(host, q) }
	return func(q question) bool {
		in := func(list []string) bool {
			return slices.ContainsFunc(list, func(e string) bool { return hostPort(e, q, match) })
		}
		return !in(n.DeniedDomains) && !anyIn(n.DeniedResolvedAddresses, q.addrs()) && in(n.AllowedDomains)
	}
}

func evaluateDocker(t *testing.T, text string) func(question) bool {
	lists := map[string][]string{}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "sbx policy "); ok && strings.Contains(rest, " network ") {
			word, list, _ := strings.Cut(rest, " network ")
			lists[word] = strings.Split(strings.Trim(strings.TrimSpace(list), "'"), ",")
		}
	}
	return func(q question) bool {
		in := func(word string) bool {
			return slices.ContainsFunc(lists[word], func(e string) bool {
				if strings.Count(e, ":") > 1 {
					return hostPort(e, q, func(host string, q question) bool { return anyIn([]string{host}, q.addrs()) })
				}
				if word == "allow" {
					q.resolved = nil
				}
				return dockerMatches(e, q)
			})
		}
		return !in("deny") && in("allow")
	}
}

func evaluateE2B(t *testing.T, text string) func(question) bool {
	n := fromJSON[struct{ AllowOut, DenyOut []string }](t, text)
	if !slices.Contains(n.DenyOut, "0.0.0.0/0") {
		t.Fatalf("it is open: %s", text)
	}
	return func(q question) bool {
		return slices.ContainsFunc(n.AllowOut, func(e string) bool {
			return !q.addr.IsValid() && wildcard(e, q) && (q.port == 80 || q.port == 443) || anyIn([]string{e}, q.addrs())
		})
	}
}

func evaluateDaytona(t *testing.T, text string) func(question) bool {
	n := fromJSON[struct {
		NetworkBlockAll                   bool
		NetworkAllowList, DomainAllowList string
	}](t, text)
	prefixes := strings.Split(n.NetworkAllowList, ",")
	if len(prefixes) > 10 || !n.NetworkBlockAll && n.NetworkAllowList+n.DomainAllowList == "" {
		t.Fatalf("it is open, or has too many ranges: %s", text)
	}
	return func(q question) bool {
		web := q.port == 80 || q.port == 443
		return !n.NetworkBlockAll && (anyIn(prefixes, q.addrs()) || web && slices.ContainsFunc(strings.Split(n.DomainAllowList, ","), func(d string) bool { return wildcard(d, q) }))
	}
}

func evaluateSprites(t *testing.T, text string) func(question) bool {
	n := fromJSON[struct {
		Rules []struct{ Domain, Action string }
	}](t, text)
	return func(q question) bool {
		best, verdict := -1, false
		for _, one := range n.Rules {
			weight := len(one.Domain)
			if one.Domain == "*" {
				weight = 0
			} else if !wildcard(one.Domain, q) || q.addr.IsValid() {
				continue
			} else if one.Domain == q.host {
				weight += 1000
			}
			if weight > best || weight == best && one.Action == "deny" {
				best, verdict = weight, one.Action == "allow"
			}
		}
		private := func(a netip.Addr) bool { return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() }
		return verdict && !slices.ContainsFunc(q.addrs(), private)
	}
}

func evaluateVercel(t *testing.T, text string) func(question) bool {
	n := fromJSON[struct {
		Allow   []string
		Subnets struct{ Allow, Deny []string }
	}](t, text)
	return func(q question) bool {
		if anyIn(n.Subnets.Deny, q.addrs()) {
			return false
		}
		named := q.port != 80 && slices.ContainsFunc(n.Allow, func(d string) bool { return !q.addr.IsValid() && wildcard(d, q) })
		return named || q.addr.IsValid() && anyIn(n.Subnets.Allow, q.addrs())
	}
}

// TestWhatIsWritten writes one policy for each peer.
func TestWhatIsWritten(t *testing.T) {
	text, err := os.ReadFile("testdata/export/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := rulesIn(t, string(text))
	rules.Beside = []string{"Rego"}
	for _, k := range targets {
		for suffix, widen := range map[string]bool{"": false, ".widen": true} {
			c, err := export(k.Name, rules, Options{Widen: widen})
			if err != nil {
				t.Fatal(err)
			}
			holdsGolden(t, filepath.Join("testdata/export", k.Name+suffix+".golden"), written(c))
			if strict, err := Export(k.Name, rules, Options{Widen: widen}); widen != (err == nil) {
				t.Errorf("%s: %v, %v", k.Name, strict, err)
			}
		}
	}
	var wider *WiderError
	if _, err := Export("srt", rules, Options{}); !errors.As(err, &wider) || !slices.Contains(wider.Wider, "Rego is not exported: what it denies is not denied") {
		t.Errorf("got %v", err)
	}
}

// TestTheBaselineIsExported compares the exported ranges with what egressd takes for special.
func TestTheBaselineIsExported(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 200_000 {
		var b [16]byte
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		v6 := netip.AddrFrom16(b)
		if r.IntN(2) == 0 {
			b[0], b[1] = 0x20, pick[byte](r, 0, 1, 2)
			v6 = netip.AddrFrom16(b)
		}
		for _, a := range []netip.Addr{netip.AddrFrom4([4]byte(b[4:8])), v6} {
			embedded := policy.EmbeddedIPv4(a).IsValid()
			if special, in := policy.ClassOf(a) != "", anyIn(specialPrefixes, []netip.Addr{a}); special && !in && !embedded {
				t.Fatalf("%s is %s, and not exported", a, policy.ClassOf(a))
			}
		}
	}
}

// TestAnAllowIsLeftOutIfTheOtherEndOfTheLabelIsDenied: of prod-1.x.test, egressd takes the stricter rule, and no line of
// a peer is about just the hosts of both patterns.
func TestAnAllowIsLeftOutIfTheOtherEndOfTheLabelIsDenied(t *testing.T) {
	rules := rulesIn(t, "version: 1\nallow: [\"prod-*.x.test\", \"dev-*.x.test:443\", b.x.test]\ndeny: [\"prod-*.x.test:8080\", \"*-1.x.test:80\"]\n")
	c, err := export("docker", rules, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const left = "prod-*.x.test is left out: egressd denies the hosts in it that *-1.x.test:80 names"
	if !strings.Contains(c.Text, "dev-*.x.test") || !slices.Contains(c.Stricter, left) {
		t.Errorf("%q\n%s", c.Stricter, c.Text)
	}
	if c, err = export("docker", rules, Options{Widen: true}); err != nil || !strings.Contains(strings.Join(c.Wider, "\n"), "prod-*.x.test allows more: egressd denies the hosts in it that *-1.x.test:80 names") {
		t.Errorf("wider: %v, %q\n%s", err, c.Wider, c.Text)
	}
}
