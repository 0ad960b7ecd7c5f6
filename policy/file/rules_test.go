package file

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var inspecting = Environment{Inspection: true}

// compiled compiles "version: 1" and the given lines.
func compiled(t rapid.TB, lines string, env Environment) *policy.Policy {
	t.Helper()
	f, err := Parse("egressd.yaml", []byte("version: 1\n"+lines))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(env)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// asking reads a request like those of "egressd check", behind which may stand
// the addresses and aliases that the host resolved to: "a.test => 10.0.0.1 b.test".
func asking(t rapid.TB, text string) *policy.Request {
	t.Helper()
	text, resolved, _ := strings.Cut(text, " => ")
	r, err := ParseCheck(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(resolved) {
		if addr, err := netip.ParseAddr(word); err == nil {
			r.Destination.Addrs = append(r.Destination.Addrs, addr)
		} else {
			r.Destination.Aliases = append(r.Destination.Aliases, word)
		}
	}
	return &r
}

// saying is the short form of a decision: "deny rule-deny by deny[0]".
func saying(d policy.Decision) string {
	if d.Class == "" {
		return fmt.Sprintf("%s by %s", d.Verdict, d.Rule)
	}
	return fmt.Sprintf("%s %s by %s", d.Verdict, d.Class, d.Rule)
}

var ruleRows = []struct {
	name  string
	lines string
	ask   string
	want  string
}{
	{"an empty file allows nothing", "", "https://a.test/", "deny default-deny by default"},
	{"an empty list allows nothing", "allow: []", "https://a.test/", "deny default-deny by default"},
	{"a host means 443", "allow: [a.test]", "a.test", "allow by allow[0]"},
	{"a host means 80", "allow: [a.test]", "a.test:80", "allow by allow[0]"},
	{"a host does not mean 8443", "allow: [a.test]", "a.test:8443", "deny default-deny by default"},
	{"a host is not what is below it", "allow: [a.test]", "b.a.test", "deny default-deny by default"},
	{"a wildcard is what is below", `allow: ["*.a.test"]`, "c.b.a.test", "allow by allow[0]"},
	{"a wildcard is not the host itself", `allow: ["*.a.test"]`, "a.test", "deny default-deny by default"},
	{"a wildcard ends at a label", `allow: ["*.a.test"]`, "xa.test", "deny default-deny by default"},
	{"a star is any host", `allow: ["*"]`, "a.test", "allow by allow[0]"},
	{"a star is a public address too", `allow: ["*"]`, "93.184.216.34", "allow by allow[0]"},
	{"a star opens nothing private", `allow: ["*:*"]`, "10.0.0.5", "deny address-denied by baseline"},

	{"a host beats a wildcard", "deny: ['*.a.test']\nallow: [b.a.test]", "b.a.test", "allow by allow[0]"},
	{"a longer wildcard beats a shorter", "deny: ['*.test']\nallow: ['*.a.test']", "b.a.test", "allow by allow[0]"},
	{"a wildcard beats a star", "deny: ['*']\nallow: ['*.a.test']", "b.a.test", "allow by allow[0]"},
	{"a longer prefix beats a shorter", "deny: [93.184.0.0/16]\nallow: [93.184.216.0/24]", "93.184.216.34", "allow by allow[0]"},
	{"a shorter prefix decides outside the longer", "deny: [93.184.0.0/16]\nallow: [93.184.216.0/24]", "93.184.1.1", "deny rule-deny by deny[0]"},
	{"a port does not beat a deny of some methods", "allow: ['a.test:443']\ndeny: [{host: a.test, methods: [POST]}]", "POST https://a.test/", "deny rule-deny by deny[0]"},
	{"nor an ask of some paths", "allow: ['a.test:443']\nask: [{host: a.test, paths: [/up/**]}]", "PUT https://a.test/up/x", "ask ask-rejected by ask[0]"},
	{"nor a deny of a range", "allow: ['a.test:400-443']\ndeny: ['a.test:443-8443']", "a.test", "deny rule-deny by deny[0]"},
	{"a deny without a port is about every port", "default: allow\ndeny: [evil.test]", "evil.test:8443", "deny rule-deny by deny[0]"},
	{"an ask without a port is about every port", "ask: [a.test]", "a.test:22", "ask ask-rejected by ask[0]"},
	{"a deny with a port is about that one", "allow: [a.test]\ndeny: ['a.test:443']", "a.test:80", "allow by allow[0]"},
	{"a host without a port beats a wildcard with one", "deny: ['*.a.test:443']\nallow: [b.a.test]", "b.a.test", "allow by allow[0]"},
	{"a method does not beat a deny of paths", "deny: [{host: a.test, paths: [/x/**]}]\nallow: [{host: a.test, methods: [GET]}]", "https://a.test/x/y", "deny rule-deny by deny[0]"},
	{"a path does not beat a deny of methods", "deny: [{host: a.test, methods: [POST]}]\nallow: [{host: a.test, paths: [/x/**]}]", "POST https://a.test/x/y", "deny rule-deny by deny[0]"},
	{"ask loses to deny at a tie", "ask: [a.test]\ndeny: ['a.test:443']", "a.test", "deny rule-deny by deny[0]"},
	{"ask beats allow at a tie", "ask: ['a.test:443']\nallow: [a.test]", "a.test", "ask ask-rejected by ask[0]"},
	{"the beginning and the end of a label tie", "allow: ['production-*.a.test']\ndeny: ['*-db.a.test']", "production-db.a.test", "deny rule-deny by deny[0]"},

	{"default allow", "default: allow", "a.test:22", "allow by default"},
	{"default allow with a deny", "default: allow\ndeny: [evil.test]", "evil.test", "deny rule-deny by deny[0]"},
	{"default allow opens nothing private", "default: allow", "192.168.0.1:80", "deny address-denied by baseline"},

	{"a private address is an exception for just that", "allow: ['10.0.0.5:8443']", "10.0.0.5:8443", "allow by allow[0]"},
	{"its other ports are not", "allow: ['10.0.0.5:8443']", "10.0.0.5:443", "deny address-denied by baseline"},
	{"its neighbour is not", "allow: ['10.0.0.5:8443']", "10.0.0.6:8443", "deny address-denied by baseline"},
	{"all of IPv4 is no exception", "allow: [0.0.0.0/0]", "10.0.0.5", "deny address-denied by baseline"},
	{"unsafe_allow allows", "unsafe_allow: ['127.0.0.1:8080']", "127.0.0.1:8080", "allow by unsafe_allow[0]"},

	{"a method that is named", "allow: [{host: a.test, methods: [GET], id: read}]", "GET https://a.test/", "allow by read"},
	{"HEAD follows an allowed GET", "allow: [{host: a.test, methods: [GET]}]", "HEAD https://a.test/", "allow by allow[0]"},
	{"HEAD follows a denied GET", "allow: [a.test]\ndeny: [{host: a.test, methods: [GET]}]", "HEAD https://a.test/", "deny rule-deny by deny[0]"},
	{"GET does not follow an allowed HEAD", "allow: [{host: a.test, methods: [HEAD]}]", "GET https://a.test/", "deny method-denied by allow[0]"},
	{"a method that is not named", "allow: [{host: a.test, methods: [GET], id: read}]", "POST https://a.test/", "deny method-denied by read"},
	{"get is not GET where GET is allowed", "allow: [{host: a.test, methods: [GET]}]", "get https://a.test/", "deny method-denied by allow[0]"},
	{"get is GET where GET is denied", "allow: [a.test]\ndeny: [{host: a.test, methods: [GET]}]", "get https://a.test/", "deny rule-deny by deny[0]"},
	{"what no condition denies", "allow: [a.test]\ndeny: [{host: a.test, methods: [POST]}]", "https://a.test/", "allow by allow[0]"},
	{"a path that matches", "allow: [{host: a.test, paths: [/a/**]}]", "https://a.test/a/b?q", "allow by allow[0]"},
	{"a path that does not", "allow: [{host: a.test, paths: [/a/**]}]", "https://a.test/b", "deny path-denied by allow[0]"},
	{"the method of one rule and the path of another", "allow: [{host: a.test, methods: [GET], id: r}, {host: a.test, methods: [PUT], paths: [/up/**], id: w}]", "PUT https://a.test/x", "deny path-denied by w"},
	{"a path out of a path", "allow: [{host: a.test, paths: [/a/**]}]", "https://a.test/a/../b", "deny path-denied by allow[0]"},
	{"an ambiguous path matches a deny", "allow: [a.test]\ndeny: [{host: a.test, paths: [/admin/**]}]", "https://a.test/x/%2e%2e/admin", "deny rule-deny by deny[0]"},
	{"a scoped package of npm under methods", "allow: [{host: a.test, methods: [GET]}]", "https://a.test/@scope%2fname", "allow by allow[0]"},
	{"a scoped package of npm under paths", "allow: [{host: a.test, paths: [/**]}]", "https://a.test/@scope%2fname", "deny path-denied by allow[0]"},
	{"an ambiguous path needs no condition", "allow: [a.test]", "https://a.test/y//x", "allow by allow[0]"},
	{"what a condition misses goes on to a wildcard", "allow: [{host: b.a.test, methods: [GET]}, '*.a.test']", "POST https://b.a.test/", "allow by allow[1]"},
	{"a wildcard's deny holds for what a condition misses", "allow: [{host: b.a.test, methods: [GET]}]\ndeny: ['*.a.test']", "POST https://b.a.test/", "deny rule-deny by deny[0]"},
	{"an allow with a method says nothing under default allow", "default: allow\nallow: [{host: a.test, methods: [GET]}]", "POST https://a.test/", "allow by default"},

	{"an unseen request is inspected", "allow: [{host: a.test, methods: [GET]}]", "a.test", "inspect by allow[0]"},
	{"an unseen request with a denied method too", "allow: [a.test]\ndeny: [{host: a.test, methods: [POST]}]", "a.test", "inspect by allow[0]"},
	{"an unseen request that is allowed either way", "allow: [a.test, {host: a.test, methods: [GET]}]", "a.test", "allow by allow[1]"},
	{"an unseen request that is denied either way", "deny: [a.test, {host: a.test, methods: [GET]}]", "a.test", "deny rule-deny by deny[1]"},
	{"an unseen request that nothing allows", "deny: [{host: a.test, methods: [GET]}]", "a.test", "deny default-deny by default"},
	{"an unseen request that must be seen under default allow", "default: allow\nallow: [{host: a.test, paths: [/v1], inject: {header: X-Key, env: KEY}}]", "a.test", "inspect by default"},
	{"an unseen request under default allow", "default: allow\ndeny: [{host: a.test, methods: [POST]}]", "a.test", "inspect by default"},
	{"another port is not inspected", "allow: [a.test, {host: 'a.test:80', methods: [GET]}]", "a.test", "allow by allow[0]"},

	{"an allowed name at a public address", "allow: [a.test]", "a.test => 93.184.216.34", "allow by allow[0]"},
	{"an allowed name at a private address", "allow: [a.test]", "a.test => 93.184.216.34 10.0.0.5", "deny address-denied by baseline"},
	{"a denied prefix holds for an allowed name", "allow: [a.test]\ndeny: [93.184.0.0/16]", "a.test => 1.1.1.1 93.184.216.34", "deny rule-deny by deny[0]"},
	{"a longer allow inside a denied prefix", "allow: [a.test, 93.184.216.34]\ndeny: [93.184.0.0/16]", "a.test => 93.184.216.34", "allow by allow[0]"},
	{"an allowed address allows no name", "allow: [93.184.216.34]", "a.test => 93.184.216.34", "deny default-deny by default"},
	{"a denied prefix at another port", "allow: [a.test]\ndeny: ['93.184.0.0/16:22']", "a.test => 93.184.216.34", "allow by allow[0]"},
	{"a denied prefix behind a translator", "allow: [a.test]\ndeny: [93.184.0.0/16]", "a.test => 64:ff9b::5db8:d822", "deny rule-deny by deny[0]"},
	{"a denied prefix asked for behind a translator", "allow: ['*']\ndeny: [93.184.0.0/16]", "[64:ff9b::5db8:d822]", "deny rule-deny by deny[0]"},
	{"a conditional allow of an address narrows no name", "allow: [a.test, {host: 93.184.216.34, methods: [GET]}]", "POST https://a.test/ => 93.184.216.34", "allow by allow[0]"},
	{"a conditional deny of an address needs the request", "allow: [a.test]\ndeny: [{host: 93.184.0.0/16, methods: [POST]}]", "a.test => 93.184.216.34", "inspect by allow[0]"},
	{"a conditional deny of an address", "allow: [a.test]\ndeny: [{host: 93.184.0.0/16, methods: [POST]}]", "POST https://a.test/ => 93.184.216.34", "deny rule-deny by deny[0]"},
	{"a denied alias", "allow: [a.test]\ndeny: ['*.evil.test']", "a.test => x.evil.test 93.184.216.34", "deny rule-deny by deny[0]"},
	{"an alias that nothing speaks of", "allow: [a.test]", "a.test => cdn.test 93.184.216.34", "allow by allow[0]"},
	{"a denied star is about what is asked for", "allow: [a.test]\ndeny: ['*']", "a.test => cdn.test 93.184.216.34", "allow by allow[0]"},

	{"a preset", "presets: [npm]", "registry.npmjs.org", "allow by preset:npm"},
	{"a preset reads over plain http", "presets: [npm]", "GET http://registry.npmjs.org/x", "allow by preset:npm"},
	{"a preset does not write over plain http", "presets: [npm]", "PUT http://registry.npmjs.org/x", "deny method-denied by preset:npm"},
	{"an own line loosens a preset", "presets: [npm]\nallow: [registry.npmjs.org]", "PUT http://registry.npmjs.org/x", "allow by allow[0]"},
	{"an own deny beats a more specific preset", "presets: [npm]\ndeny: ['*.npmjs.org']", "registry.npmjs.org", "deny rule-deny by deny[0]"},
	{"an own rule that misses leaves the preset its word", "presets: [npm]\nallow: [{host: registry.npmjs.org, methods: [PUT]}]", "GET http://registry.npmjs.org/x", "allow by preset:npm"},
}

func TestRules(t *testing.T) {
	for _, row := range ruleRows {
		t.Run(row.name, func(t *testing.T) {
			p := compiled(t, row.lines, inspecting)
			if got := saying(p.Decide(context.Background(), asking(t, row.ask))); got != row.want {
				t.Errorf("%s under\n%s\nis %q, want %q", row.ask, row.lines, got, row.want)
			}
		})
	}
}

func TestSandboxesAreOnlyNarrower(t *testing.T) {
	p := compiled(t, `
allow: [a.test, {host: b.test, methods: [GET, POST]}]
sandboxes:
  - {name: none, token_file: t, allow: []}
  - {name: some, token_file: t, allow: [a.test, c.test]}
  - {name: reads, token_file: t, allow: [{host: a.test, methods: [GET]}]}
  - {name: fewer, token_file: t, deny: [a.test]}
`, inspecting)
	rows := []struct{ sandbox, ask, want string }{
		{"unlisted", "a.test", "deny rule-deny by sandboxes"},
		{"none", "a.test", "deny default-deny by default"},
		{"some", "a.test", "allow by allow[0]"},
		{"some", "b.test", "deny default-deny by default"},
		{"some", "c.test", "deny default-deny by default"},
		{"reads", "a.test", "inspect by allow[0]"},
		{"reads", "https://a.test/", "allow by allow[0]"},
		{"reads", "POST https://a.test/", "deny method-denied by sandboxes[2].allow[0]"},
		{"fewer", "a.test", "deny rule-deny by sandboxes[3].deny[0]"},
		{"fewer", "b.test", "inspect by allow[1]"},
	}
	for _, row := range rows {
		r := asking(t, row.ask)
		r.Sandbox.Name = row.sandbox
		if got := saying(p.Decide(context.Background(), r)); got != row.want {
			t.Errorf("%s asks %s: %q, want %q", row.sandbox, row.ask, got, row.want)
		}
	}
}

func TestWithoutInspectionAConditionRefusesTheTunnel(t *testing.T) {
	p := compiled(t, "allow: [{host: a.test, methods: [GET], paths: [/r/**]}]", Environment{})
	d := p.Decide(context.Background(), asking(t, "a.test"))
	if d.Verdict != policy.Deny || d.Class != policy.MethodDenied {
		t.Errorf("a tunnel is %s", saying(d))
	}
	want := []string{"method is GET or HEAD and path matches /r/**"}
	if diff := cmp.Diff(want, d.AllowedIf); diff != "" {
		t.Error(diff)
	}
	if d := p.Decide(context.Background(), asking(t, "http://a.test/r/x")); d.Verdict != policy.Allow {
		t.Errorf("plain http is %s", saying(d))
	}
}

func TestWithoutInspectionEveryConditionRefusesTheTunnel(t *testing.T) {
	for _, lines := range []string{
		"default: allow\ndeny: [{host: a.test, methods: [POST]}]",
		"allow: [a.test]\ndeny: [{host: 93.184.0.0/16, methods: [POST]}]",
		"allow: [{host: a.test, inject: {header: X-Key, env: KEY}}]",
		"allow: [a.test]\nsandboxes: [{name: ci, token_file: t, deny: [{host: a.test, methods: [POST]}]}]",
	} {
		r := asking(t, "a.test => 93.184.216.34")
		if strings.Contains(lines, "ci") {
			r.Sandbox.Name = "ci"
		}
		d := compiled(t, lines, Environment{}).Decide(context.Background(), r)
		if d.Verdict != policy.Deny || d.Class != policy.MethodDenied {
			t.Errorf("%s: %s", lines, saying(d))
		}
		if d := compiled(t, lines, inspecting).Decide(context.Background(), r); d.Verdict != policy.Inspect {
			t.Errorf("%s with inspection: %s", lines, saying(d))
		}
	}
}

func TestAmbiguousPathsMatchEveryDenyAndNoAllow(t *testing.T) {
	reads := compiled(t, "allow: [{host: a.test, methods: [GET]}]", inspecting)
	under := compiled(t, "allow: [{host: a.test, paths: [/**]}]", inspecting)
	without := compiled(t, "allow: [a.test]\ndeny: [{host: a.test, paths: [/private]}]", inspecting)
	for _, path := range []string{
		"//", "/a//b", "/a/./b", "/a/../b", "/..", "/a/%2e%2e/b", "/%2E%2E", "/a%2fb", "/a%2Fb", "/a;b", "/a/;jsessionid=1", "/%3B", "/%5c", `/a\b`, "/%61", "/%c3%bc", "/%", "/%0a", "/\x01", "/ü",
	} {
		r := asking(t, "https://a.test/")
		r.HTTP.Path = path
		for _, row := range []struct {
			p    *policy.Policy
			want string
		}{{reads, "allow by allow[0]"}, {under, "deny path-denied by allow[0]"}, {without, "deny rule-deny by deny[0]"}} {
			if got := saying(row.p.Decide(context.Background(), r)); got != row.want {
				t.Errorf("%q: %q, want %q", path, got, row.want)
			}
		}
	}
}

func TestWhatWouldBeAllowedIsSaid(t *testing.T) {
	rows := []struct {
		lines, ask string
		want       []string
	}{
		{
			"allow: [{host: a.test, methods: [GET]}, {host: a.test, paths: [/up/*, /in/**]}]", "POST https://a.test/x",
			[]string{"method is GET or HEAD", "path matches /up/* or /in/**"},
		},
		{"allow: [a.test]\ndeny: [{host: a.test, methods: [DELETE]}]", "DELETE https://a.test/x", []string{"not (method is DELETE)"}},
		{"allow: [a.test]\ndeny: [{host: a.test, methods: [DELETE]}]", "a.test", []string{"not (method is DELETE)"}},
		{"default: allow\ndeny: [{host: a.test, paths: [/x]}]", "a.test", []string{"not (path matches /x)"}},
		{"deny: [{host: a.test, paths: [/x]}]", "https://a.test/x", nil},
		{"allow: [b.test]", "https://a.test/x", nil},
	}
	for _, row := range rows {
		p := compiled(t, row.lines, inspecting)
		d := p.Decide(context.Background(), asking(t, row.ask))
		if diff := cmp.Diff(row.want, d.AllowedIf); diff != "" {
			t.Errorf("%s under %s:\n%s", row.ask, row.lines, diff)
		}
	}
}

func TestReasons(t *testing.T) {
	rows := []struct{ lines, ask, want string }{
		{"allow: [{host: a.test, reason: our own}]", "a.test", "our own"},
		{"deny: [{host: a.test, reason: no}]", "a.test", "no"},
		{"deny: [a.test]", "a.test", "rule deny[0] denies a.test:443"},
		{"ask: [a.test]", "a.test", "rule ask[0] asks about a.test:443"},
		{"allow: [a.test]\ndeny: [93.184.0.0/16]", "a.test => 93.184.216.34", "rule deny[0] denies what a.test:443 resolves to"},
		{"allow: [{host: a.test, methods: [GET], id: read}]", "POST https://a.test/", "rule read does not allow POST at a.test:443; it allows: method is GET or HEAD"},
		{"allow: [{host: a.test, paths: [/x], id: read}]", "https://a.test/secret", "rule read does not allow this path at a.test:443; it allows: path matches /x"},
	}
	for _, row := range rows {
		p := compiled(t, row.lines, inspecting)
		if d := p.Decide(context.Background(), asking(t, row.ask)); d.Reason != row.want {
			t.Errorf("%s under %s: reason %q, want %q", row.ask, row.lines, d.Reason, row.want)
		}
	}
}

func TestAMethodOfTheSandboxesMakingStaysOutOfTheReason(t *testing.T) {
	p := compiled(t, "allow: [{host: a.test, methods: [GET]}]", Environment{})
	r := asking(t, "https://a.test/")
	r.HTTP.Method = strings.Repeat("EXFIL", 20)
	if d := p.Decide(context.Background(), r); strings.Contains(d.Reason, "EXFIL") || d.Verdict != policy.Deny {
		t.Errorf("%s: %s", saying(d), d.Reason)
	}
}

func TestOptionsReachTheDecision(t *testing.T) {
	rows := []struct {
		lines    string
		any, ech bool
	}{
		{"allow: [a.test]", false, false},
		{"allow: [{host: a.test, tls: any}]", true, false},
		{"allow: [{host: a.test, ech: allow}]", false, true},
		{"allow: [a.test]\ntls: {ech: allow}", false, true},
		{"default: allow\ntls: {ech: allow}", false, true},
		{"allow: [{host: a.test, tls: any}, a.test]", false, false},
		{"allow: ['a.test:443', {host: a.test, tls: any}]", false, false},
	}
	for _, row := range rows {
		d := compiled(t, row.lines, Environment{}).Decide(context.Background(), asking(t, "a.test"))
		if d.Verdict != policy.Allow || d.AnyProtocol != row.any || d.ECH != row.ech {
			t.Errorf("%s: %s, any %t, ech %t", row.lines, saying(d), d.AnyProtocol, d.ECH)
		}
	}
}

func TestAQuestionIsAnsweredWhereAnyPortIsOpen(t *testing.T) {
	rows := []struct{ lines, name, want string }{
		{"allow: ['a.test:8443']", "a.test", "allow by allow[0]"},
		{"allow: [{host: a.test, methods: [GET]}]", "a.test", "allow by allow[0]"},
		{"allow: [a.test]\ndeny: ['a.test:22']", "a.test", "allow by allow[0]"},
		{"allow: ['a.test:20-22']\ndeny: ['a.test:1-21']", "a.test", "allow by allow[0]"},
		{"deny: ['a.test:*']", "a.test", "deny rule-deny by deny[0]"},
		{"allow: [b.test]", "a.test", "deny default-deny by default"},
		{"allow: ['a.test:1-65535']", "a.test", "allow by allow[0]"},
	}
	for _, row := range rows {
		p := compiled(t, row.lines, Environment{})
		r := &policy.Request{Via: policy.ViaDNS, Destination: policy.Destination{Host: row.name}, DNS: &policy.DNSQuery{Name: row.name, Type: "A"}}
		if got := saying(p.Decide(context.Background(), r)); got != row.want {
			t.Errorf("%s under %s: %q, want %q", row.name, row.lines, got, row.want)
		}
	}
}

type voice policy.Decision

func (o voice) Evaluate(context.Context, *policy.Request) (policy.Decision, error) {
	return policy.Decision(o), nil
}

func TestAConditionalDenyHoldsAgainstAnotherEvaluatorsAllow(t *testing.T) {
	env := Environment{Inspection: true, Evaluators: []policy.Evaluator{voice{Verdict: policy.Allow, Rule: "rego"}}}
	p := compiled(t, "deny: [{host: a.test, methods: [POST]}]", env)
	rows := []struct{ ask, want string }{
		{"a.test", "inspect by rego"},
		{"POST https://a.test/", "deny rule-deny by deny[0]"},
		{"GET https://a.test/", "allow by rego"},
		{"b.test", "allow by rego"},
	}
	for _, row := range rows {
		if got := saying(p.Decide(context.Background(), asking(t, row.ask))); got != row.want {
			t.Errorf("%s: %q, want %q", row.ask, got, row.want)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, hosts := range []int{10, 1000, 100_000} {
		p := policyOfSize(b, hosts)
		for _, ask := range []string{"host7.example.test", "x.y.wild7.test", "93.184.7.1", "other.test"} {
			r := asking(b, ask)
			r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
			b.Run(fmt.Sprintf("%d/%s", hosts, ask), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					p.Decide(context.Background(), r)
				}
			})
		}
	}
}

// policyOfSize compiles a file in pieces: a big list does not fit into one text.
func policyOfSize(t testing.TB, hosts int) *policy.Policy {
	t.Helper()
	f, err := Parse("egressd.yaml", []byte("version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range hosts {
		text := fmt.Sprintf("host%d.example.test", i)
		switch i % 10 {
		case 8:
			text = fmt.Sprintf("*.wild%d.test", i-1)
		case 9:
			text = fmt.Sprintf("93.%d.%d.0/24", 184+i>>16, i>>8&255)
		}
		pattern, err := policy.ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		f.Allow = append(f.Allow, policy.Rule{Pattern: pattern, ID: fmt.Sprintf("allow[%d]", i)})
	}
	p, err := f.Compile(Environment{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAnAllowedNameIsDecidedWithoutGarbage(t *testing.T) {
	p := policyOfSize(t, 1000)
	r := asking(t, "host7.example.test")
	allocations := testing.AllocsPerRun(100, func() { p.Decide(context.Background(), r) })
	if allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
}
