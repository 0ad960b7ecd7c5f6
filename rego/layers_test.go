package rego_test

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
)

// TestNoFirstLookOfRegoInAnyLayerIsWider has policies in Rego in every layer, beside lists:
// what is allowed before there is a request is allowed whatever that is.
func TestNoFirstLookOfRegoInAnyLayerIsWider(t *testing.T) {
	layers := []policy.Layer{policy.Organisation, policy.User, policy.PerSandbox}
	var loaded [3][]policy.Evaluator
	for _, text := range []string{
		`allow contains {"rule": "a"}`,
		`allow contains {"rule": "a"} if input.http.method == "GET"`,
		`allow contains {"rule": "a", "max_bytes_up": 9}`,
		`deny contains {"rule": "d"} if input.http.method == "POST"`,
		`deny contains {"rule": "d"} if { "93.184.216.34" in input.destination.addresses; input.http.path == "/y" }`,
		`deny contains {"rule": "d"} if not input.http.method in {"GET", "POST"}
allow contains {"rule": "a"} if input.destination.host == "a.test"`,
		`ask contains {"rule": "q"} if input.http.method == "POST"
allow contains {"rule": "a"} if input.destination.port == 443`,
		`allow contains {"rule": "a"} if input.stage != "http"`,
		`allow contains {"rule": "a"} if input.destination.port == 443
deny contains {"rule": "d"} if { input.stage == "http"; input.destination.host == "b.test" }`,
		`allow contains {"rule": "a"}
deny contains {"rule": "d"} if { input.http.method == "POST"; input.destination.host == "b.test" }`,
		`allow contains {"rule": "a"}
deny contains {"rule": "d"} if { startswith(input.http.path, "/y"); input.destination.host == "b.test" }`,
		`allow contains {"rule": "a"}
ask contains {"rule": "q"} if { input.stage == "http"; input.http.headers["x-a"] }`,
	} {
		for i, layer := range layers {
			e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\n" + text + "\n")}}, rego.Options{Layer: layer, Deadline: patient})
			if err != nil {
				t.Fatal(err)
			}
			loaded[i] = append(loaded[i], e)
		}
	}
	lists := rapid.SampledFrom([]string{
		"", "allow: [a.test]", "allow: ['*.test', {host: 93.184.0.0/16, methods: [GET]}]", "default: allow",
		"allow: [{host: a.test, methods: [GET, POST]}]\nceiling: ['*']",
		"allow: ['*']\nsandboxes: [{name: default, source: [10.9.0.0/16], allow: ['*.test'], deny: [{host: 0.0.0.0/0, methods: [POST]}]}]",
	})
	destinations := []policy.Request{to(t, "a.test:443"), to(t, "b.test:8443")}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(layer int, name string) []policy.Evaluator {
			return rapid.SliceOfN(rapid.SampledFrom(loaded[layer]), 0, 1).Draw(t, name)
		}
		env := file.Environment{Inspection: true, Evaluators: draw(0, "organisation")}
		env.Layers.User = draw(1, "user")
		for _, e := range draw(0, "ceiling") {
			env.Layers.Ceilings = append(env.Layers.Ceilings, policy.Ceiling{Evaluator: e, Layer: policy.Organisation})
		}
		for _, e := range draw(2, "sandbox") {
			env.Layers.Narrowing = map[string][]policy.Narrowing{"default": {{Evaluator: e, Exhaustive: rapid.Bool().Draw(t, "exhaustive")}}}
		}
		f, err := file.Parse("f", []byte("version: 1\n"+lists.Draw(t, "lists")+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Compile(env)
		if err != nil {
			t.Fatal(err)
		}
		r := rapid.SampledFrom(destinations).Draw(t, "asked for")
		r.Sandbox.Name = "default"
		r.Destination.Addrs = []netip.Addr{netip.MustParseAddr(rapid.SampledFrom([]string{"93.184.216.34", "93.184.1.1"}).Draw(t, "address"))}
		early := p.Decide(t.Context(), &r)
		for _, request := range []string{"GET /", "POST /", "POST /y", "GET /y", "PURGE /", "GET /ws", "GET /y//z", "post /"} {
			full := r
			full.Protocol, full.TLS, full.HTTP = policy.ProtocolTLS, &policy.ClientHello{ServerName: r.Destination.Host, Inspected: true}, &policy.HTTPRequest{BodySize: -1}
			if _, err := fmt.Sscan(request, &full.HTTP.Method, &full.HTTP.Path); err != nil {
				t.Fatal(err)
			}
			full.HTTP.Upgrade = full.HTTP.Path == "/ws"
			d := p.Decide(t.Context(), &full)
			switch {
			case early.Verdict == policy.Allow && d.Verdict != policy.Allow:
				t.Fatalf("%s: allowed unseen, then %s by %s (%s)", request, d.Verdict, d.Rule, d.Reason)
			case early.Verdict == policy.Allow && d.MaxBytesUp > 0 && (early.MaxBytesUp == 0 || early.MaxBytesUp > d.MaxBytesUp):
				t.Fatalf("%s: %d bytes unseen, then %d", request, early.MaxBytesUp, d.MaxBytesUp)
			case early.Verdict <= policy.Ask && d.Verdict == policy.Allow:
				t.Fatalf("%s: %s unseen, by %s (%s), then allowed", request, early.Verdict, early.Rule, early.Reason)
			}
		}
	})
}

