package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustPattern(t rapid.TB, text string) Pattern {
	t.Helper()
	p, err := ParsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustPatterns(t *testing.T, texts ...string) []Pattern {
	t.Helper()
	patterns := make([]Pattern, len(texts))
	for i, text := range texts {
		patterns[i] = mustPattern(t, text)
	}
	return patterns
}

// mustRules returns rules without conditions.
func mustRules(t *testing.T, texts ...string) []Rule {
	t.Helper()
	rules := make([]Rule, len(texts))
	for i, p := range mustPatterns(t, texts...) {
		rules[i].Pattern = p
	}
	return rules
}

func TestAPatternMatchesNames(t *testing.T) {
	rows := []struct {
		pattern, yes, no string // host:port, separated by spaces
	}{
		{"example.com", "example.com:80 example.com:443", "example.com:8443 example.com:22 a.example.com:443 xexample.com:443 example.com.evil.test:443"},
		{"Example.COM.", "example.com:443", "example.com:81"},
		{"*.example.com", "a.example.com:443 a.b.example.com:80", "example.com:443 notexample.com:443 a.example.com:8443 a.example.com.evil.test:443"},
		{"*{1}.example.com", "a.example.com:443 xn--bcher-kva.example.com:80", "example.com:443 a.b.example.com:443 a.example.com:8443 a.example.com.evil.test:443"},
		{"*{1}.test:22", "a.test:22", "test:22 a.b.test:22"},
		{"prod-*.example.com", "prod-1.example.com:443 prod-a-b.example.com:80", "prod.example.com:443 xprod-1.example.com:443 prod-1.a.example.com:443 prod-1.example.com:22 example.com:443 prod-1.xexample.com:443"},
		{"Prod*.Example.com.:*", "prod.example.com:1 PROD1.example.com:443", "pro.example.com:443"},
		{"*-prod.example.com", "a-prod.example.com:443 xn--a-prod.example.com:443", "prod.example.com:443 a-prod1.example.com:443 a.b-prod.example.com:443"},
		{"x*.example.com", "x.example.com:443 xn--bcher-kva.example.com:443", "a.example.com:443"},
		{"*", "example.com:443 localhost:80", "example.com:8443"},
		{"*:*", "example.com:1 example.com:65535", ""},
		{"*:8443", "example.com:8443", "example.com:443"},
		{"example.com:8443", "example.com:8443", "example.com:443 example.com:80"},
		{"example.com:*", "example.com:1 example.com:65535", "a.example.com:1"},
		{"example.com:8000-8999", "example.com:8000 example.com:8999", "example.com:7999 example.com:9000 example.com:443"},
		{"*.example.com:22", "a.example.com:22", "a.example.com:443 example.com:22"},
		{"10.0.0.5", "", "example.com:443"},
		{"0.0.0.0/0:*", "", "example.com:443"},
	}
	for _, row := range rows {
		p := mustPattern(t, row.pattern)
		for _, text := range strings.Fields(row.yes) {
			if d := mustDestination(t, text); !p.MatchesName(d.Host, d.Port) {
				t.Errorf("%s does not match %s", p, text)
			}
		}
		for _, text := range strings.Fields(row.no) {
			if d := mustDestination(t, text); p.MatchesName(d.Host, d.Port) {
				t.Errorf("%s matches %s", p, text)
			}
		}
	}
}

func TestAPatternMatchesAddresses(t *testing.T) {
	rows := []struct{ pattern, yes, no string }{
		{"93.184.216.0/24:443", "93.184.216.0:443 93.184.216.255:443 [::ffff:93.184.216.34]:443", "93.184.217.0:443 93.184.215.255:443 93.184.216.34:80 [64:ff9b::5db8:d822]:443"},
		{"10.0.0.5:8443", "10.0.0.5:8443 [::ffff:10.0.0.5]:8443", "10.0.0.5:443 10.0.0.6:8443"},
		{"[2606:2800::1]:443", "[2606:2800::1]:443", "[2606:2800::1]:80 [2606:2800::2]:443"},
		{"2606:2800::/32", "[2606:2800:ffff::]:80 [2606:2800::]:443", "[2606:2801::]:443 [2606:2800::]:22"},
		{"[2606:2800::/32]:443", "[2606:2800::5]:443", "[2606:2800::5]:80"},
		{"fd00::1", "[fd00::1]:443", "[fd00::2]:443"},
		{"0.0.0.0/0", "8.8.8.8:443", "[2606::1]:443"},
		{"*", "8.8.8.8:443 [2606::1]:80", "8.8.8.8:22"},
		{"example.com:*", "", "8.8.8.8:443"},
		{"*.com:*", "", "8.8.8.8:443"},
	}
	for _, row := range rows {
		p := mustPattern(t, row.pattern)
		for _, text := range strings.Fields(row.yes) {
			if at := netip.MustParseAddrPort(text); !p.MatchesAddr(at.Addr(), at.Port()) {
				t.Errorf("%s does not match %s", p, text)
			}
		}
		for _, text := range strings.Fields(row.no) {
			if at := netip.MustParseAddrPort(text); p.MatchesAddr(at.Addr(), at.Port()) {
				t.Errorf("%s matches %s", p, text)
			}
		}
	}
}

func TestNoPatternHoldsAnAddressWithAZone(t *testing.T) {
	zoned := netip.MustParseAddr("fe80::1%eth0")
	for _, text := range []string{"*:*", "fe80::1", "fe80::/10", "::/0"} {
		if p := mustPattern(t, text); p.CoversAddr(zoned) || p.CoversAddr(netip.Addr{}) {
			t.Errorf("%s covers an address with a zone, or none", p)
		}
	}
}

func TestTheZeroPatternMatchesNothing(t *testing.T) {
	var p Pattern
	if p.CoversName("") || p.CoversName("a.test") || p.CoversAddr(netip.MustParseAddr("8.8.8.8")) || p.CoversAddr(netip.Addr{}) || p.IsAddress() {
		t.Error("it matches")
	}
}

func TestCoversIgnoresPorts(t *testing.T) {
	if !mustPattern(t, "example.com:22").CoversName("example.com") || !mustPattern(t, "10.0.0.0/8:22").CoversAddr(netip.MustParseAddr("10.1.2.3")) {
		t.Error("a port was asked for")
	}
}

func TestAPatternPrintsItsCanonicalText(t *testing.T) {
	for text, want := range map[string]string{
		"EXAMPLE.com.:443":     "example.com:443",
		"10.0.0.5/32":          "10.0.0.5",
		"fd00:0:0::1":          "fd00::1",
		"[fd00::1]":            "fd00::1",
		"[FD00::/8]:22":        "[fd00::/8]:22",
		"a.test:80-80":         "a.test:80",
		"a.test:*":             "a.test:*",
		"a.test:1-65535":       "a.test:1-65535",
		"*":                    "*",
		"*:443":                "*:443",
		"::":                   "::",
		"::/0":                 "::/0",
		"2606:2800::1:8443":    "2606:2800::1:8443", // an address: a port needs brackets
		"_x.*.test":            "",
		"*.example.com:80-443": "*.example.com:80-443",
		"*{1}.Example.com.":    "*{1}.example.com",
		"*{1}.com:22":          "*{1}.com:22",
		"PROD-*.example.com.":  "prod-*.example.com",
		"*-A.example.com:*":    "*-a.example.com:*",
	} {
		p, err := ParsePattern(text)
		if want == "" {
			if err == nil {
				t.Errorf("%q was read as %s", text, p)
			}
			continue
		}
		if err != nil || p.String() != want {
			t.Errorf("%q prints as %q, %v", text, p, err)
		}
	}
}

func TestTheCloserPatternNamesFewerHosts(t *testing.T) {
	ordered := mustPatterns(t, "prod-eu-a.example.com:*", "prod-eu-*.example.com:22", "prod-*.example.com:443", "p*.example.com", "*{1}.example.com", "*.example.com:443", "*.com", "*")
	prefixes := mustPatterns(t, "10.0.0.5", "10.0.0.0/24:443", "10.0.0.0/8:1", "0.0.0.0/0", "*:22")
	for _, all := range [][]Pattern{ordered, prefixes} {
		for i, p := range all {
			for j, q := range all {
				if p.Closer(q) != (i < j) {
					t.Errorf("%s is closer than %s: %t", p, q, p.Closer(q))
				}
			}
		}
	}
	ties := mustPatterns(t, "prod-eu-*.example.com", "*-prod.example.com:22")
	if ties[0].Closer(ties[1]) || ties[1].Closer(ties[0]) {
		t.Error("a beginning and an end do not tie")
	}
}

func drawPattern(t *rapid.T, name string) Pattern {
	host := rapid.OneOf(
		rapid.StringMatching(`(\*\.|\*\{1\}\.)?([a-c]{1,2}\.){0,2}(com|test)`),
		rapid.StringMatching(`([a-c-]{0,2}[a-c]-?\*|\*-?[a-c]{1,2})\.[a-c]{1,2}\.(com|test)`).Filter(func(s string) bool { return s[0] != '-' }),
		rapid.SampledFrom([]string{"*"}),
		rapid.Custom(func(t *rapid.T) string { return drawPrefix(t).String() }),
	).Draw(t, name)
	ports := rapid.OneOf(
		rapid.SampledFrom([]string{"", ":*", ":443", ":80-443"}),
		rapid.StringMatching(`:[1-9][0-9]{0,3}(-[1-5][0-9]{4})?`),
	).Draw(t, name+" ports")
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	p, err := ParsePattern(host + ports)
	if err != nil {
		t.Fatalf("%s%s: %v", host, ports, err)
	}
	return p
}

func drawAddr(t *rapid.T, name string) netip.Addr {
	if rapid.Bool().Draw(t, name+" is IPv4") {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, name)))
	}
	return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))).Unmap()
}

