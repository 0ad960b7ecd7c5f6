package rego

import (
	"fmt"
	"slices"
	"testing"
)

func TestRulesAreFoundWhereTheyAreWritten(t *testing.T) {
	found := Rules([]Source{
		{Name: "b.rego", Text: []byte(`package egress

deny contains {"rule": "no-upload", "reason": "ticket"} if {
	input.http.method == "POST"
}

allow contains r if {
	host.matches(input.destination.host, "a.test")
	r := {"rule": "bound"}
}

allow contains r if some r in data.list

ask contains {"rule": sprintf("%s", [input.destination.host])}

other contains {"rule": "nobody"}

helper := "deny"
`)},
		{Name: "a.rego", Text: []byte("package egress.ci\n\nallow contains {\"rule\": \"ci\"} if true\n")},
		{Name: "a_test.rego", Text: []byte("package egress\n\nallow contains {\"rule\": \"of-a-test\"}\n")},
		{Name: "lib.rego", Text: []byte("package lib\n\nallow contains {\"rule\": \"elsewhere\"}\n")},
		{Name: "broken.rego", Text: []byte("package egress\nallow contains {")},
		{Name: "data.json", Text: []byte("{}")},
	})
	var got []string
	for _, r := range found {
		got = append(got, fmt.Sprintf("%s %s %s %s", r.Effect, r.Name, r.Package, r.Place))
	}
	want := []string{
		`allow ci egress.ci a.rego:3:1: allow contains {"rule": "ci"} if true`,
		`deny no-upload egress b.rego:3:1: deny contains {"rule": "no-upload", "reason": "ticket"} if {`,
		`allow bound egress b.rego:7:1: allow contains r if {`,
		`allow  egress b.rego:12:1: allow contains r if some r in data.list`,
		`ask  egress b.rego:14:1: ask contains {"rule": sprintf("%s", [input.destination.host])}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q", got)
	}
}
