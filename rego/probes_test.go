package rego_test

import (
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

// TestANameIsAskedForWhereRegoAndListsLeaveAPort has rules in both speak of ports.
func TestANameIsAskedForWhereRegoAndListsLeaveAPort(t *testing.T) {
	for _, row := range []struct {
		name, lines, text, data string
		want                    policy.Verdict
	}{
		{"a list at one port, and a deny of it", "allow: ['a.test:22']", `deny contains {"rule": "d"} if input.destination.port == 22`, "", policy.Deny},
		{"a deny of all that a list leaves", "allow: [a.test]", `deny contains {"rule": "d"} if input.destination.port < 1024`, "", policy.Deny},
		{"a deny of one of its ports", "allow: [a.test]", `deny contains {"rule": "d"} if input.destination.port == 443`, "", policy.Allow},
		{"an allow at a port of its own", "deny: ['a.test:443']", `allow contains {"rule": "a"} if input.destination.port == 8443`, "", policy.Allow},
		{"an allow above a port", "", `allow contains {"rule": "a"} if input.destination.port > 8443`, "", policy.Allow},
		{"an allow at ports of the data", "", `allow contains {"rule": "a"} if input.destination.port in data.ports`, `{"ports": [8443]}`, policy.Allow},
		{"an allow that the lists deny", "deny: ['a.test:8443']", `allow contains {"rule": "a"} if input.destination.port == 8443`, "", policy.Deny},
		{"an allow that depends on the request", "", `allow contains {"rule": "a"} if { input.destination.port == 8443; input.http.method == "GET" }`, "", policy.Allow},
		{"a deny that depends on the request", "allow: [a.test]", `deny contains {"rule": "d"} if input.http.method == "POST"`, "", policy.Allow},
	} {
		var data []rego.Source
		if row.data != "" {
			data = append(data, rego.Source{Name: "data.json", Text: []byte(row.data)})
		}
		f, err := file.Parse("f", []byte("version: 1\n"+row.lines+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Compile(file.Environment{Inspection: true, Evaluators: []policy.Evaluator{load(t, "package egress\n"+row.text+"\n", data...)}})
		if err != nil {
			t.Fatal(err)
		}
		r := policy.Request{Via: policy.ViaDNS, Destination: policy.Destination{Host: "a.test"}, DNS: &policy.DNSQuery{Name: "a.test", Type: "A"}}
		if d := p.Decide(t.Context(), &r); d.Verdict != row.want {
			t.Errorf("%s: %v by %s: %s", row.name, d.Verdict, d.Rule, d.Reason)
		}
	}
}