// TestARuleAboutAddressesCountsForAnAlias: it would be dropped where the alias had none.
func TestARuleAboutAddressesCountsForAnAlias(t *testing.T) {
	for _, rule := range []string{
		`some a in input.destination.addresses; not net.contains("93.184.0.0/16", a)`,
		`input.http.method != "GET"; count(input.destination.addresses) > 0`,
		`object.get(input, ["http", "method"], "GET") != "GET"`,
	} {
		e := load(t, "package egress\ndeny contains {\"rule\": \"d\"} if { input.destination.host == \"db.corp\"; "+rule+" }")
		f, err := file.Parse("f", []byte("version: 1\nallow: ['*.partner.test', db.corp]\n"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Compile(file.Environment{Inspection: true, Evaluators: []policy.Evaluator{e}})
		if err != nil {
			t.Fatal(err)
		}
		for host, aliases := range map[string][]string{"db.corp": nil, "x.partner.test": {"db.corp"}} {
			r := sends(t, host+":80", "POST", "/")
			r.Sandbox.Name, r.Via, r.Protocol, r.TLS = "default", policy.ViaHTTP, policy.ProtocolHTTP, nil
			r.Destination.Addrs, r.Destination.Aliases = []netip.Addr{netip.MustParseAddr("8.8.8.8")}, aliases
			if d := p.Decide(t.Context(), &r); d.Verdict != policy.Deny || d.Rule != "d" {
				t.Errorf("%s for %s: %s by %s", rule, host, d.Verdict, d.Rule)
			}
		}
	}
}

// TestAWebSocketPassesWhereATunnelPassesUnread: a tunnel would carry the same WebSocket.
func TestAWebSocketPassesWhereATunnelPassesUnread(t *testing.T) {
	for text, want := range map[string]policy.Verdict{
		`allow contains {"rule": "a"}
deny contains {"rule": "d"} if { input.stage == "tls"; input.tls.sni == "b.test" }`: policy.Allow,
		`allow contains {"rule": "a"}
deny contains {"rule": "d"} if { input.http.method == "POST"; input.destination.host == "b.test" }`: policy.Allow,
		`allow contains {"rule": "a"}
deny contains {"rule": "d"} if input.http.method == "POST"`: policy.Deny,
		`allow contains {"rule": "a"} if input.http.method == "GET"`:                         policy.Deny,
		`allow contains {"rule": "a", "upgrade": "websocket"} if input.http.method == "GET"`: policy.Allow,
	} {
		p := policy.New(load(t, "package egress\n"+text))
		r := sends(t, "a.test:80", "GET", "/ws")
		r.Via, r.Protocol, r.TLS, r.HTTP.Upgrade = policy.ViaHTTP, policy.ProtocolHTTP, nil, true
		if d := p.Decide(t.Context(), &r); d.Verdict != want {
			t.Errorf("%s: %s by %s (%s)", text, d.Verdict, d.Rule, d.Reason)
		}
	}
}
