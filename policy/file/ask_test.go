package file

import (
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestAnApprovalLiftsOneRule: what is approved counts as a rule that allows; what else denies or
// asks does so still.
func TestAnApprovalLiftsOneRule(t *testing.T) {
	const one, two = "Q1", "Q2"
	for _, row := range []struct {
		says, lines, request string
		approved             []policy.Approval
		verdict              policy.Verdict
		rule, question       string
	}{
		{"nothing", `ask: [{host: a.test, id: x}]`, "https://a.test/", nil, policy.Ask, "x", ""},
		{"the rule", `ask: [{host: a.test, id: x}]`, "a.test:443", []policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Allow, "x", one},
		{"another rule", `ask: [{host: a.test, id: x}]`, "a.test:443", []policy.Approval{{Layer: policy.User, Rule: "y", Question: one}}, policy.Ask, "x", ""},
		{"another layer's", `ask: [{host: a.test, id: x}]`, "a.test:443", []policy.Approval{{Layer: policy.Organisation, Rule: "x", Question: one}}, policy.Ask, "x", ""},
		{"a rule that denies", `deny: [{host: a.test, id: x}]`, "a.test:443", []policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Deny, "x", ""},
		{"and another rule is about the address", `ask: [{host: a.test, id: x}, {host: "93.184.0.0/16", id: y}]`, "a.test:443 => 93.184.216.34",
			[]policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Ask, "y", ""},
		{"both", `ask: [{host: a.test, id: x}, {host: "93.184.0.0/16", id: y}]`, "a.test:443 => 93.184.216.34",
			[]policy.Approval{{Layer: policy.User, Rule: "x", Question: one}, {Layer: policy.User, Rule: "y", Question: two}}, policy.Allow, "x", one + " " + two},
		{"and the address is private", `ask: [{host: a.test, id: x}]`, "a.test:443 => 10.0.0.1", []policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Deny, "baseline", ""},
		{"and some requests are denied", "ask: [{host: a.test, id: x}]\ndeny: [{host: a.test, methods: [POST], id: y}]", "a.test:443",
			[]policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Inspect, "x", one},
		{"beside an allow of other ports", "ask: [{host: \"a.test:443\", id: x}]\nallow: [{host: \"a.test:*\", methods: [GET], id: y}]", "a.test:443",
			[]policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Allow, "x", one},
		{"a request that is denied", "ask: [{host: a.test, id: x}]\ndeny: [{host: a.test, methods: [POST], id: y}]", "POST https://a.test/",
			[]policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Deny, "y", ""},
		{"one of two kinds of requests", "ask: [{host: a.test, methods: [POST], id: x}, {host: a.test, methods: [PUT], id: y}]\nallow: [a.test]", "PUT https://a.test/",
			[]policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Ask, "y", ""},
		{"the other one", "ask: [{host: a.test, methods: [POST], id: x}, {host: a.test, methods: [PUT], id: y}]\nallow: [a.test]", "POST https://a.test/",
			[]policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Allow, "x", one},
		{"what no ceiling has room for", "ask: [{host: a.test, id: x}]\nceiling: [b.test]", "a.test:443", []policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Deny, "ceiling", ""},
		{"what a ceiling has room for", "ask: [{host: a.test, id: x}]\nceiling: [a.test]", "a.test:443", []policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Allow, "x", one},
		{"a WebSocket by a rule about requests", "ask: [{host: a.test, methods: [GET], id: x}]\nallow: [a.test]", "GET https://a.test/", []policy.Approval{{Layer: policy.User, Rule: "x", Question: one}}, policy.Deny, "baseline", ""},
	} {
		t.Run(row.says, func(t *testing.T) {
			p := compiled(t, row.lines, inspecting)
			r := asking(t, row.request)
			if r.HTTP != nil && row.request[:4] == "GET " {
				r.HTTP.Upgrade = true
			}
			r.Approved = row.approved
			d := p.Decide(t.Context(), r)
			if d.Verdict != row.verdict || d.Rule != row.rule && row.rule != "baseline" || d.Question != row.question {
				t.Errorf("%v by %s, question %q: %s", d.Verdict, d.Rule, d.Question, d.Reason)
			}
		})
	}
}

// TestAnAskAboutSomeRequestsNeedsAnAllowForTheOthers compiles files in which a person would never be asked over TLS.
func TestAnAskAboutSomeRequestsNeedsAnAllowForTheOthers(t *testing.T) {
	for lines, refused := range map[string]bool{
		"ask: [{host: a.test, methods: [POST]}]":                                          true,
		"ask: [{host: \"*.a.test\", paths: [\"/up/**\"]}]":                                true,
		"ask: [{host: a.test, methods: [POST]}]\nallow: [a.test]":                         false,
		"ask: [{host: a.test, methods: [POST]}]\nallow: [{host: a.test, methods: [GET]}]": false,
		"ask: [{host: a.test, methods: [POST]}]\npresets: [npm]":                          true,
		"ask: [{host: registry.npmjs.org, methods: [PUT]}]\npresets: [npm]":               false,
		"ask: [{host: a.test, methods: [POST]}]\ndefault: allow":                          false,
		"ask: [a.test]": false,
		"ask: [{host: \"a.test:80\", methods: [POST]}]":                                        false,
		"ask: [{host: a.test, methods: [POST]}, {host: a.test, methods: [PUT]}, \"*.a.test\"]": true,
	} {
		f, err := Parse("f", []byte("version: 1\n"+lines+"\n"))
		if err != nil {
			t.Fatalf("%s: %v", lines, err)
		}
		p, err := f.Compile(inspecting)
		if err != nil {
			t.Fatalf("%s: %v", lines, err)
		}
		if problems := f.Unasked(p); (len(problems) > 0) != refused {
			t.Errorf("%s: %v", lines, problems)
		}
	}
}
