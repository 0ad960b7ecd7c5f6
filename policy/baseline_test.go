package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// judged is what the baseline says of host:port, with the addresses that it
// resolved to: "" or the class.
func judged(t *testing.T, b *Baseline, hostport string, resolved ...string) string {
	t.Helper()
	r := &Request{Destination: mustDestination(t, hostport)}
	for _, text := range resolved {
		r.Destination.Addrs = append(r.Destination.Addrs, netip.MustParseAddr(text))
	}
	return verdictOf(t, b, r)
}

func verdictOf(t *testing.T, b *Baseline, r *Request) string {
	t.Helper()
	d, err := b.Evaluate(t.Context(), r)
	switch {
	case err != nil:
		t.Fatal(err)
	case d.Verdict == Abstain:
		return ""
	case d.Verdict != Deny || d.Class != AddressDenied || d.Rule != "baseline" || d.Layer != Builtin || d.Reason == "" || d.AddressClass == "":
		t.Errorf("%v: decision %+v", r.Destination, d)
	}
	return d.AddressClass
}

func addrs(texts ...string) func() []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return func() []netip.Addr { return list }
}

func addrPorts(texts ...string) func() []netip.AddrPort {
	var list []netip.AddrPort
	for _, text := range texts {
		list = append(list, netip.MustParseAddrPort(text))
	}
	return func() []netip.AddrPort { return list }
}

func TestTheBaselineRefusesSpecialAddressesOnEveryPort(t *testing.T) {
	b := NewBaseline(BaselineOptions{})
	for text, class := range map[string]string{
		"127.0.0.1:8080":                "loopback",
		"127.127.127.127:443":           "loopback",
		"10.0.0.5:443":                  "private",
		"[::ffff:10.0.0.5]:443":         "private",
		"100.64.0.5:443":                "cgnat",
		"169.254.169.254:80":            "metadata",
		"168.63.129.16:80":              "metadata",
		"0.0.0.0:8080":                  "unspecified",
		"[::]:8080":                     "unspecified",
		"0.1.2.3:80":                    "this-network",
		"[64:ff9b::a9fe:a9fe]:80":       "metadata",
		"[2002:7f00:1::]:8080":          "loopback",
		"[::1]:8080":                    "loopback",
		"[fd12::1]:443":                 "unique-local",
		"[fe80::1]:443":                 "link-local",
		"[4000::1]:80":                  "unallocated",
		"[fec0::1]:80":                  "unallocated",
		"[5f00::1]:80":                  "segment-routing",
		"93.184.216.34:443":             "",
		"93.184.216.34:1":               "",
		"[2606:2800:220:1::1]:443":      "",
		"11.0.0.1:443":                  "",
		"192.0.0.9:443":                 "",
		"[64:ff9b::93.184.216.34]:443":  "",
		"[2002:5db8:d822::1]:443":       "6to4",
		"localhost:80":                  "loopback",
		"metadata.google.internal:80":   "metadata",
		"host.docker.internal:80":       "local-name",
		"kubernetes.default.svc:443":    "local-name",
		"allowed.test:443":              "",
		"_dmarc.allowed.test:443":       "",
		"use-application-dns.net.:443":  "local-name",
		"METADATA.google.internal.:443": "metadata",
	} {
		if got := judged(t, b, text); got != class {
			t.Errorf("%s: %q, not %q", text, got, class)
		}
	}
}

func TestOneRefusedAddressRefusesTheName(t *testing.T) {
	b := NewBaseline(BaselineOptions{Self: addrs("93.184.216.99")})
	rows := []struct{ resolved, class string }{
		{"93.184.216.34", ""},
		{"93.184.216.34 2606:2800:220:1::1", ""},
		{"10.0.0.5", "private"},
		{"93.184.216.34 10.0.0.5", "private"},
		{"10.0.0.5 93.184.216.34", "private"},
		{"93.184.216.34 ::ffff:10.0.0.5", "private"},
		{"93.184.216.34 2606:2800:220:1::1 fe80::1%eth0", "link-local"},
		{"93.184.216.34 93.184.216.99", "self"},
		{"127.0.0.1", "loopback"},
	}
	for _, row := range rows {
		if got := judged(t, b, "allowed.test:443", strings.Fields(row.resolved)...); got != row.class {
			t.Errorf("%s: %q, not %q", row.resolved, got, row.class)
		}
	}
	if got := judged(t, b, "93.184.216.34:443", "10.0.0.5"); got != "private" {
		t.Errorf("an address that became another: %q", got)
	}
}

