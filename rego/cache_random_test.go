package rego_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// TestAnyPolicyIsCachedRight asks policies that look at any of the input about
// requests that differ in any of it, at any stage.
func TestAnyPolicyIsCachedRight(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		source := []rego.Source{{Name: "egress.rego", Text: []byte(anyPolicyOfInput(rt))}}
		cached, err := rego.Load(source, rego.Options{Cached: 32, Deadline: patient})
		if err != nil {
			rt.Fatalf("%v\n%s", err, source[0].Text)
		}
		fresh, err := rego.Load(source, rego.Options{Cached: -1, Deadline: patient})
		if err != nil {
			rt.Fatal(err)
		}
		for range 12 {
			r := anyInput(rt)
			a, errA := cached.Evaluate(t.Context(), &r)
			b, errB := fresh.Evaluate(t.Context(), &r)
			if diff := cmp.Diff(a, b); diff != "" || (errA == nil) != (errB == nil) {
				rt.Fatalf("%s, %v, %v\n%+v\n%s", diff, errA, errB, r, source[0].Text)
			}
		}
	})
}

func anyPolicyOfInput(rt *rapid.T) string {
	condition := rapid.SampledFrom([]string{
		`input.sandbox.name == "b"`, `input.sandbox.kind == "b"`, `input.sandbox.labels.team == "b"`, `input.via == "socks5"`,
		`input.destination.host == "b.test"`, `input.destination.port == 80`, `input.destination.registrable == "b.test"`,
		`input.destination.address_class == "private"`, `count(input.destination.addresses) == 2`, `input.destination.addresses[_] == "10.0.0.1"`,
		`input.tls.sni == "b.test"`, `input.tls.ech`, `input.tls.ja4 == "b"`, `"h2" in input.tls.alpn`, `not input.tls`,
		`input.http.method == "POST"`, `input.http.path == "/b"`, `input.http.query == "b"`, `input.http.body_size > 5`,
		`"b" in input.http.headers["x-a"]`, `count(input.http.headers) == 1`, `not input.http`,
		`input.usage.bytes_up > 5`, `input.usage.flows_open > 5`, `input.time > 1795000000000000000`, `time.now_ns() > 1795000000000000000`,
		`input.stage == "tls"`, `input.stage == "http"`, `input.stage == "address"`, `input.dns.type == "A"`,
		`count({part | input[part].port == 80}) == 1`, `contains(json.marshal(input), "b.test")`, `object.get(input, ["destination", "port"], 0) == 80`,
	})
	member := rapid.SampledFrom([]string{
		`{"rule": "r"}`, `{"rule": "r", "max_bytes_up": 10}`, `{"rule": "r", "reason": input.destination.host}`,
		`{"rule": "r", "reason": input.http.path}`, `{"rule": "r", "log": true}`, `{"rule": "r", "max_bytes_up": input.destination.port}`,
	})
	var text strings.Builder
	text.WriteString("package egress\n")
	for i := range rapid.IntRange(1, 3).Draw(rt, "rules") {
		set := rapid.SampledFrom([]string{"allow", "allow", "deny", "ask"}).Draw(rt, "set")
		made := strings.ReplaceAll(member.Draw(rt, "member"), `"r"`, fmt.Sprintf(`"r%d"`, i))
		fmt.Fprintf(&text, "%s contains %s if {\n\t%s\n\t%s\n}\n", set, made, condition.Draw(rt, "a"), condition.Draw(rt, "b"))
	}
	return text.String()
}

// anyInput draws one of two values, at least, for everything in the input.
func anyInput(rt *rapid.T) policy.Request {
	either := func(what string) string { return rapid.SampledFrom([]string{"a", "b"}).Draw(rt, what) }
	some := rapid.Bool()
	r := policy.Request{
		Sandbox: policy.Sandbox{Name: either("name"), Kind: either("kind"), Labels: map[string]string{"team": either("team")}},
		Via:     rapid.SampledFrom([]policy.Via{policy.ViaConnect, policy.ViaSOCKS5, policy.ViaHTTP}).Draw(rt, "via"),
		Usage:   &policy.Usage{BytesUp: rapid.Int64Range(4, 6).Draw(rt, "up"), FlowsOpen: rapid.Int64Range(4, 6).Draw(rt, "open")},
		Time:    time.Unix(0, 1795000000000000000+rapid.Int64Range(0, 1).Draw(rt, "time")),
	}
	r.Destination = policy.Destination{Host: either("host") + ".test", Port: rapid.SampledFrom([]uint16{80, 443}).Draw(rt, "port")}
	if some.Draw(rt, "resolved") {
		r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("10.0.0.1")}[rapid.IntRange(0, 1).Draw(rt, "addresses"):]
	}
	if some.Draw(rt, "spoken") {
		r.Protocol = rapid.SampledFrom([]policy.Protocol{policy.ProtocolTLS, policy.ProtocolHTTP, policy.ProtocolOpaque}).Draw(rt, "protocol")
	}
	if r.Protocol == policy.ProtocolTLS {
		r.TLS = &policy.ClientHello{ServerName: either("sni") + ".test", JA4: either("ja4"), ECH: some.Draw(rt, "ech"), ALPN: []string{"h2", "x"}[:rapid.IntRange(0, 2).Draw(rt, "alpn")]}
	}
	if some.Draw(rt, "request") {
		r.HTTP = &policy.HTTPRequest{
			Method: rapid.SampledFrom([]string{"GET", "POST"}).Draw(rt, "method"), Path: "/" + either("path"), Query: either("query"),
			BodySize: rapid.Int64Range(4, 6).Draw(rt, "size"), Header: map[string][]string{"x-a": {either("x-a")}},
		}
	}
	return r
}
