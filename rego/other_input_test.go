package rego_test

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

const envoyPolicy = `package envoy.authz

import input.attributes.request.http as http_request

default allow := false

allow if {
	http_request.method == "GET"
	http_request.host == "api.test"
	http_request.path == "/v1/items?page=2"
	http_request.headers["x-team"] == "blue,red"
}`

// TestAPolicyOfEnvoyIsAskedFromPackageEgress has the adapter of the page in front of a policy for OPA's plugin for Envoy.
func TestAPolicyOfEnvoyIsAskedFromPackageEgress(t *testing.T) {
	adapter := testfiles.Block(t, "how-to/rego-recipes.md", "rego", "## Policies for Envoy")
	e, err := rego.Load([]rego.Source{{Name: "adapter.rego", Text: []byte(adapter)}, {Name: "authz.rego", Text: []byte(envoyPolicy)}}, rego.Options{Layer: policy.Organisation})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name string
		edit func(*policy.Request)
		want policy.Verdict
	}{
		{"what it allows", func(*policy.Request) {}, policy.Allow},
		{"what it allows, before the host is resolved", func(r *policy.Request) { r.Destination.Addrs = nil }, policy.Allow},
		{"another method", func(r *policy.Request) { r.HTTP.Method = "POST" }, policy.Deny},
		{"another host", func(r *policy.Request) { r.Destination.Host = "b.test" }, policy.Deny},
		{"another port", func(r *policy.Request) { r.Destination.Port = 8443 }, policy.Deny},
		{"another path", func(r *policy.Request) { r.HTTP.Path = "/v2/items" }, policy.Deny},
		{"another query", func(r *policy.Request) { r.HTTP.Query = "page=3" }, policy.Deny},
		{"no query", func(r *policy.Request) { r.HTTP.Query = "" }, policy.Deny},
		{"another header", func(r *policy.Request) { r.HTTP.Header["x-team"] = []string{"blue"} }, policy.Deny},
		{"no header", func(r *policy.Request) { r.HTTP.Header = nil }, policy.Deny},
		{"a tunnel", func(r *policy.Request) { r.HTTP, r.TLS = nil, nil }, policy.Inspect},
	} {
		for range 2 { // from the cache as well
			r := sends(t, "api.test:443", "GET", "/v1/items")
			r.HTTP.Query, r.HTTP.Header = "page=2", map[string][]string{"x-team": {"blue", "red"}}
			row.edit(&r)
			if d := evaluate(t, e, r); d.Verdict != row.want {
				t.Errorf("%s: %v, %s", row.name, d.Verdict, d.Reason)
			}
		}
	}
}

// TestAnotherInputIsThatOfThePackageThatIsAsked has mistakes beside a package that is asked with an input of its own.
func TestAnotherInputIsThatOfThePackageThatIsAsked(t *testing.T) {
	const asks = "package egress\nallow contains {\"rule\": \"a\"} if data.envoy.authz.allow with input as {\"attributes\": {\"request\": {\"http\": {\"method\": input.http.method}}}}\n"
	for name, row := range map[string]struct {
		egress, other, want string
	}{
		"nothing":                        {asks, "", ""},
		"a field that is none":           {asks + "deny contains {\"rule\": \"d\"} if input.http.methd == \"PUT\"\n", "", "input.http.methd"},
		"the other field in egress":      {asks + "deny contains {\"rule\": \"d\"} if input.attributes.request\n", "", "input.attributes"},
		"a field in a third package":     {asks, "package lib\nreads if input.http.methd == \"GET\"\n", "input.http.methd"},
		"a set of nobody":                {asks, "package lib\nallow contains {\"rule\": \"a\"}\n", "nobody asks"},
		"the package that nobody asks":   {"package egress\nallow contains {\"rule\": \"a\"} if input.http.method == \"GET\"\n", "", "nobody asks"},
		"one part of the input replaced": {"package egress\nallow contains {\"rule\": \"a\"} if data.envoy.authz.allow with input.http.method as \"GET\"\n", "", "nobody asks"},
	} {
		sources := []rego.Source{{Name: "egress.rego", Text: []byte(row.egress)}, {Name: "authz.rego", Text: []byte(envoyPolicy)}}
		if row.other != "" {
			sources = append(sources, rego.Source{Name: "lib.rego", Text: []byte(row.other)})
		}
		_, err := rego.Load(sources, rego.Options{})
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// TestATestReadsNoOtherInput: the schema holds in a package that only a test asks with an input of its own.
func TestATestReadsNoOtherInput(t *testing.T) {
	sources := []rego.Source{
		{Name: "egress.rego", Text: []byte("package egress\nallow contains {\"rule\": \"a\"} if data.lib.reads\n")},
		{Name: "lib.rego", Text: []byte("package lib\nreads if input.http.methd == \"GET\"\n")},
		{Name: "lib_test.rego", Text: []byte("package lib\ntest_reads if data.lib.reads with input as {\"http\": {\"methd\": \"GET\"}}\n")},
	}
	if err := (rego.Options{}).CheckTests(sources); err == nil || !strings.Contains(err.Error(), "input.http.methd") {
		t.Errorf("said %v", err)
	}
}