func TestAnAliasIsJudgedLikeAName(t *testing.T) {
	b := NewBaseline(BaselineOptions{Exceptions: mustRules(t, "db.corp")})
	for alias, class := range map[string]string{
		"localhost":     "loopback",
		"evil.test":     "",
		"vault.corp":    "local-name",
		"db.corp":       "",
		"host.internal": "local-name",
	} {
		r := &Request{Destination: mustDestination(t, "cname.allowed.test:443")}
		r.Destination.Aliases = []string{"cdn.allowed.test", alias}
		if got := verdictOf(t, b, r); got != class {
			t.Errorf("alias %s: %q, not %q", alias, got, class)
		}
	}
}

func TestAReasonDoesNotShowWhatANameResolvesTo(t *testing.T) {
	b := NewBaseline(BaselineOptions{Self: addrs("93.184.216.99")})
	r := &Request{Destination: mustDestination(t, "allowed.test:443")}
	r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("93.184.216.99"), netip.MustParseAddr("10.9.8.7")}
	r.Destination.Aliases = []string{"secret.test"}
	if d, _ := b.Evaluate(t.Context(), r); d.Reason != "allowed.test leads to an address that is not open to sandboxes" {
		t.Errorf("reason %q", d.Reason)
	}
	r.Destination.Aliases = []string{"secret.internal"}
	if d, _ := b.Evaluate(t.Context(), r); d.Reason != "allowed.test leads to a name that is not open to sandboxes" {
		t.Errorf("reason %q", d.Reason)
	}
}

func TestADestinationThatNobodyParsedIsRefused(t *testing.T) {
	b := NewBaseline(BaselineOptions{})
	for _, host := range []string{"", "127.0.0.1", "93.184.216.034", "127.1", "0x7f.1", "Allowed.test", "allowed.test.", `x\.allowed.test`, "[::1]", "a..test"} {
		for _, addr := range []netip.Addr{{}, netip.MustParseAddr("93.184.216.34")} {
			d, err := b.Evaluate(t.Context(), &Request{Destination: Destination{Host: host, Addr: addr, Port: 443}})
			if err != nil || d.Verdict != Deny || d.Class != MalformedHost {
				t.Errorf("%q, %v: %+v, %v", host, addr, d, err)
			}
		}
	}
}

