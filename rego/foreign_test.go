package rego_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

func loadFor(t *testing.T, input, text string) (*rego.Evaluator, error) {
	t.Helper()
	return rego.Load([]rego.Source{{Name: "authz.rego", Text: []byte(text)}}, rego.Options{Input: input, Layer: policy.Organisation})
}

func mustLoadFor(t *testing.T, input, text string) *rego.Evaluator {
	t.Helper()
	e, err := loadFor(t, input, text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// request is a GET of a path with a query, with headers.
func request(t *testing.T, hostport, method, target string) policy.Request {
	t.Helper()
	path, query, _ := strings.Cut(target, "?")
	r := sends(t, hostport, method, path)
	r.HTTP.Query = query
	r.HTTP.Header = map[string][]string{"X-Team": {"blue", "red"}, "Authorization": {"Bearer x"}}
	r.Sandbox.Name = "ci"
	r.Time = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("151.101.1.69")}
	return r
}

// TestEnvoyPolicies has policies as they are written for OPA's plugin for Envoy, in
// both syntaxes, and what they say of GET https://api.test/v1/items/7?page=2.
func TestEnvoyPolicies(t *testing.T) {
	for _, row := range []struct {
		name, text string
		want       policy.Verdict
		reason     string
	}{
		{"a boolean", `package envoy.authz
			default allow := false
			allow if { input.attributes.request.http.method == "GET"; input.attributes.request.http.host == "api.test" }`, policy.Allow, ""},
		{"the older syntax", `package envoy.authz
			import input.attributes.request.http as http_request
			default allow = false
			allow { http_request.method == "GET"; glob.match("/v1/**", ["/"], http_request.path) }`, policy.Allow, ""},
		{"the package of a mesh", `package istio.authz
			import input.attributes.request.http as http_request
			import input.parsed_path
			default allow := false
			allow if { parsed_path[0] == "v1"; http_request.method == "GET" }`, policy.Allow, ""},
		{"the path has the query", `package envoy.authz
			allow if input.attributes.request.http.path == "/v1/items/7?page=2"`, policy.Allow, ""},
		{"path and query taken apart", `package envoy.authz
			allow if { input.parsed_path == ["v1", "items", "7"]; input.parsed_query.page == ["2"] }`, policy.Allow, ""},
		{"headers", `package envoy.authz
			allow if { h := input.attributes.request.http.headers; h["x-team"] == "blue,red"; h[":authority"] == "api.test"; h[":path"] == "/v1/items/7?page=2"; h[":method"] == "GET"; h[":scheme"] == "https" }`, policy.Allow, ""},
		{"the rest", `package envoy.authz
			allow if {
				input.attributes.source.principal == "ci"
				input.attributes.destination.address.socketAddress.portValue == 443
				input.attributes.request.time == "2026-11-20T09:00:00Z"
				input.attributes.request.http.scheme == "https"
				input.attributes.request.http.size == "-1"
				input.version.ext_authz == "v3"
			}`, policy.Allow, ""},
		{"an object", `package envoy.authz
			allow := {"allowed": true, "http_status": 200, "dynamic_metadata": {"x": 1}, "response_headers_to_add": {"x": "y"}, "request_headers_to_remove": []}`, policy.Allow, ""},
		{"an object that denies", `package envoy.authz
			allow := {"allowed": false, "http_status": 403, "body": "no uploads", "headers": {"x": "y"}}`, policy.Deny, "no uploads"},
		{"false", "package envoy.authz\ndefault allow := false\nallow if input.attributes.request.http.method == \"POST\"", policy.Deny, "rule envoy.authz.allow does not allow this"},
		{"undefined", "package envoy.authz\nallow if input.attributes.request.http.method == \"POST\"", policy.Deny, "rule envoy.authz.allow does not allow this"},
		{"each address", `package envoy.authz
			allow if net.cidr_contains("0.0.0.0/0", input.attributes.destination.address.socketAddress.address)`, policy.Allow, ""},
		{"not each address", `package envoy.authz
			allow if net.cidr_contains("93.184.216.0/24", input.attributes.destination.address.socketAddress.address)`, policy.Deny, "rule envoy.authz.allow does not allow this"},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := mustLoadFor(t, "envoy", row.text)
			for range 2 { // from the cache as well
				d := evaluate(t, e, request(t, "api.test:443", "GET", "/v1/items/7?page=2"))
				if d.Verdict != row.want || row.reason != "" && d.Reason != row.reason {
					t.Errorf("%v, %q", d.Verdict, d.Reason)
				}
				if d.Verdict == policy.Deny && d.Class != policy.RuleDeny {
					t.Errorf("class %s", d.Class)
				}
			}
		})
	}
}

