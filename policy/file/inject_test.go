package file

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/google/go-cmp/cmp"
)

func TestInjections(t *testing.T) {
	f, err := Parse("f", []byte(`version: 1
allow:
  - a.test
  - host: api.test:443
    id: key
    inject: {header: Authorization, value: "Bearer {}", file: /run/key, placeholder: EXAMPLE_TOKEN, refresh: 30m}
  - {host: 93.184.216.34, inject: {header: Cookie, value: "s={}; x", env: KEY_1}}
  - {host: cmd.test, methods: [GET], inject: {header: x-key, command: [pass, show, key]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	p := mustPatterns(t, "api.test:443", "93.184.216.34", "cmd.test")
	want := []policy.Injection{
		{Rule: "key", Pattern: p[0], Inject: policy.Inject{Header: "Authorization", Value: "Bearer {}", File: "/run/key", Placeholder: "EXAMPLE_TOKEN", Refresh: 30 * time.Minute}},
		{Rule: "allow[2]", Pattern: p[1], Inject: policy.Inject{Header: "Cookie", Value: "s={}; x", Env: "KEY_1"}},
		{Rule: "allow[3]", Pattern: p[2], Inject: policy.Inject{Header: "x-key", Value: "{}", Command: []string{"pass", "show", "key"}}},
	}
	if diff := cmp.Diff(want, f.Injections(), cmp.Comparer(func(a, b policy.Pattern) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if _, err := f.Compile(inspecting); err != nil {
		t.Error(err)
	}
}

func TestACredentialIsInspectedAndNamed(t *testing.T) {
	const in = "inject: {header: X-Key, env: KEY}"
	rows := []struct{ name, lines, ask, want string }{
		{"a tunnel of a rule with a credential alone", "allow: [{host: a.test, " + in + "}]", "a.test", "inspect by allow[0] needs credential"},
		{"a tunnel of a rule with paths too", "allow: [{host: a.test, paths: [/v1], " + in + "}]", "a.test", "inspect by allow[0] needs path credential"},
		{"a tunnel where every request is allowed", "allow: [a.test, {host: a.test, paths: [/v1], " + in + "}]", "a.test", "inspect by allow[1] needs path credential"},
		{"a tunnel of a rule that ties", "allow: [a.test, {host: a.test, " + in + "}]", "a.test", "inspect by allow[1] needs credential"},
		{"a tunnel at another port", "allow: ['a.test:8443', {host: a.test, " + in + "}]", "a.test:8443", "allow by allow[0]"},
		{"a tunnel that a more specific rule allows", "allow: [a.test, {host: 'a.test:*', " + in + "}]", "a.test", "allow by allow[0]"},
		{"a denied tunnel", "allow: [{host: a.test, " + in + "}]\ndeny: ['a.test:443']", "a.test", "deny rule-deny by deny[0]"},
		{"a tunnel under default allow", "default: allow\nallow: [{host: a.test, " + in + "}]", "a.test", "inspect by allow[0] needs credential"},

		{"a request of the rule", "allow: [{host: a.test, id: key, " + in + "}]", "POST https://a.test/x", "allow by key with key"},
		{"a request under its path", "allow: [{host: a.test, paths: [/v1/**], id: key, " + in + "}, a.test]", "https://a.test/v1/x", "allow by key with key"},
		{"a request beside its path", "allow: [{host: a.test, paths: [/v1/**], id: key, " + in + "}, a.test]", "https://a.test/v2", "allow by allow[1]"},
		{"a request that could be read in two ways", "allow: [{host: a.test, paths: [/v1/**], id: key, " + in + "}, a.test]", "https://a.test/v1/../v2", "allow by allow[1]"},
		{"a request that another rule lets too", "allow: [{host: a.test, methods: [GET]}, {host: a.test, paths: [/v1], id: key, " + in + "}]", "https://a.test/v1", "allow by key with key"},
		{"a request that is denied", "allow: [{host: a.test, id: key, " + in + "}]\ndeny: [{host: a.test, methods: [POST]}]", "POST https://a.test/", "deny rule-deny by deny[0]"},
		{"a request under default allow", "default: allow\nallow: [{host: a.test, paths: [/v1], id: key, " + in + "}]", "https://a.test/v1", "allow by key with key"},
		{"a request to another host", "allow: [{host: a.test, id: key, " + in + "}, b.test]", "https://b.test/", "allow by allow[1]"},
		{"a request in clear", "allow: [{host: a.test, id: key, " + in + "}]", "http://a.test/", "allow by key"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			d := compiled(t, row.lines, inspecting).Decide(context.Background(), asking(t, row.ask))
			got := saying(d)
			if d.Verdict == policy.Inspect {
				got += " needs" + needsText(d.Needs)
			}
			if d.Inject != "" {
				got += " with " + d.Inject
			}
			if got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

func needsText(n policy.Needs) (text string) {
	for bit, word := range []string{" method", " path", " headers", " credential"} {
		if n&(1<<bit) != 0 {
			text += word
		}
	}
	return text
}

func TestNoCredentialInATunnelThatCarriesPlainHTTP(t *testing.T) {
	p := compiled(t, "allow: [{host: a.test, id: key, inject: {header: X-Key, env: KEY}}]", inspecting)
	r := asking(t, "https://a.test:80/")
	r.Protocol = policy.ProtocolHTTP
	if d := p.Decide(context.Background(), r); d.Verdict != policy.Allow || d.Inject != "" {
		t.Errorf("in clear: %s with %q", saying(d), d.Inject)
	}
	r.TLS = &policy.ClientHello{ServerName: "a.test", Inspected: true}
	if d := p.Decide(context.Background(), r); d.Verdict != policy.Allow || d.Inject != "key" {
		t.Errorf("inside TLS: %s with %q", saying(d), d.Inject)
	}
}

func TestATunnelOfWhichAllIsAllowedSaysNoCondition(t *testing.T) {
	p := compiled(t, "allow: [a.test, {host: a.test, paths: [/v1], inject: {header: X-Key, env: KEY}}]", inspecting)
	d := p.Decide(context.Background(), asking(t, "a.test"))
	if d.AllowedIf != nil || d.Reason != "a rule adds a credential or a field to requests to a.test:443" {
		t.Errorf("%q if %q", d.Reason, d.AllowedIf)
	}
}

var badInjections = []struct{ name, rule, want string }{
	{"text", "inject: x", `allow[0].inject is text; write a mapping`},
	{"an unknown key", "inject: {header: A, env: K, heder: B}", `allow[0].inject has no key "heder"; did you mean "header"?`},
	{"no header", "inject: {env: KEY}", `f:2:32: allow[0].inject has no header; add "header: Authorization"`},
	{"no secret", "inject: {header: A}", `allow[0].inject has no secret; add file, env or command`},
	{"two secrets", "inject: {header: A, env: K, file: f}", `allow[0].inject has file and env; keep one`},
	{"three secrets", "inject: {header: A, env: K, file: f, command: [c]}", `has file and env and command; keep one`},
	{"a header that is no name", "inject: {header: 'A B', env: K}", `allow[0].inject.header is no name of a header field; write one like Authorization`},
	{"a header with a colon in front", "inject: {header: ':path', env: K}", `is no name of a header field`},
	{"a header with a line in it", `inject: {header: "A\r\nB", env: K}`, `is no name of a header field`},
	{"Host", "inject: {header: host, env: K}", `f:2:41: allow[0].inject.header cannot be host, which says how the request is sent; write one like Authorization`},
	{"a length", "inject: {header: Content-Length, env: K}", `cannot be Content-Length`},
	{"a coding", "inject: {header: Transfer-Encoding, env: K}", `cannot be Transfer-Encoding`},
	{"a connection", "inject: {header: Connection, env: K}", `cannot be Connection`},
	{"TE", "inject: {header: TE, env: K}", `cannot be TE`},
	{"a trailer", "inject: {header: Trailer, env: K}", `cannot be Trailer`},
	{"an upgrade", "inject: {header: Upgrade, env: K}", `cannot be Upgrade`},
	{"an expectation", "inject: {header: Expect, env: K}", `cannot be Expect`},
	{"a via", "inject: {header: Via, env: K}", `cannot be Via`},
	{"a forwarding", "inject: {header: Forwarded, env: K}", `cannot be Forwarded`},
	{"another forwarding", "inject: {header: X-Forwarded-For, env: K}", `cannot be X-Forwarded-For`},
	{"a proxy's own", "inject: {header: Proxy-Authorization, env: K}", `cannot be Proxy-Authorization`},
	{"a WebSocket's own", "inject: {header: Sec-WebSocket-Key, env: K}", `cannot be Sec-WebSocket-Key`},
	{"a value without a place", "inject: {header: A, env: K, value: Bearer}", `f:2:59: allow[0].inject.value does not have {} once, where the secret stands; write "{}" or "Bearer {}"`},
	{"a value with two places", "inject: {header: A, env: K, value: '{}:{}'}", `does not have {} once`},
	{"a value with a line in it", `inject: {header: A, env: K, value: "{}\r\nB: c"}`, `has more than printable ASCII`},
	{"a value with spaces around it", "inject: {header: A, env: K, value: ' {}'}", `spaces around it`},
	{"a value that is not ASCII", "inject: {header: A, env: K, value: 'ü{}'}", `has more than printable ASCII`},
	{"a variable with its dollar", "inject: {header: A, env: $KEY}", `allow[0].inject.env is no name of a variable; write it without $`},
	{"a variable that begins with a digit", "inject: {header: A, env: 1KEY}", `is no name of a variable`},
	{"an empty command", "inject: {header: A, command: []}", `allow[0].inject.command is empty`},
	{"a command as one text", "inject: {header: A, command: pass show key}", `allow[0].inject.command is text; write a list`},
	{"a command in a relative folder", "inject: {header: A, command: [./key.sh]}", `allow[0].inject.command: "./key.sh" is a relative path; write it from / on, or the name alone`},
	{"a command with a NUL", `inject: {header: A, command: [c, "a\0b"]}`, `has a NUL`},
	{"a short placeholder", "inject: {header: A, env: K, placeholder: short}", `allow[0].inject.placeholder is not 8 to 128 printable ASCII characters`},
	{"a long placeholder", "inject: {header: A, env: K, placeholder: " + strings.Repeat("x", 129) + "}", `is not 8 to 128`},
	{"a placeholder with a space", "inject: {header: A, env: K, placeholder: 'TOKEN GOES HERE'}", `without spaces`},
	{"a placeholder in the value", "inject: {header: A, env: K, value: 'token-x {}', placeholder: token-x-}", ""},
	{"a placeholder that is in the value", "inject: {header: A, env: K, value: 'my-token-x {}', placeholder: my-token}", `has a placeholder that stands in its header or value; choose another`},
	{"a placeholder that is in the header", "inject: {header: X-My-Token, env: K, placeholder: X-My-Token}", `has a placeholder that stands in its header or value`},
	{"a refresh that is too short", "inject: {header: A, env: K, refresh: 999ms}", `f:2:61: allow[0].inject.refresh cannot be 999ms; write at least 1s`},
	{"a refresh of nothing", "inject: {header: A, env: K, refresh: 0s}", `allow[0].inject.refresh cannot be "0s"`},
	{"tls: any beside it", "tls: any, inject: {header: A, env: K}", `allow[0] has inject, which needs requests that can be seen, and tls or ech, which let pass what cannot be; remove one`},
	{"ech: allow beside it", "ech: allow, inject: {header: A, env: K}", `remove one`},
}

func TestBadInjections(t *testing.T) {
	for _, row := range badInjections {
		t.Run(row.name, func(t *testing.T) {
			_, err := Parse("f", []byte("version: 1\nallow: [{host: a.test, "+row.rule+"}]"))
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("the error is\n%v\nand does not hold\n%s", err, row.want)
			}
		})
	}
}

func TestACredentialBelongsToOneHostOfTheFilesOwnAllow(t *testing.T) {
	const in = "inject: {header: A, env: K}"
	rows := []struct{ name, lines, want string }{
		{"a host", "allow: [{" + in + ", host: a.test}]", ""},
		{"a host with any port", "allow: [{host: 'a.test:*', " + in + "}]", ""},
		{"an address", "allow: [{host: 93.184.216.34, " + in + "}]", ""},
		{"a wildcard", "allow: [{" + in + ", host: '*.a.test'}]", `f:2:9: allow[0]: a credential goes to one host, and *.a.test is more; write a rule for each host that is to get it`},
		{"any host", "allow: [{host: '*', " + in + "}]", `a credential goes to one host, and * is more`},
		{"a prefix", "allow: [{host: 93.184.216.0/24, " + in + "}]", `a credential goes to one host, and 93.184.216.0/24 is more`},
		{"port 80 alone", "allow: [{host: 'a.test:80', " + in + "}]", `allow[0]: a credential never goes over plain http, and a.test:80 is port 80 alone; write a.test:443`},
		{"a deny", "deny: [{host: a.test, " + in + "}]", `f:2:31: deny[0].inject stands only in rules of the file's own list allow; write it there, and leave it out here`},
		{"an ask", "ask: [{host: a.test, " + in + "}]", `ask[0].inject stands only in`},
		{"unsafe_allow", "unsafe_allow: [{host: 127.0.0.1, " + in + "}]", `unsafe_allow[0].inject stands only in`},
		{"a sandbox's list", "sandboxes: [{name: a, token_file: t, allow: [{host: a.test, " + in + "}]}]", `sandboxes[0].allow[0].inject stands only in`},
	}
	for _, row := range rows {
		_, err := Parse("f", []byte("version: 1\n"+row.lines))
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: got %v, want %s", row.name, err, row.want)
		}
	}
}

func TestTheVariableOfACredentialsFileHasToBeSet(t *testing.T) {
	f, err := Parse("f", []byte("version: 1\nallow: [a.test, {host: b.test, id: key, inject: {header: A, file: '${SECRETS}/k'}}]"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Expand(func(string) (string, bool) { return "", false })
	want := "f:2:67: allow[1].inject.file: the variable SECRETS is not set"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