func TestAnExceptionOpensWhatItNames(t *testing.T) {
	rows := []struct{ exception, opened, closed string }{
		{"10.0.0.5:8443", "10.0.0.5:8443 [::ffff:10.0.0.5]:8443", "10.0.0.5:443 10.0.0.6:8443 [64:ff9b::10.0.0.5]:8443 [2002:a00:5::1]:8443"},
		{"10.0.0.0/8", "10.1.2.3:443 10.1.2.3:80", "10.1.2.3:22 192.168.0.1:443"},
		{"fd12::/16", "[fd12::5]:443", "[fd13::5]:443"},
		{"fd00::/8", "[fd12::5]:443", "[fd00:ec2::254]:80 [fd20:ce::254]:443"},
		{"100.64.0.0/10", "100.64.0.5:443", "100.100.100.200:80"},
		{"192.0.0.0/24", "192.0.0.1:443", "192.0.0.192:80"},
		{"198.18.0.0/15:*", "198.18.0.5:9", ""},
		{"4000::/8", "[4000::1]:443", "[5f00::1]:443"},
		{"64:ff9b:1::/48", "[64:ff9b:1::5db8:d822]:443", "[64:ff9b:1::a00:5]:443 [64:ff9b:1::7f00:1]:443"},
		{"[64:ff9b::a00:5]:443", "[64:ff9b::a00:5]:443", "[64:ff9b::a00:6]:443 10.0.0.5:443"},
		{"2002::/16", "[2002:5db8:d822::1]:443", "[2002:a00:5::1]:443 [2002:7f00:1::1]:443"},
		{"db.corp", "db.corp:443", "x.db.corp:443 db.corp:5432"},
		{"db.corp:5432", "db.corp:5432", "db.corp:443"},
		{"*.internal", "vault.internal:443", "internal:443 metadata.google.internal:80 instance-data.ec2.internal:80"},
		{"*.google.internal", "vault.google.internal:443", "metadata.google.internal:80"},
		{"intranet", "intranet:443", "intranet2:443"},

		// Wider than special-purpose space, or guarded: they open nothing.
		{"0.0.0.0/0:*", "", "10.0.0.5:443 127.0.0.1:443 169.254.169.254:80"},
		{"8.0.0.0/6:*", "", "10.0.0.5:443"},
		{"10.0.0.0/7:*", "", "10.0.0.5:443"},
		{"[::/0]:*", "", "[fd12::5]:443 [::1]:443"},
		{"[::/2]:*", "", "[100::1]:443"},
		{"[64:ff9b::/96]:*", "", "[64:ff9b::a00:5]:443"},
		{"*:*", "", "10.0.0.5:443 localhost:80 vault.internal:443"},
		{"127.0.0.1:*", "", "127.0.0.1:443"},
		{"127.0.0.0/8:*", "", "127.0.0.1:443"},
		{"[::1]:*", "", "[::1]:443"},
		{"0.0.0.0:*", "", "0.0.0.0:443"},
		{"169.254.0.0/16:*", "", "169.254.1.1:443 169.254.169.254:80"},
		{"169.254.169.254:80", "", "169.254.169.254:80"},
		{"168.63.129.16:80", "", "168.63.129.16:80"},
		{"[fe80::/10]:*", "", "[fe80::1]:443"},
		{"localhost:*", "", "localhost:443"},
		{"*.localhost:*", "", "x.localhost:443"},
		{"metadata.google.internal:*", "", "metadata.google.internal:80"},
	}
	for _, row := range rows {
		b := NewBaseline(BaselineOptions{Exceptions: mustRules(t, row.exception)})
		for _, text := range strings.Fields(row.opened) {
			if got := judged(t, b, text); got != "" {
				t.Errorf("allow %s: %s is refused as %s", row.exception, text, got)
			}
		}
		for _, text := range strings.Fields(row.closed) {
			if judged(t, b, text) == "" {
				t.Errorf("allow %s: %s is open", row.exception, text)
			}
		}
	}
}

func TestAnExceptionForANameDoesNotOpenItsAddresses(t *testing.T) {
	b := NewBaseline(BaselineOptions{Exceptions: mustRules(t, "db.corp", "allowed.test")})
	if got := judged(t, b, "db.corp:443", "10.0.0.5"); got != "private" {
		t.Errorf("the private address of db.corp: %q", got)
	}
	if got := judged(t, b, "allowed.test:443", "10.0.0.5"); got != "private" {
		t.Errorf("the private address of allowed.test: %q", got)
	}
	b = NewBaseline(BaselineOptions{Exceptions: mustRules(t, "db.corp", "10.0.0.5")})
	if got := judged(t, b, "db.corp:443", "10.0.0.5"); got != "" {
		t.Errorf("both named: %q", got)
	}
	if got := judged(t, b, "db.corp:443", "10.0.0.5", "10.0.0.6"); got != "private" {
		t.Errorf("one address too many: %q", got)
	}
}

