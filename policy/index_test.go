package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// holdsAllOf reports whether every name of q is one of p, for patterns that both hold one name.
func holdsAllOf(p, q Pattern) bool {
	switch {
	case p.Host() == q.Host() || q.kind == exactHost || p.kind == anyHost:
		return true
	case p.kind == oneLabel && q.kind == oneLabel:
		label := func(x Pattern) string { text, _, _ := strings.Cut(x.name, "."); return text }
		inside := strings.Trim(label(p), "*")
		return label(p) == "*" ||
			strings.HasSuffix(label(p), "*") && strings.HasSuffix(label(q), "*") && strings.HasPrefix(label(q), inside) ||
			label(p)[0] == '*' && label(q)[0] == '*' && strings.HasSuffix(label(q), inside)
	case p.kind == hostsBelow && q.kind == oneLabel:
		return true
	case p.kind == hostsBelow && q.kind == hostsBelow:
		return len(p.name) <= len(q.name)
	}
	return false
}

// byDefinition returns the verdict of rules without conditions on a name. It takes the strictest verdict among the most
// specific hosts. Among the rules for one host, the most specific port counts, then the strictest verdict.
func byDefinition(all []Rule, effects []Verdict, name string, port uint16) Verdict {
	verdict := Abstain
	for i, p := range all {
		counts := p.Pattern.MatchesName(name, port)
		for j, q := range all {
			if !q.Pattern.MatchesName(name, port) || !holdsAllOf(p.Pattern, q.Pattern) {
				continue
			}
			if !holdsAllOf(q.Pattern, p.Pattern) || q.Pattern.ports.rank() < p.Pattern.ports.rank() ||
				q.Pattern.ports.rank() == p.Pattern.ports.rank() && effects[j] < effects[i] {
				counts = false
			}
		}
		if counts {
			verdict = min(verdict, effects[i])
		}
	}
	return verdict
}

func drawRules(t *rapid.T) (all []Rule, effects []Verdict) {
	host := rapid.SampledFrom([]string{
		"ab.x.test", "abyz.x.test", "x.test", "a*.x.test", "ab*.x.test", "aby*.x.test", "*z.x.test", "*yz.x.test", "*byz.x.test", "abyz*.x.test", "*{1}.x.test",
		"*{1}.test", "*.x.test", "*.test", "*",
	})
	port := rapid.SampledFrom([]string{"", "", ":443", ":22", ":22-443", ":*"})
	effect := rapid.SampledFrom([]Verdict{Deny, Ask, Allow})
	for i := range rapid.IntRange(1, 10).Draw(t, "rules") {
		p, err := ParsePattern(host.Draw(t, "host") + port.Draw(t, "port"))
		if err != nil {
			t.Fatal(err)
		}
		all, effects = append(all, Rule{Pattern: p, ID: fmt.Sprint("r", i)}), append(effects, effect.Draw(t, "effect"))
	}
	return all, effects
}

func TestTheMostSpecificHostDecidesAndTiesAreStrict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, effects := drawRules(t)
		own := newIndex()
		for i, r := range all {
			own.add(r.Pattern, r.compile(effects[i], false))
		}
		own.finish()
		rs := &rules{own: own}
		name := rapid.SampledFrom([]string{"abyz.x.test", "ab.x.test", "abz.x.test", "yz.x.test", "q.abyz.x.test", "x.test", "test"}).Draw(t, "name")
		port := rapid.SampledFrom([]uint16{22, 80, 443, 8443}).Draw(t, "at")
		d, err := rs.Evaluate(t.Context(), &Request{Destination: Destination{Host: name, Port: port}})
		if want := byDefinition(all, effects, name, port); err != nil || d.Verdict != want {
			t.Fatalf("%s:%d is %s by %s, want %s (%v)", name, port, d.Verdict, d.Rule, want, err)
		}
		length := 0
		for b := own.find(name, netip.Addr{}, 0); b != nil; b = b.next {
			length += len(b.rules)
		}
		if length > own.longest() {
			t.Fatalf("%d rules hold %s, and the longest chain has %d", length, name, own.longest())
		}
	})
}

// TestADenyOfTheOtherEndIsNotPassedOver draws rules with methods. No allow for one end of a label may open what a deny
// for its other end refuses.
func TestADenyOfTheOtherEndIsNotPassedOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(hosts ...string) (all []Rule, effects []Verdict) {
			for i := range rapid.IntRange(0, 3).Draw(t, "rules") {
				r := Rule{ID: fmt.Sprint(hosts[0], i)}
				r.Pattern, _ = ParsePattern(rapid.SampledFrom(hosts).Draw(t, "host") + rapid.SampledFrom([]string{"", ":443", ":*"}).Draw(t, "port"))
				if rapid.Bool().Draw(t, "conditional") {
					r.Methods = []string{rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method")}
				}
				all, effects = append(all, r), append(effects, rapid.SampledFrom([]Verdict{Deny, Ask, Allow}).Draw(t, "effect"))
			}
			return all, effects
		}
		begins, beginEffects := draw("ab*.x.test", "a*.x.test")
		ends, endEffects := draw("*yz.x.test", "*z.x.test")
		request := &Request{Destination: Destination{Host: "abyz.x.test", Port: 443}, HTTP: &HTTPRequest{Method: "POST", Path: "/"}}
		verdict := func(all []Rule, effects []Verdict) Verdict {
			own := newIndex()
			for i, r := range all {
				own.add(r.Pattern, r.compile(effects[i], false))
			}
			own.finish()
			d, err := (&rules{own: own, silence: permissive}).Evaluate(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			return d.Verdict
		}
		strict := min(verdict(begins, beginEffects), verdict(ends, endEffects))
		if got := verdict(append(begins, ends...), append(beginEffects, endEffects...)); got > strict {
			t.Fatalf("together %s, one by one %s", got, strict)
		}
	})
}

// BenchmarkFindOneLabel decides by one of 10,000 patterns of one parent.
func BenchmarkFindOneLabel(b *testing.B) {
	patterns := make([]Pattern, 10_000)
	for i := range patterns {
		patterns[i] = mustPattern(b, fmt.Sprintf("prod-%d-*.example.com", i))
	}
	ix := indexOf(patterns)
	b.ReportAllocs()
	for b.Loop() {
		if ix.find("prod-7777-eu-west.example.com", netip.Addr{}, 443) == nil {
			b.Fatal("it is not found")
		}
	}
}
