package rego_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// patient is a deadline for tests that are not about deadlines.
const patient = time.Minute

func load(t testing.TB, text string, data ...rego.Source) *rego.Evaluator {
	t.Helper()
	e, err := rego.Load(append(data, rego.Source{Name: "egress.rego", Text: []byte(text)}), rego.Options{Layer: policy.Organisation, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// loadAsIs loads a policy that fails, as load does.
func loadAsIs(t testing.TB, text string, data ...rego.Source) *rego.Evaluator {
	t.Helper()
	e, err := rego.LoadAsIs(append(data, rego.Source{Name: "egress.rego", Text: []byte(text)}), rego.Options{Layer: policy.Organisation, Deadline: patient})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// to is a request as it is first known.
func to(t testing.TB, hostport string) policy.Request {
	t.Helper()
	d, err := policy.ParseDestination(hostport)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Request{Sandbox: policy.Sandbox{Name: "ci"}, Via: policy.ViaConnect, Destination: d, Usage: &policy.Usage{}, Time: time.Unix(1_795_000_000, 0)}
}

// sends is a request of which everything is known.
func sends(t testing.TB, hostport, method, path string) policy.Request {
	t.Helper()
	r := to(t, hostport)
	r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	r.Protocol = policy.ProtocolTLS
	r.TLS = &policy.ClientHello{ServerName: r.Destination.Host, ALPN: []string{"h2"}}
	r.HTTP = &policy.HTTPRequest{Method: method, Path: path, BodySize: -1}
	return r
}

func asks(t testing.TB, name string) policy.Request {
	t.Helper()
	r := to(t, name+":443")
	r.Via, r.Destination.Port, r.DNS = policy.ViaDNS, 0, &policy.DNSQuery{Name: name, Type: "A"}
	return r
}

func evaluate(t testing.TB, e *rego.Evaluator, r policy.Request) policy.Decision {
	t.Helper()
	d, err := e.Evaluate(context.Background(), &r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const gitHub = `package egress

allow contains {"rule": "model-api"} if host.matches(input.destination.host, "api.anthropic.com")

allow contains {"rule": "gh-read", "reason": "read our repositories"} if {
	host.matches(input.destination.host, "api.github.com")
	input.http.method in {"GET", "HEAD"}
	path.matches(input.http.path, "/repos/acme/**")
}

deny contains {"rule": "no-gist"} if host.matches(input.destination.host, "*.gist.github.com")

ask contains {"rule": "new-port"} if input.destination.port == 8443
`

func TestDecisions(t *testing.T) {
	e := load(t, gitHub)
	for _, row := range []struct {
		name    string
		request policy.Request
		verdict policy.Verdict
		rule    string
	}{
		{"an allowed host", to(t, "api.anthropic.com:443"), policy.Allow, "model-api"},
		{"another host is no opinion", to(t, "evil.test:443"), policy.Abstain, ""},
		{"a host that only ends like it", to(t, "xapi.anthropic.com:443"), policy.Abstain, ""},
		{"a host below it", to(t, "x.api.anthropic.com:443"), policy.Abstain, ""},
		{"a denied suffix", to(t, "a.gist.github.com:443"), policy.Deny, "no-gist"},
		{"deny beats ask", to(t, "a.gist.github.com:8443"), policy.Deny, "no-gist"},
		{"ask beats allow", to(t, "api.anthropic.com:8443"), policy.Ask, "new-port"},
		{"what depends on the request", to(t, "api.github.com:443"), policy.Inspect, "gh-read"},
		{"a request that fits", sends(t, "api.github.com:443", "GET", "/repos/acme/x"), policy.Allow, "gh-read"},
		{"another method", sends(t, "api.github.com:443", "POST", "/repos/acme/x"), policy.Abstain, ""},
		{"another path", sends(t, "api.github.com:443", "GET", "/repos/acmeevil/x"), policy.Abstain, ""},
		{"a path with two readings", sends(t, "api.github.com:443", "GET", "/repos/acme/../../user"), policy.Deny, "egress"},
		{"a name that may be reached", asks(t, "api.anthropic.com"), policy.Allow, "model-api"},
		{"a name that some requests may reach", asks(t, "api.github.com"), policy.Allow, "gh-read"},
		{"a name that is denied", asks(t, "a.gist.github.com"), policy.Deny, "no-gist"},
		{"a name that nothing is said about", asks(t, "evil.test"), policy.Abstain, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := evaluate(t, e, row.request)
			if d.Verdict != row.verdict || d.Rule != row.rule {
				t.Errorf("%v by %q, want %v by %q (%s)", d.Verdict, d.Rule, row.verdict, row.rule, d.Reason)
			}
			if again := evaluate(t, e, row.request); again.Verdict != d.Verdict || again.Reason != d.Reason || !slices.Equal(again.AllowedIf, d.AllowedIf) {
				t.Errorf("asked again, it says %+v after %+v", again, d)
			}
			if d.Verdict < policy.Abstain && d.Layer != policy.Organisation {
				t.Errorf("layer %q", d.Layer)
			}
		})
	}
}

func TestADecisionSaysWhatItNeeds(t *testing.T) {
	for _, row := range []struct {
		name, text string
		verdict    policy.Verdict
		needs      policy.Needs
		allowedIf  []string
	}{
		{
			"a method and a path",
			`allow contains {"rule": "r"} if { input.http.method in {"GET", "HEAD"}; startswith(input.http.path, "/repos/acme/") }`,
			policy.Inspect, policy.NeedsMethod | policy.NeedsPath,
			[]string{"method is GET or HEAD and path is below /repos/acme/"},
		},
		{
			"a comparison from the other side",
			`allow contains {"rule": "r"} if { "GET" == input.http.method; 10 >= input.http.body_size }`,
			policy.Inspect, policy.NeedsMethod | policy.NeedsHeaders,
			[]string{"body size is at most 10 and method is GET"},
		},
		{
			"a pattern of the library",
			`allow contains {"rule": "r"} if path.matches(input.http.path, "/a/**")`,
			policy.Inspect, policy.NeedsPath,
			[]string{"path matches /a/**"},
		},
		{
			"a deny beside an allow that has no condition",
			`allow contains {"rule": "r"} if input.destination.port == 443
			 deny contains {"rule": "up"} if input.http.method == "POST"`,
			policy.Inspect, policy.NeedsMethod,
			[]string{"not (method is POST)"},
		},
		{
			"an ask beside an allow",
			`allow contains {"rule": "r"} if input.destination.port == 443
			 ask contains {"rule": "big"} if input.http.body_size > 1048576`,
			policy.Inspect, policy.NeedsHeaders,
			[]string{"not (body size is more than 1048576)"},
		},
		{
			"negation of what is to come",
			`allow contains {"rule": "r"} if not input.http.method == "POST"`,
			policy.Inspect, policy.NeedsMethod,
			[]string{"not (method is POST)"},
		},
		{
			"the request through a variable",
			`allow contains {"rule": "r"} if { x := input.http; x.method == "GET" }`,
			policy.Inspect, policy.NeedsMethod,
			[]string{"method is GET"},
		},
		{
			"the whole input through a variable",
			`allow contains {"rule": "r"} if { x := input; x.http.method == "GET" }`,
			policy.Inspect, policy.NeedsMethod,
			[]string{"method is GET"},
		},
		{
			"a helper rule with a default",
			`default reads := false
			 reads if input.http.method == "GET"
			 allow contains {"rule": "r"} if reads`,
			policy.Inspect, policy.NeedsMethod, nil,
		},
		{
			"the negation of a helper",
			`writes if input.http.method == "PUT"
			 writes if input.http.method == "POST"
			 allow contains {"rule": "r"} if not writes`,
			policy.Inspect, policy.NeedsMethod,
			[]string{"not (method is POST) and not (method is PUT)"},
		},
		{
			"a header",
			`allow contains {"rule": "r"} if input.http.headers.accept[_] == "text/html"`,
			policy.Inspect, policy.NeedsHeaders,
			[]string{"header accept is text/html"},
		},
		{
			"a reason that quotes the request",
			`allow contains {"rule": "r", "reason": sprintf("%s is fine", [input.http.path])} if input.destination.port == 443`,
			policy.Inspect, policy.NeedsPath, nil,
		},
		{
			"a condition that no request can change",
			`allow contains {"rule": "r"} if { input.destination.port == 80; input.http.method == "GET" }`,
			policy.Abstain, 0, nil,
		},
		{
			"only a deny",
			`deny contains {"rule": "r"} if input.http.method == "POST"`,
			policy.Abstain, policy.NeedsMethod,
			[]string{"not (method is POST)"},
		},
		{
			"allowed whatever follows",
			`allow contains {"rule": "a"} if input.destination.port == 443
			 allow contains {"rule": "b"} if input.http.method == "GET"`,
			policy.Allow, 0, nil,
		},
		{
			"denied now",
			`allow contains {"rule": "a"} if input.http.method == "GET"
			 deny contains {"rule": "b"} if input.destination.port == 443`,
			policy.Deny, 0, nil,
		},
		{
			"addresses are known later",
			`allow contains {"rule": "a"} if input.destination.address_class == "public"`,
			policy.Allow, 0, nil,
		},
		{
			"a deny by addresses does not hold before they are known",
			`allow contains {"rule": "a"} if input.destination.port == 443
			 deny contains {"rule": "b"} if not input.destination.address_class == "public"`,
			policy.Allow, 0, nil,
		},
		{
			"addresses and a method",
			`allow contains {"rule": "a"} if { input.destination.address_class == "public"; input.http.method == "GET" }`,
			policy.Inspect, policy.NeedsMethod, nil,
		},
		{
			"a credential",
			`allow contains {"rule": "a", "inject": "token"} if input.destination.port == 443`,
			policy.Inspect, policy.NeedsCredential, nil,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := evaluate(t, load(t, "package egress\n"+row.text), to(t, "api.github.com:443"))
			if d.Verdict != row.verdict || d.Needs != row.needs {
				t.Errorf("%v needing %b, want %v needing %b (%q)", d.Verdict, d.Needs, row.verdict, row.needs, d.AllowedIf)
			}
			if row.allowedIf != nil && !slices.Equal(d.AllowedIf, row.allowedIf) {
				t.Errorf("allowed if %q, want %q", d.AllowedIf, row.allowedIf)
			}
			if d.Verdict == policy.Inspect && d.Needs != policy.NeedsCredential && len(d.AllowedIf) == 0 && row.allowedIf != nil {
				t.Error("it does not say what would be allowed")
			}
		})
	}
}

// TestPartsThatComeLater says for each stage what is unknown and what is absent.
func TestPartsThatComeLater(t *testing.T) {
	resolved := func(r policy.Request, addrs ...string) policy.Request {
		r.Destination.Addrs = nil
		for _, a := range addrs {
			r.Destination.Addrs = append(r.Destination.Addrs, netip.MustParseAddr(a))
		}
		return r
	}
	opaque := to(t, "a.test:22")
	opaque.Protocol = policy.ProtocolOpaque
	plain := sends(t, "a.test:80", "GET", "/")
	plain.Via, plain.TLS, plain.Protocol = policy.ViaHTTP, nil, policy.ProtocolHTTP
	hello := to(t, "a.test:443")
	hello.Protocol, hello.TLS = policy.ProtocolTLS, &policy.ClientHello{ServerName: "a.test"}
	public := `input.destination.address_class == "public"`
	for _, row := range []struct {
		name, condition string
		request         policy.Request
		want            policy.Verdict
	}{
		{"no address yet", public, to(t, "a.test:443"), policy.Allow},
		{"no address yet, and no port", public, asks(t, "a.test"), policy.Allow},
		{"a request without an address yet", public, resolved(plain), policy.Allow},
		{"public addresses", public, resolved(to(t, "a.test:443"), "8.8.8.8", "2606:2800::1"), policy.Allow},
		{"one that is not", public, resolved(to(t, "a.test:443"), "8.8.8.8", "10.0.0.1"), policy.Abstain},
		{"an answer that is not", public, resolved(asks(t, "a.test"), "8.8.8.8", "10.0.0.1"), policy.Abstain},
		{"a request with one that is not", public, resolved(plain, "::ffff:10.0.0.1"), policy.Abstain},
		{"an address that was asked for", public, to(t, "10.0.0.1:443"), policy.Abstain},
		{"no hello yet", `input.tls.sni == "a.test"`, to(t, "a.test:443"), policy.Allow},
		{"another hello", `input.tls.sni == "b.test"`, hello, policy.Abstain},
		{"no hello at all", `input.tls.sni == "a.test"`, opaque, policy.Abstain},
		{"no hello in plain HTTP", `input.tls.sni == "a.test"`, plain, policy.Abstain},
		{"any port", `input.destination.port == 22`, asks(t, "a.test"), policy.Allow},
		{"any way in", `input.via == "connect"`, asks(t, "a.test"), policy.Allow},
		{"the type of a question", `input.dns.type == "A"`, asks(t, "a.test"), policy.Allow},
		{"another type of question", `input.dns.type == "TXT"`, asks(t, "a.test"), policy.Abstain},
		{"the stage", `input.stage == "name"`, to(t, "a.test:443"), policy.Inspect},
		{"the version", `input.version == 1`, to(t, "a.test:443"), policy.Allow},
		{"what is absent is not empty", `input.http.query == ""`, plain, policy.Abstain},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := load(t, "package egress\nallow contains {\"rule\": \"r\"} if "+row.condition)
			if d := evaluate(t, e, row.request); d.Verdict != row.want {
				t.Errorf("%v, want %v", d.Verdict, row.want)
			}
		})
	}
}

// TestANameMayBeResolvedThatSomeRequestsMayReach has denials that hold for some
// requests only: none of them is about the name.
func TestANameMayBeResolvedThatSomeRequestsMayReach(t *testing.T) {
	e := load(t, `package egress
allow contains {"rule": "a"} if input.destination.port == 443
deny contains {"rule": "up"} if input.http.method == "POST"
deny contains {"rule": "plain"} if input.destination.port == 80
ask contains {"rule": "big"} if input.http.body_size > 10
`)
	if d := evaluate(t, e, asks(t, "a.test")); d.Verdict != policy.Allow || d.Needs != 0 {
		t.Errorf("%+v", d)
	}
}

func TestOptions(t *testing.T) {
	e := load(t, `package egress
allow contains {"rule": "any"} if input.destination.port < 1024
allow contains {"rule": "ech", "ech": "allow", "log": true} if input.destination.host == "ech.test"
allow contains {"rule": "raw", "tls": "any", "ech": "refuse"} if input.destination.host == "raw.test"
allow contains {"rule": "ws", "upgrade": "websocket"} if { input.destination.host == "ws.test"; input.http.method == "GET" }
allow contains {"rule": "key", "inject": "token"} if { input.destination.host == "key.test"; input.http.path == "/v1" }
`)
	clear := sends(t, "key.test:80", "GET", "/v1")
	clear.Via, clear.TLS, clear.Protocol = policy.ViaHTTP, nil, policy.ProtocolHTTP
	for _, row := range []struct {
		request policy.Request
		want    policy.Decision
	}{
		{to(t, "a.test:443"), policy.Decision{Rule: "any"}},
		{to(t, "ech.test:443"), policy.Decision{Rule: "any", ECH: true}},
		{to(t, "raw.test:443"), policy.Decision{Rule: "any", AnyProtocol: true}},
		{sends(t, "ws.test:443", "GET", "/"), policy.Decision{Rule: "any", Upgrade: true}},
		{sends(t, "ws.test:443", "POST", "/"), policy.Decision{Rule: "any"}},
		{sends(t, "key.test:443", "GET", "/v1"), policy.Decision{Rule: "any", Inject: "token"}},
		{sends(t, "key.test:443", "GET", "/v2"), policy.Decision{Rule: "any"}},
		{clear, policy.Decision{Rule: "any"}},
	} {
		d := evaluate(t, e, row.request)
		if d.Rule != row.want.Rule || d.ECH != row.want.ECH || d.AnyProtocol != row.want.AnyProtocol || d.Upgrade != row.want.Upgrade || d.Inject != row.want.Inject {
			t.Errorf("%s: %+v", row.request.Destination, d)
		}
	}
	for _, hostport := range []string{"key.test:443", "key.test:8443"} {
		if d := evaluate(t, e, to(t, hostport)); d.Verdict != policy.Inspect || d.Needs != policy.NeedsPath|policy.NeedsCredential {
			t.Errorf("a credential for some requests: %+v", d)
		}
	}
}
