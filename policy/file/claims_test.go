package file

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestClaimsHaveToAgree(t *testing.T) {
	hello := func(name string) *policy.ClientHello { return &policy.ClientHello{ServerName: name} }
	ech := &policy.ClientHello{ServerName: "a.test", ECH: true}
	inspected := &policy.ClientHello{ServerName: "a.test", ECH: true, Inspected: true}
	request := func(authority string) *policy.HTTPRequest {
		return &policy.HTTPRequest{Method: "GET", Path: "/", Authority: authority}
	}
	const whole, reads = "allow: [a.test, 'a.test:22', 93.184.216.34]", "allow: [{host: a.test, methods: [GET]}, {host: 'a.test:22', methods: [GET]}]"
	rows := []struct {
		name, lines, ask string
		protocol         policy.Protocol
		tls              *policy.ClientHello
		http             *policy.HTTPRequest
		want             string
	}{
		{"the server name is the host", whole, "a.test", policy.ProtocolTLS, hello("a.test"), nil, "allow by allow[0]"},
		{"the server name is another", whole, "a.test", policy.ProtocolTLS, hello("b.test"), nil, "deny name-mismatch by baseline"},
		{"the server name is another in a tunnel to inspect", reads, "a.test", policy.ProtocolTLS, hello("b.test"), nil, "deny name-mismatch by baseline"},
		{"there is no server name", whole, "a.test", policy.ProtocolTLS, hello(""), nil, "deny no-server-name by baseline"},
		{"an address needs no server name", whole, "93.184.216.34", policy.ProtocolTLS, hello(""), nil, "allow by allow[2]"},
		{"a hello is not well-formed", reads, "a.test", policy.ProtocolTLS, nil, nil, "deny not-tls by baseline"},

		{"ECH in an opaque tunnel", whole, "a.test", policy.ProtocolTLS, ech, nil, "deny ech-refused by baseline"},
		{"ECH in a tunnel to inspect", reads, "a.test", policy.ProtocolTLS, ech, nil, "inspect by allow[0]"},
		{"ECH in a tunnel that is inspected, and could be opaque by now", whole, "a.test", policy.ProtocolTLS, inspected, nil, "allow by allow[0]"},
		{"ECH around a request that is inspected", reads, "a.test", policy.ProtocolTLS, inspected, request("a.test:443"), "allow by allow[0]"},

		{"neither TLS nor HTTP on 443", whole, "a.test", policy.ProtocolOpaque, nil, nil, "deny not-tls by baseline"},
		{"neither TLS nor HTTP on 22", whole, "a.test:22", policy.ProtocolOpaque, nil, nil, "allow by allow[1]"},
		{"neither TLS nor HTTP on 22, where requests are looked at", reads, "a.test:22", policy.ProtocolOpaque, nil, nil, "deny not-tls by baseline"},
		{"nothing yet on 22, where requests are looked at", reads, "a.test:22", policy.ProtocolUnseen, nil, nil, "inspect by allow[1]"},
		{"any protocol, but some requests are denied", "allow: [{host: a.test, tls: any}]\ndeny: [{host: a.test, methods: [POST]}]", "a.test", policy.ProtocolOpaque, nil, nil, "deny not-tls by baseline"},

		{"a request that names its server", reads, "https://a.test/", policy.ProtocolHTTP, hello("a.test"), request("a.test:443"), "allow by allow[0]"},
		{"a request whose server is settled", reads, "https://a.test/", policy.ProtocolHTTP, hello("a.test"), request(""), "allow by allow[0]"},
		{"a request that names another server", reads, "https://a.test/", policy.ProtocolHTTP, hello("a.test"), request("evil.test:443"), "deny name-mismatch by baseline"},
		{"a request that names another port", reads, "https://a.test/", policy.ProtocolHTTP, hello("a.test"), request("a.test:8443"), "deny name-mismatch by baseline"},
		{"a request that names its server without a port", reads, "https://a.test/", policy.ProtocolHTTP, hello("a.test"), request("a.test"), "deny name-mismatch by baseline"},
		{"a request that names no host", reads, "https://a.test/", policy.ProtocolHTTP, hello("a.test"), request("%"), "deny name-mismatch by baseline"},
		{"a request in clear that names another server", whole, "http://a.test/", policy.ProtocolHTTP, nil, request("evil.test:80"), "deny name-mismatch by baseline"},
		{"a denied request stays denied by its rule", "deny: [a.test]", "https://a.test/", policy.ProtocolHTTP, hello("a.test"), request("evil.test:443"), "deny rule-deny by deny[0]"},
		{"a request that sends secrets back", whole, "https://a.test/", policy.ProtocolHTTP, hello("a.test"), &policy.HTTPRequest{Method: "TRACE", Path: "/"}, "deny method-denied by baseline"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			r := asking(t, row.ask)
			r.Protocol, r.TLS, r.HTTP = row.protocol, row.tls, row.http
			d := compiled(t, row.lines, inspecting).Decide(context.Background(), r)
			if got := saying(d); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
			if strings.Contains(d.Reason, "evil") || strings.Contains(d.Reason, "%") {
				t.Errorf("the reason quotes what the sandbox sent: %s", d.Reason)
			}
		})
	}
}

func TestAnAskDoesNotHideThatRequestsAreLookedAt(t *testing.T) {
	p := policy.Assemble(policy.Parts{Inspection: true, Evaluators: []policy.Evaluator{
		answering(policy.Decision{Verdict: policy.Inspect, Needs: policy.NeedsMethod}), answering(policy.Decision{Verdict: policy.Ask, Rule: "held"}),
	}})
	r := asking(t, "a.test:22")
	r.Protocol = policy.ProtocolOpaque
	if d := p.Decide(context.Background(), r); d.Verdict != policy.Deny || d.Class != policy.NotTLS {
		t.Errorf("neither TLS nor HTTP: %s", saying(d))
	}
	r.Protocol, r.TLS = policy.ProtocolTLS, &policy.ClientHello{ServerName: "a.test", ECH: true}
	if d := p.Decide(context.Background(), r); d.Verdict != policy.Ask {
		t.Errorf("ECH: %s", saying(d))
	}
}

func TestReasonsOfClaims(t *testing.T) {
	p := compiled(t, "allow: [{host: a.test, methods: [GET]}]", inspecting)
	rows := []struct {
		edit func(*policy.Request)
		want string
	}{
		{func(r *policy.Request) { r.HTTP.Authority = "b.test:443" }, "the request names another server than a.test:443; if that is a proxy, egressd has to connect through it (upstream.proxy)"},
		{func(r *policy.Request) { r.HTTP.Upgrade = true }, "rule allow[0] allows requests to a.test:443, but no WebSocket: it does not say upgrade: websocket"},
		{func(r *policy.Request) { r.HTTP, r.Protocol = nil, policy.ProtocolOpaque }, "what is sent to a.test:443 is neither TLS nor HTTP, and the rules look at requests"},
	}
	for _, row := range rows {
		r := asking(t, "https://a.test/")
		row.edit(r)
		if d := p.Decide(context.Background(), r); d.Reason != row.want || d.Verdict != policy.Deny {
			t.Errorf("%s: reason %q, want %q", saying(d), d.Reason, row.want)
		}
	}
}