func drawPrefix(t *rapid.T) netip.Prefix {
	addr := drawAddr(t, "address")
	return netip.PrefixFrom(addr, rapid.IntRange(0, addr.BitLen()).Draw(t, "bits")).Masked()
}

func TestParsingUndoesPrinting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPattern(t, "p")
		if again, err := ParsePattern(p.String()); err != nil || again != p {
			t.Fatalf("%s reads as %s, %v", p, again, err)
		}
	})
}

func TestAnAddressIsInAPatternAsNetipSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix, addr := drawPrefix(t), drawAddr(t, "addr")
		if rapid.Bool().Draw(t, "near") {
			addr = prefix.Addr()
		}
		p := Pattern{kind: addresses, prefix: prefix}
		if p.CoversAddr(addr) != prefix.Contains(addr) {
			t.Fatalf("%s and %s", p, addr)
		}
		if addr.Is4() && p.CoversAddr(netip.AddrFrom16(addr.As16())) != prefix.Contains(addr) {
			t.Fatalf("%s and %s mapped", p, addr)
		}
	})
}

func FuzzParsePattern(f *testing.F) {
	for _, text := range []string{
		"example.com", "*.example.com", "*", "a.test:8443", "a.test:*", "93.184.216.0/24:443", "[2606:2800::/32]:443", "fd00::1",
		"prod-*.a.test:8443", "*-prod.a.test", "*{1}.a.test:*", "xn--b*.a.test", "a*.b\u00fccher.test", ".*", "*{1}", "a*",
		"a.test:8000-8999", "10.0.0.5/8", "http://a.test/x", "a.*.b", "10.*", "::ffff:10.0.0.0/104", "b\u00fccher.test:80", "fe80::1%x/64",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePattern(text)
		var e *PatternError
		if errors.As(err, &e) && e.Hint != "" {
			if p, err = ParsePattern(e.Hint); err != nil {
				t.Fatalf("%q: the hint %q is wrong too: %v", text, e.Hint, err)
			}
		}
		if err != nil {
			return
		}
		if again, err := ParsePattern(p.String()); err != nil || again != p {
			t.Fatalf("%q: %s reads as %s, %v", text, p, again, err)
		}
		if p.IsAddress() && (p.prefix != p.prefix.Masked() || p.prefix.Addr().Is4In6()) {
			t.Fatalf("%q: prefix %s", text, p.prefix)
		}
	})
}