func TestUnsafeOpensWhatIsGuarded(t *testing.T) {
	rows := []struct{ unsafe, opened, closed string }{
		{"127.0.0.0/8:*", "127.0.0.1:8080 127.9.9.9:1 [::ffff:127.0.0.1]:80", "[::1]:80 10.0.0.5:80 [64:ff9b::7f00:1]:80 0.0.0.0:80"},
		{"[::1]:8080", "[::1]:8080", "[::1]:80 127.0.0.1:8080"},
		{"[64:ff9b::7f00:1]:80", "[64:ff9b::7f00:1]:80", "127.0.0.1:80"},
		{"0.0.0.0:80", "0.0.0.0:80", "0.0.0.0:81 127.0.0.1:80"},
		{"169.254.0.0/16:*", "169.254.1.1:80", "169.254.169.254:80"},
		{"169.254.169.254:80", "169.254.169.254:80", "169.254.169.254:443 169.254.170.2:80"},
		{"168.63.129.16:80", "168.63.129.16:80", ""},
		{"[fd00::/8]:*", "[fd12::1]:80", "[fd00:ec2::254]:80"},
		{"10.0.0.0/8:*", "10.1.2.3:22", ""},
		{"localhost:*", "localhost:80", "x.localhost:80"},
		{"*.localhost:*", "x.localhost:80", "localhost:80"},
		{"metadata.google.internal", "metadata.google.internal:80", "x.metadata.google.internal:80 metadata:80"},
		{"*.internal:*", "vault.internal:80", "metadata.google.internal:80"},
		{"0.0.0.0/0:*", "", "127.0.0.1:80 10.0.0.5:80"},
		{"*:*", "", "127.0.0.1:80 localhost:80 10.0.0.5:80"},
		{"93.184.0.0/16:*", "", "93.184.216.99:443"},
		{"93.184.216.99:443", "93.184.216.99:443", "93.184.216.99:80"},
		{"10.99.0.0/24:*", "10.99.0.2:443", ""},
	}
	for _, row := range rows {
		b := NewBaseline(BaselineOptions{Self: addrs("93.184.216.99", "10.99.0.2"), Unsafe: mustRules(t, row.unsafe)})
		for _, text := range strings.Fields(row.opened) {
			if got := judged(t, b, text); got != "" {
				t.Errorf("unsafe_allow %s: %s is refused as %s", row.unsafe, text, got)
			}
		}
		for _, text := range strings.Fields(row.closed) {
			if judged(t, b, text) == "" {
				t.Errorf("unsafe_allow %s: %s is open", row.unsafe, text)
			}
		}
	}
}

func TestTheHostItselfIsRefused(t *testing.T) {
	self := addrs("93.184.216.99", "10.99.0.2", "::ffff:10.99.0.3", "2606:2800::99", "fe80::2%eth0", "127.0.0.1")
	b := NewBaseline(BaselineOptions{Self: self, Exceptions: mustRules(t, "10.0.0.0/8:*", "10.99.0.2:443", "93.184.216.99")})
	for text, class := range map[string]string{
		"93.184.216.99:443":            "self",
		"93.184.216.98:443":            "",
		"10.99.0.2:443":                "self",
		"10.99.0.3:443":                "self",
		"10.99.0.4:443":                "",
		"[::ffff:10.99.0.2]:443":       "self",
		"[64:ff9b::93.184.216.99]:443": "self",
		"[64:ff9b::93.184.216.98]:443": "",
		"[2606::5efe:5db8:d863]:443":   "self",
		"[2606:2800::99]:22":           "self",
		"127.0.0.1:22":                 "loopback",
		"[fe80::2]:22":                 "link-local",
	} {
		if got := judged(t, b, text); got != class {
			t.Errorf("%s: %q, not %q", text, got, class)
		}
	}
}

func TestTheHostsAddressesAreAskedForAgain(t *testing.T) {
	current, calls := []netip.Addr{}, 0
	b := NewBaseline(BaselineOptions{Self: func() []netip.Addr { calls++; return current }})
	if got := judged(t, b, "93.184.216.99:443"); got != "" {
		t.Fatalf("before: %q", got)
	}
	current = addrs("93.184.216.99")()
	if got := judged(t, b, "93.184.216.99:443"); got != "self" {
		t.Errorf("after: %q", got)
	}
	calls = 0
	judged(t, b, "allowed.test:443")
	if calls != 0 {
		t.Errorf("a name that is not resolved asked %d times", calls)
	}
}