// TestAuthBridgePolicies has the same for AuthBridge.
func TestAuthBridgePolicies(t *testing.T) {
	for _, row := range []struct {
		name, text string
		want       policy.Verdict
		reason     string
	}{
		{"a rule", "package authbridge.outbound\nrequest if { input.direction == \"outbound\"; input.method == \"GET\"; input.host == \"api.test\"; input.path == \"/v1/items/7\" }", policy.Allow, ""},
		{"a package", "package authbridge.outbound.request\ndefault allow := false\nallow if { input.headers[\"x-team\"] == \"blue,red\"; input.agent.client_id == \"ci\" }", policy.Allow, ""},
		{"a package with a reason", "package authbridge.outbound.request\ndefault allow := false\nreason := \"not on this host\" if not allow\nallow if input.host == \"b.test\"", policy.Deny, "not on this host"},
		{"undefined", "package authbridge.outbound\nrequest if input.method == \"PUT\"", policy.Deny, "rule authbridge.outbound.request does not allow this"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := evaluate(t, mustLoadFor(t, "authbridge", row.text), request(t, "api.test:443", "GET", "/v1/items/7?page=2"))
			if d.Verdict != row.want || row.reason != "" && d.Reason != row.reason {
				t.Errorf("%v, %q", d.Verdict, d.Reason)
			}
		})
	}
}

// TestForeignPoliciesFailClosed has what is an error, and so a denial.
func TestForeignPoliciesFailClosed(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"another shape", "package envoy.authz\nallow := \"yes\"", "true, false, or an object"},
		{"an object without the key", "package envoy.authz\nallow := {\"allow\": true}", "without \"allowed\""},
		{"an object with another value", "package envoy.authz\nallow := {\"allowed\": \"true\"}", "true, false"},
		{"a set", "package envoy.authz\nallow contains true", "true, false"},
		{"headers to add", "package envoy.authz\nallow := {\"allowed\": true, \"headers\": {\"x\": \"y\"}}", "changes the request"},
		{"headers to remove", "package envoy.authz\nallow := {\"allowed\": true, \"request_headers_to_remove\": [\"x-key\"]}", "changes the request"},
		{"a query to change", "package envoy.authz\nallow := {\"allowed\": true, \"query_parameters_to_remove\": [\"key\"]}", "changes the request"},
		{"a conflict", "package envoy.authz\nallow if input.parsed_path[0] == \"v1\"\nallow := false if input.attributes.request.http.method == \"GET\"", "conflict"},
		{"a failing built-in under not", "package envoy.authz\nallow if not net.cidr_contains(\"10.0.0.0/8\", input.attributes.request.http.host)", ""},
		{"a bomb", "package envoy.authz\nallow if { count(numbers.range(1, 1000000000)) > 0; input.parsed_path }", "numbers.range"},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := mustLoadFor(t, "envoy", row.text)
			if err := fails(t, e, request(t, "api.test:443", "GET", "/v1/items/7")); !strings.Contains(err.Error(), row.want) {
				t.Errorf("said %q, want %q", err, row.want)
			}
		})
	}
	t.Run("an address that is not known", func(t *testing.T) {
		e := mustLoadFor(t, "envoy", "package envoy.authz\nallow if not input.attributes.destination.address.socketAddress.address == \"10.0.0.1\"")
		r := request(t, "api.test:443", "GET", "/")
		r.Destination.Addrs = nil
		fails(t, e, r)
	})
	t.Run("a query that is none", func(t *testing.T) {
		e := mustLoadFor(t, "envoy", "package envoy.authz\nallow if not input.parsed_query.admin")
		fails(t, e, request(t, "api.test:443", "GET", "/?admin=%zz"))
	})
	t.Run("a query that is none and is not read", func(t *testing.T) {
		e := mustLoadFor(t, "envoy", "package envoy.authz\nallow if input.parsed_path[0] == \"v1\"")
		if d := evaluate(t, e, request(t, "api.test:443", "GET", "/v1?admin=%zz")); d.Verdict != policy.Allow {
			t.Errorf("%v: %s", d.Verdict, d.Reason)
		}
	})
}