func TestSamplesStandForThePattern(t *testing.T) {
	for _, row := range []struct{ pattern, want string }{
		{"a.test", "a.test:443 a.test:80"},
		{"a.test:8443", "a.test:8443"},
		{"a.test:8000-8002", "a.test:8000 a.test:8001 a.test:8002"},
		{"*.a.test:22", "any-host-below.a.test:22"},
		{"*{1}.a.test:22", "anyhost.a.test:22"},
		{"prod-*.a.test:22", "prod-anyhost.a.test:22"},
		{"*-prod.a.test:22", "anyhost-prod.a.test:22"},
		{strings.Repeat("a", 60) + "*.a.test:22", strings.Repeat("a", 60) + "any.a.test:22"},
		{"93.184.216.34:1", "93.184.216.34:1"},
		{"93.184.216.0/22:1", "93.184.216.0:1 93.184.219.255:1"},
		{"[2606::/31]:1", "[2606::]:1 [2606:1:ffff:ffff:ffff:ffff:ffff:ffff]:1"},
		{"*", ""},
	} {
		p := mustPatterns(t, row.pattern)[0]
		var got []string
		for d := range p.Samples() {
			got = append(got, d.String())
			again, err := ParseDestination(d.String())
			if err != nil || again.Host != d.Host || again.Addr != d.Addr {
				t.Errorf("%s is not canonical: %v", d, err)
			}
			if !p.MatchesName(d.Host, d.Port) && !p.MatchesAddr(d.Addr, d.Port) {
				t.Errorf("%s is not in %s", d, p)
			}
		}
		if strings.Join(got, " ") != row.want {
			t.Errorf("%s stands for %s, want %s", row.pattern, got, row.want)
		}
	}
	ports := map[uint16]bool{}
	for d := range mustPatterns(t, "a.test:*")[0].Samples() {
		ports[d.Port] = true
	}
	if len(ports) != 65535 || ports[0] {
		t.Errorf("any port is %d ports, 0 among them: %t", len(ports), ports[0])
	}
	if lastAddr(netip.MustParsePrefix("0.0.0.0/0")) != netip.MustParseAddr("255.255.255.255") {
		t.Error("the last address is not the last")
	}
}

