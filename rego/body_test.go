package rego_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestABodyIsAskedForWhereItDecides: the verdict needs it, or does not. A body that nobody can read is denied where it decides.
func TestABodyIsAskedForWhereItDecides(t *testing.T) {
	const allowing = `package egress
allow contains {"rule": "small"} if { input.http.method == "POST"; input.http.body.model == "small" }
allow contains {"rule": "get"} if input.http.method == "GET"`
	const denying = `package egress
allow contains {"rule": "all"} if input.destination.port == 443
deny contains {"rule": "big"} if { input.http.method == "POST"; input.http.body.model == "big" }`
	const json = "application/json"
	for _, row := range []struct {
		says, method, kind, body string // body "": none; "?": not read
		allowing, denying        policy.Verdict
	}{
		{"unread", "POST", json, "?", policy.Inspect, policy.Inspect},
		{"unread, of another method", "GET", json, "?", policy.Allow, policy.Allow},
		{"none", "POST", "", "", policy.Abstain, policy.Allow},
		{"small", "POST", json, `{"model":"small"}`, policy.Allow, policy.Allow},
		{"big", "POST", json, `{"model":"big"}`, policy.Abstain, policy.Deny},
		{"twice", "POST", json, `{"model":"small","model":"big"}`, policy.Deny, policy.Deny},
		{"a form", "POST", "application/x-www-form-urlencoded", `model=big`, policy.Deny, policy.Deny},
		{"a form, of another method", "GET", "application/x-www-form-urlencoded", `model=big`, policy.Allow, policy.Allow},
	} {
		r := &policy.Request{
			Via: policy.ViaConnect, Protocol: policy.ProtocolTLS, TLS: &policy.ClientHello{ServerName: "a.test"},
			Destination: policy.Destination{Host: "a.test", Port: 443, Addrs: []netip.Addr{netip.MustParseAddr("93.184.216.34")}},
		}
		r.HTTP = &policy.HTTPRequest{Method: row.method, Path: "/", Header: map[string][]string{"content-type": {row.kind}}, BodySize: int64(len(row.body))}
		if row.body != "?" && row.body != "" {
			r.HTTP.Body = &policy.Body{Bytes: []byte(row.body), Content: []byte(row.body), Ended: true}
		}
		for text, want := range map[string]policy.Verdict{allowing: row.allowing, denying: row.denying} {
			d, err := load(t, text).Evaluate(context.Background(), r)
			if err != nil || d.Verdict != want || d.Verdict == policy.Inspect && d.Needs != policy.NeedsBody {
				t.Errorf("%s: %s, needs %b, %v; want %s of\n%s", row.says, d.Verdict, d.Needs, err, want, text)
			}
		}
	}
}