func TestEgressdNeverTalksToItself(t *testing.T) {
	rows := []struct{ listener, unsafe, opened, closed string }{
		{"127.0.0.1:3128", "127.0.0.0/8:*", "127.0.0.1:3129 127.0.0.2:3128", "127.0.0.1:3128 [::ffff:127.0.0.1]:3128"},
		{"127.0.0.1:3128", "127.0.0.1:*", "127.0.0.1:80", "127.0.0.1:3128"},
		{"127.0.0.1:3128", "127.0.0.1:3000-4000", "127.0.0.1:3000", "127.0.0.1:3128"},
		{"127.0.0.1:3128", "127.0.0.1:3128", "127.0.0.1:3128", "127.0.0.1:80"},
		{"127.0.0.1:3128", "0.0.0.0:*", "0.0.0.0:80", "0.0.0.0:3128"},
		{"127.0.0.1:3128", "[::]:*", "[::]:80", "[::]:3128"},
		{"127.0.0.1:3128", "[64:ff9b::7f00:1]:*", "[64:ff9b::7f00:1]:80", "[64:ff9b::7f00:1]:3128"},
		{"[::1]:3128", "[::1]:*", "[::1]:80", "[::1]:3128"},
		{"0.0.0.0:3128", "127.0.0.0/8:*", "127.0.0.1:80", "127.0.0.1:3128 127.9.9.9:3128"},
		{"[::]:3128", "127.0.0.0/8:*", "127.0.0.1:80", "127.0.0.1:3128"},
		{"[::]:3128", "10.99.0.0/24:*", "10.99.0.2:80 10.99.0.7:3128", "10.99.0.2:3128"},
		{"[::]:3128", "10.99.0.2:3128", "10.99.0.2:3128", "93.184.216.99:3128"},
		{"0.0.0.0:3128", "93.184.216.99:*", "93.184.216.99:80 93.184.216.98:3128", "93.184.216.99:3128"},
		{"10.99.0.2:3128", "10.99.0.0/24:*", "10.99.0.2:80", "10.99.0.2:3128"},
		{"93.184.216.50:3128", "10.0.0.0/8", "93.184.216.50:80", "93.184.216.50:3128"}, // not among Self: still its own
		{"[fe80::2%eth0]:3128", "[fe80::/10]:*", "[fe80::2]:80", "[fe80::2]:3128"},
		{"0.0.0.0:3128", "169.254.0.0/16:*", "169.254.1.1:3128", "169.254.1.2:3128"},
	}
	for _, row := range rows {
		b := NewBaseline(BaselineOptions{
			Self:      addrs("93.184.216.99", "10.99.0.2", "169.254.1.2"),
			Listeners: addrPorts("192.0.2.1:9", row.listener),
			Unsafe:    mustRules(t, row.unsafe),
		})
		for _, text := range strings.Fields(row.opened) {
			if got := judged(t, b, text); got != "" {
				t.Errorf("listening on %s, unsafe_allow %s: %s is refused as %s", row.listener, row.unsafe, text, got)
			}
		}
		for _, text := range strings.Fields(row.closed) {
			if judged(t, b, text) == "" {
				t.Errorf("listening on %s, unsafe_allow %s: %s is open", row.listener, row.unsafe, text)
			}
		}
	}
}

// TestNothingOpensTheOperatorsListener: neither a range nor the address and port themselves,
// nor another way to write it.
func TestNothingOpensTheOperatorsListener(t *testing.T) {
	for at, spellings := range map[string]string{
		"127.0.0.1:9090": "127.0.0.1:9090 [::ffff:127.0.0.1]:9090 0.0.0.0:9090 [::]:9090 [64:ff9b::7f00:1]:9090",
		"[::1]:9090":     "[::1]:9090 0.0.0.0:9090 [::]:9090",
	} {
		for _, unsafe := range []string{"127.0.0.0/8:*", "127.0.0.1:9090", "[::1]:9090", "[::ffff:127.0.0.1]:9090", "0.0.0.0:9090", "[::]:9090", "[64:ff9b::7f00:1]:9090"} {
			p, err := ParsePattern(unsafe)
			if err != nil {
				continue // a spelling that no rule may have
			}
			b := NewBaseline(BaselineOptions{AdminListeners: addrPorts(at), Unsafe: []Rule{{Pattern: p}}})
			for _, text := range strings.Fields(spellings) {
				if got := judged(t, b, text); got == "" {
					t.Errorf("listening on %s, unsafe_allow %s: %s is open", at, unsafe, text)
				}
			}
		}
		beside := NewBaseline(BaselineOptions{AdminListeners: addrPorts(at), Unsafe: mustRules(t, "127.0.0.0/8:*")})
		if got := judged(t, beside, "127.0.0.1:9091"); got != "" {
			t.Errorf("the port beside %s is refused as %s", at, got)
		}
	}
}