// TestPatternsMeetWhereBothHoldATunnel goes through all pairs of some patterns,
// and through destinations that stand for all that these tell apart.
func TestPatternsMeetWhereBothHoldATunnel(t *testing.T) {
	var all []Pattern
	for _, host := range []string{
		"a.test", "b.a.test", "*.test", "*.a.test", "*.b.a.test", "*{1}.test", "*{1}.a.test", "b*.a.test", "bc*.a.test", "*d.a.test", "*{1}.b.a.test", "*", "93.184.0.0/16", "93.184.216.34", "[2606:2800::/32]", "[2606:2800::1]",
	} {
		for _, port := range []string{"", ":80", ":443", ":*", ":80-500", ":22", ":79-80"} {
			all = append(all, mustPattern(t, host+port))
		}
	}
	all = append(all, Pattern{})
	for _, a := range all {
		for _, b := range all {
			if want := haveATunnelInCommon(a, b); a.SharesTunnel(b) != want {
				t.Errorf("%s and %s meet: %t", a, b, !want)
			}
		}
	}
}

func haveATunnelInCommon(a, b Pattern) bool {
	for _, host := range []string{"a.test", "b.a.test", "bc.a.test", "bd.a.test", "bcd.a.test", "c.b.a.test", "93.184.216.34", "93.184.1.1", "2606:2800::1", "2606:2800::2"} {
		addr, _ := netip.ParseAddr(host) // not valid for a name
		for _, port := range []uint16{22, 79, 81, 443, 65535} {
			d := Destination{Host: host, Addr: addr, Port: port}
			if (Injection{Pattern: a}).Covers(d) && (Injection{Pattern: b}).Covers(d) {
				return true
			}
		}
	}
	return false
}

func TestACredentialCoversItsHostAndPort(t *testing.T) {
	rows := []struct {
		pattern, to string
		want        bool
	}{
		{"api.test", "api.test:443", true},
		{"api.test", "api.test:8443", false},
		{"api.test:8443", "api.test:8443", true},
		{"api.test:*", "api.test:8443", true},
		{"api.test", "b.api.test:443", false},
		{"api.test", "93.184.216.34:443", false},
		{"93.184.216.34", "93.184.216.34:443", true},
		{"93.184.216.34", "93.184.216.35:443", false},
		{"93.184.216.34", "api.test:443", false},
	}
	for _, row := range rows {
		d, err := ParseDestination(row.to)
		if err != nil {
			t.Fatal(err)
		}
		d.Addrs = append(d.Addrs, mustPatterns(t, "93.184.216.34")[0].prefix.Addr())
		if got := (Injection{Pattern: mustPatterns(t, row.pattern)[0]}).Covers(d); got != row.want {
			t.Errorf("%s covers %s: %t", row.pattern, row.to, got)
		}
	}
}
