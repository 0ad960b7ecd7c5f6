package rego_test

import (
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestAnApprovalLiftsOneAsk: others of the policy stand, and what was decided without it is not
// taken for an answer with it.
func TestAnApprovalLiftsOneAsk(t *testing.T) {
	e := load(t, `package egress

ask contains {"rule": "a", "tls": "any"}

ask contains {"rule": "b"} if input.destination.port == 8443

ask contains {"rule": "post"} if input.http.method == "POST"

deny contains {"rule": "d"} if input.destination.port == 22
`)
	approved := func(rules ...string) (all []policy.Approval) {
		for _, rule := range rules {
			all = append(all, policy.Approval{Layer: policy.Organisation, Rule: rule, Question: "Q" + rule})
		}
		return all
	}
	for range 2 { // from the cache, too
		for _, row := range []struct {
			says, method string
			port         uint16
			approved     []policy.Approval
			verdict      policy.Verdict
			rule, ids    string
		}{
			{"nothing", "GET", 443, nil, policy.Ask, "a", ""},
			{"the one", "GET", 443, approved("a"), policy.Allow, "a", "Qa"},
			{"another", "GET", 443, approved("b"), policy.Ask, "a", ""},
			{"the first of two", "GET", 8443, approved("a"), policy.Ask, "b", "Qa"},
			{"both", "GET", 8443, approved("a", "b"), policy.Allow, "a", "Qa Qb"},
			{"and it is denied", "GET", 22, approved("a"), policy.Deny, "d", "Qa"},
			{"and the request is asked about", "POST", 443, approved("a"), policy.Ask, "post", "Qa"},
			{"before the request is known", "", 443, approved("a"), policy.Inspect, "a", "Qa"},
		} {
			r := &policy.Request{Via: policy.ViaConnect, Destination: policy.Destination{Host: "a.test", Port: row.port}, Approved: row.approved}
			if row.method != "" {
				r.HTTP = &policy.HTTPRequest{Method: row.method, Path: "/", BodySize: -1}
			}
			d, err := e.Evaluate(t.Context(), r)
			if err != nil || d.Verdict != row.verdict || d.Rule != row.rule || d.Question != row.ids || d.AnyProtocol {
				t.Errorf("%s: %v by %s, question %q, tls any %t, %v", row.says, d.Verdict, d.Rule, d.Question, d.AnyProtocol, err)
			}
		}
	}
	d, err := e.Evaluate(t.Context(), &policy.Request{
		Via: policy.ViaConnect, Destination: policy.Destination{Host: "a.test", Port: 443},
		HTTP:     &policy.HTTPRequest{Method: "GET", Path: "/", BodySize: -1},
		Approved: []policy.Approval{{Layer: policy.User, Rule: "a", Question: "Q"}},
	})
	if err != nil || d.Verdict != policy.Ask {
		t.Errorf("another layer's: %v, %v", d.Verdict, err)
	}
}