// TestForeignPoliciesWaitForTheRequest has the stages before, a question of DNS, and a
// path that can be read in two ways.
func TestForeignPoliciesWaitForTheRequest(t *testing.T) {
	e := mustLoadFor(t, "envoy", "package envoy.authz\nallow := true")
	if !e.LooksAtRequests() {
		t.Error("it does not look at requests")
	}
	if d := evaluate(t, e, to(t, "api.test:443")); d.Verdict != policy.Inspect || d.Needs == 0 {
		t.Errorf("the name: %v needing %b", d.Verdict, d.Needs)
	}
	question := to(t, "api.test:443")
	question.DNS = &policy.DNSQuery{Name: "api.test", Type: "A"}
	if d := evaluate(t, e, question); d.Verdict != policy.Abstain {
		t.Errorf("a question of DNS: %v", d.Verdict)
	}
	if d := evaluate(t, e, request(t, "api.test:443", "GET", "/a/../b")); d.Verdict != policy.Deny || d.Class != policy.PathDenied {
		t.Errorf("a path with dots: %v, %s", d.Verdict, d.Class)
	}
}

// TestForeignPoliciesAreCheckedWhenLoaded has what would be undefined here, and under
// not an allow.
func TestForeignPoliciesAreCheckedWhenLoaded(t *testing.T) {
	for _, row := range []struct{ name, input, text, want string }{
		{"a body", "envoy", "package envoy.authz\nallow if not input.parsed_body.admin", "parsed_body"},
		{"the client's address", "envoy", "package envoy.authz\nallow if not input.attributes.source.address.socketAddress.address == \"10.0.0.1\"", "undefined ref"},
		{"a credential", "envoy", "package envoy.authz\nallow if not input.attributes.request.http.headers.authorization", "authorization"},
		{"a credential by a variable", "envoy", "package envoy.authz\nallow if { h := input.attributes.request.http.headers; not h.Cookie }", "Cookie"},
		{"a body by object.get", "envoy", "package envoy.authz\nallow if not object.get(input, [\"parsed_body\", \"admin\"], false)", "parsed_body"},
		{"a body in a function", "envoy", "package envoy.authz\nallow if not admin(input)\nadmin(i) if i.parsed_body.admin", "parsed_body"},
		{"a body by its name", "envoy", "package envoy.authz\nallow if { key := \"parsed_body\"; not input[key].admin }", "parsed_body"},
		{"what a route says, by a loop", "envoy", "package envoy.authz\nallow if not off\noff if { some k, _ in input.attributes; k == \"contextExtensions\" }", "contextExtensions"},
		{"the client's address by object.get", "envoy", "package envoy.authz\nallow if not object.get(input.attributes, [\"source\", \"address\"], false)", "input.attributes.source.address"},
		{"a part by object.get", "authbridge", "package authbridge.outbound\nrequest if object.get(input, \"identity\", \"\") == \"\"", "input.identity"},
		{"an identity", "authbridge", "package authbridge.outbound\nrequest if not input.identity.subject == \"x\"", "identity"},
		{"another package", "envoy", "package app\nallow := true", "envoy.authz.allow"},
		{"egressd's sets", "envoy", "package egress\nallow contains {\"rule\": \"r\"}", "envoy.authz.allow"},
		{"what reaches outside", "envoy", "package envoy.authz\nallow if http.send({\"method\": \"get\", \"url\": \"http://x.test\"}).status_code == 200", "http.send"},
		{"data that is not there", "envoy", "package envoy.authz\nallow if not data.blocked[input.attributes.request.http.host]", "data.blocked"},
		{"no such input", "kong", "package envoy.authz\nallow := true", "no input"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := loadFor(t, row.input, row.text); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("said %v, want %q", err, row.want)
			}
		})
	}
}

