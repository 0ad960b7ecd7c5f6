package rego_test

import (
	"slices"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestANarrowRuleSaysWhatItWanted: a request that no rule allows is told which rule came near.
func TestANarrowRuleSaysWhatItWanted(t *testing.T) {
	const narrow = `package egress
allow contains {"rule": "read-a"} if {
	input.destination.host == "a.test"
	input.http.method == "GET"
	startswith(input.http.path, "/v1/")
}
`
	way := []string{"method is GET and path is below /v1/"}
	for _, row := range []struct {
		host, method, path string
		class              policy.Class
		rule               string
		ways               []string
	}{
		{"a.test:443", "POST", "/v1/x", policy.MethodDenied, "read-a", way},
		{"a.test:443", "GET", "/v2/x", policy.PathDenied, "read-a", way},
		{"b.test:443", "GET", "/v1/x", policy.DefaultDeny, "default", nil},
	} {
		r := sends(t, row.host, row.method, row.path)
		d := policy.New(load(t, narrow)).Decide(t.Context(), &r)
		if d.Verdict != policy.Deny || d.Class != row.class || d.Rule != row.rule || !slices.Equal(d.AllowedIf, row.ways) {
			t.Errorf("%s %s%s: %+v", row.method, row.host, row.path, d)
		}
		with := policy.New(load(t, narrow), load(t, "package egress\nallow contains {\"rule\": \"all\"} if input.stage != \"dns\"\n"))
		if d := with.Decide(t.Context(), &r); d.Verdict != policy.Allow || d.AllowedIf != nil || d.Missed != nil {
			t.Errorf("beside a rule that allows all: %s %s%s: %+v", row.method, row.host, row.path, d)
		}
	}
}