func TestAListenerIsCalledSelf(t *testing.T) {
	b := NewBaseline(BaselineOptions{Listeners: addrPorts("127.0.0.1:3128")})
	if got := judged(t, b, "127.0.0.1:3128"); got != "self" {
		t.Errorf("the listener: %q", got)
	}
	if got := judged(t, b, "127.0.0.1:3129"); got != "loopback" {
		t.Errorf("beside it: %q", got)
	}
}

func TestADNSQuestionHasNoPort(t *testing.T) {
	opening := fixed{decision: Decision{Verdict: Allow, Rule: "all"}}
	p := New(opening, NewBaseline(BaselineOptions{Exceptions: mustRules(t, "db.corp:5432", "10.0.0.5:5432"), Listeners: addrPorts("10.0.0.5:53")}))
	ask := func(name string, resolved ...netip.Addr) string {
		return p.Decide(t.Context(), &Request{Destination: Destination{Host: name, Addrs: resolved}, DNS: &DNSQuery{Name: name, Type: "A"}}).AddressClass
	}
	if got := ask("db.corp", netip.MustParseAddr("10.0.0.5")); got != "" {
		t.Errorf("what is open at some port: %q", got)
	}
	if got := ask("db.corp", netip.MustParseAddr("10.0.0.6")); got != "private" {
		t.Errorf("an address that no exception names: %q", got)
	}
	if got := ask("vault.corp"); got != "local-name" {
		t.Errorf("a name that no exception names: %q", got)
	}
}

func TestSpecialSpaceOfPatterns(t *testing.T) {
	for text, want := range map[string]bool{
		"10.0.0.0/8": true, "10.0.0.5:22": true, "192.168.0.0/16": true, "fd00::/8": true, "224.0.0.0/4": true, "ff00::/8": true, "240.0.0.0/4": true,
		"4000::/2": true, "8000::/1": true, "2001:db8::/32": true, "168.63.129.16": true, "127.0.0.1": true, "64:ff9b::a00:5": true, "192.0.0.0/24": true,
		"db.corp": true, "*.internal": true, "intranet": true, "localhost": true,
		"0.0.0.0/0": false, "8.0.0.0/6": false, "10.0.0.0/7": false, "224.0.0.0/3": false, "::/0": false, "::/1": false, "::/2": false, "2000::/3": false, "2606::/16": false,
		"64:ff9b::/96": false, "64:ff9b::5db8:d822": false, "64:ff9b::a00:0/104": false, "93.184.216.34": false, "192.0.0.9": false,
		"example.com": false, "*.com": false, "*": false, "*:*": false, "*.corp.test": false,
	} {
		if InSpecialSpace(mustPattern(t, text)) != want {
			t.Errorf("%s: not %v", text, want)
		}
	}
	if InSpecialSpace(Pattern{}) {
		t.Error("the zero pattern")
	}
}

func TestASpecialPrefixHoldsNothingPublicButItsRowsExceptions(t *testing.T) {
	holes := []netip.Prefix{netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("64:ff9b::/96")}
	rapid.Check(t, func(t *rapid.T) {
		p := Pattern{kind: addresses, prefix: drawPrefix(t)}
		addr := inside(p.prefix, drawAddr(t, "addr"))
		if p.isSingle() || !InSpecialSpace(p) || !p.CoversAddr(addr) {
			return
		}
		in := func(hole netip.Prefix) bool { return hole.Contains(addr) }
		if ClassOf(addr) == "" && !slices.ContainsFunc(holes, in) {
			t.Fatalf("%s holds %s, which is public", p, addr)
		}
	})
}