// TestForeignPoliciesMayAskForWhatIsThere has object.get of parts that exist, and of
// headers, which may.
func TestForeignPoliciesMayAskForWhatIsThere(t *testing.T) {
	for _, text := range []string{
		`object.get(input.attributes.request.http.headers, "x-admin", "") == ""`,
		`object.get(input, ["attributes", "request", "http", "headers", "x-admin"], "") == ""`,
		`object.get(input, ["parsed_query", "page"], [])[0] == "2"`,
		`object.get(input.attributes.request, "http", {}).method == "GET"`,
		`{ key := "parsed_path"; object.get(input, key, [])[0] == "v1" }`,
	} {
		e := mustLoadFor(t, "envoy", "package envoy.authz\nallow if "+text)
		r := request(t, "api.test:443", "GET", "/v1/items/7?page=2")
		if d, err := e.Evaluate(t.Context(), &r); err != nil || d.Verdict != policy.Allow {
			t.Errorf("%s: %v, %v", text, d.Verdict, err)
		}
	}
}

// TestForeignVerdictsAreKeptApart asks for requests that differ in one thing that the
// policy looks at.
func TestForeignVerdictsAreKeptApart(t *testing.T) {
	e := mustLoadFor(t, "envoy", `package envoy.authz
allow if { input.attributes.request.http.method == "GET"; input.parsed_path[0] == "v1"; input.attributes.request.http.host == "api.test"; input.attributes.source.principal == "ci" }`)
	for range 2 {
		for _, row := range []struct {
			hostport, method, path, sandbox string
			want                            policy.Verdict
		}{
			{"api.test:443", "GET", "/v1", "ci", policy.Allow},
			{"api.test:443", "POST", "/v1", "ci", policy.Deny},
			{"api.test:443", "GET", "/v2", "ci", policy.Deny},
			{"b.test:443", "GET", "/v1", "ci", policy.Deny},
			{"api.test:8443", "GET", "/v1", "ci", policy.Deny},
			{"api.test:443", "GET", "/v1", "web", policy.Deny},
		} {
			r := request(t, row.hostport, row.method, row.path)
			r.Sandbox.Name = row.sandbox
			if d := evaluate(t, e, r); d.Verdict != row.want {
				t.Errorf("%+v: %v", row, d.Verdict)
			}
		}
	}
}

// TestForeignTests runs the tests of a policy that was written for Envoy.
func TestForeignTests(t *testing.T) {
	sources := []rego.Source{
		{Name: "authz.rego", Text: []byte("package envoy.authz\ndefault allow = false\nallow { input.attributes.request.http.method == \"GET\" }")},
		{Name: "authz_test.rego", Text: []byte("package envoy.authz\ntest_get { allow with input as {\"attributes\": {\"request\": {\"http\": {\"method\": \"GET\"}}}} }")},
	}
	run, err := rego.Options{Input: "envoy"}.Test(context.Background(), sources)
	if err != nil || len(run.Results) != 1 || run.Results[0].Outcome != rego.Pass {
		t.Errorf("%+v, %v", run, err)
	}
	if err := (rego.Options{Input: "envoy"}).CheckTests(sources); err != nil {
		t.Error(err)
	}
}