// No set of exceptions opens what is guarded, and none of them closes
// anything.
func TestExceptionsNeverOpenWhatIsGuarded(t *testing.T) {
	guarded := append(metadataAddrs(), addrs("127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "169.254.7.7", "fe80::7", "10.99.0.2")()...)
	rapid.Check(t, func(t *rapid.T) {
		var exceptions []Rule
		for range rapid.IntRange(0, 5).Draw(t, "exceptions") {
			exceptions = append(exceptions, Rule{Pattern: drawPattern(t, "exception")})
		}
		addr := rapid.SampledFrom(guarded).Draw(t, "guarded")
		exceptions = append(exceptions, Rule{Pattern: Pattern{kind: addresses, prefix: netip.PrefixFrom(addr, addr.BitLen()), ports: everyPort()}})
		b := NewBaseline(BaselineOptions{Self: addrs("10.99.0.2"), Exceptions: exceptions})
		r := &Request{Destination: Destination{Host: addr.String(), Addr: addr, Port: rapid.Uint16Min(1).Draw(t, "port")}}
		if d, err := b.Evaluate(t.Context(), r); err != nil || d.Verdict != Deny {
			t.Fatalf("%s is open: %+v", r.Destination, d)
		}
		r.Destination.Addr = drawAddr(t, "any address")
		r.Destination.Host = r.Destination.Addr.String()
		without, _ := NewBaseline(BaselineOptions{Self: addrs("10.99.0.2")}).Evaluate(t.Context(), r)
		with, _ := b.Evaluate(t.Context(), r)
		if with.Verdict < without.Verdict {
			t.Fatalf("an exception closes %s", r.Destination)
		}
	})
}

func BenchmarkBaseline(b *testing.B) {
	self := make([]netip.Addr, 10)
	for i := range self {
		self[i] = netip.AddrFrom4([4]byte{10, 99, 0, byte(i)})
	}
	baseline := NewBaseline(BaselineOptions{
		Self:      func() []netip.Addr { return self },
		Listeners: addrPorts("127.0.0.1:3128"),
	})
	for _, text := range []string{"api.anthropic.com:443", "93.184.216.34:443", "[2606:2800:220:1::1]:443"} {
		d, err := ParseDestination(text)
		if err != nil {
			b.Fatal(err)
		}
		r := &Request{Destination: d}
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, _ := baseline.Evaluate(b.Context(), r); d.Verdict != Abstain {
					b.Fatal(d)
				}
			}
		})
	}
}

// TestNothingOpensTheNameOfEgressdItself excepts the name, and what leads to it, in every way that a file has.
func TestNothingOpensTheNameOfEgressdItself(t *testing.T) {
	var rules []Rule
	for _, text := range []string{"egressd.internal:*", "*.internal:*", "other.test:*"} {
		p, err := ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, Rule{ID: text, Pattern: p})
	}
	b := NewBaseline(BaselineOptions{Exceptions: rules, Unsafe: rules})
	for _, row := range []struct {
		to, alias string
		closed    bool
	}{
		{"egressd.internal:80", "", true}, {"egressd.internal:443", "", true}, {"EGRESSD.Internal.:22", "", true},
		{"other.test:80", "egressd.internal", true}, {"x.internal:80", "", false}, {"other.test:80", "", false},
	} {
		dst, err := ParseDestination(row.to)
		if err != nil {
			t.Fatal(err)
		}
		if row.alias != "" {
			dst.Aliases = []string{row.alias}
		}
		d, err := b.Evaluate(t.Context(), &Request{Destination: dst})
		if err != nil || (d.Verdict == Deny) != row.closed || row.closed && d.AddressClass != string(AddrSelf) {
			t.Errorf("%s %s: %+v, %v", row.to, row.alias, d, err)
		}
	}
}
