package rego_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// TestLookingAheadSeesIntoEverything has policies of which something is decided by
// the method, in ways that looking ahead does not go into. A tunnel that was
// allowed or denied without a look inside would be one too many.
func TestLookingAheadSeesIntoEverything(t *testing.T) {
	const (
		always  = "allow contains {\"rule\": \"a\"} if input.destination.port == 443\n"
		verdict = "v := \"bad\" if input.http.method != \"GET\" else := \"ok\"\n"
	)
	for _, row := range []struct{ name, text string }{
		{"an else that allows", verdict + `allow contains {"rule": "a"} if v == "ok"`},
		{"an else that denies", always + verdict + `deny contains {"rule": "d"} if v == "bad"`},
		{"an else of a function", `v(h) := "bad" if input.http.method != "GET" else := "ok" if h != ""
			allow contains {"rule": "a"} if v(input.destination.host) == "ok"`},
		{"an else under not", `bad if input.http.method == "POST" else if input.http.method == "PUT"
			allow contains {"rule": "a"} if not bad`},
		{"an else below a rule", `w := v
			` + verdict + `allow contains {"rule": "a"} if w == "ok"`},
		{"an else in a comprehension", verdict + `allow contains {"rule": "a"} if count([1 | v == "ok"]) == 1`},
		{"a document as a whole", `p.x := 1 if input.http.method == "POST"
			allow contains {"rule": "a"} if count(p) == 0`},
		{"a document by a function", always + `bad.post if input.http.method == "POST"
			deny contains {"rule": "d"} if object.get(bad, "post", false)`},
		{"a set that is counted", always + `bads contains 1 if input.http.method == "POST"
			deny contains {"rule": "d"} if count(bads) > 0`},
		{"a default of a function", `default v(_) := "ok"
			v(h) := "bad" if { h != ""; input.http.method != "GET" }
			allow contains {"rule": "a"} if v(input.destination.host) == "ok"`},
		{"the stage and the method", always + `deny contains {"rule": "d"} if { input.stage == "http"; input.http.method == "POST" }`},
		{"the stage by what it is not", always + `deny contains {"rule": "d"} if { input.stage != "name"; input.stage != "address"; input.stage != "tls"; input.http.method == "POST" }`},
		{"the stage alone", always + `deny contains {"rule": "d"} if { input.stage == "http"; input.destination.host == "a.test" }`},
		{"an allow of a tunnel, and of some requests in it", `allow contains {"rule": "tunnel"} if input.stage != "http"
			allow contains {"rule": "read"} if { input.stage == "http"; input.http.method == "GET" }`},
		{"an allow of a tunnel, and of no request in it", `allow contains {"rule": "tunnel"} if input.stage in {"name", "address", "tls"}`},
		{"an allow of a tunnel below a rule", `early if not input.http.method
			early if input.stage != "http"
			allow contains {"rule": "tunnel"} if early`},
		{"an allow for what can be seen", `allow contains {"rule": "a"} if { input.stage == "http"; input.destination.host == "a.test" }`},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := load(t, "package egress\n"+row.text)
			if !e.LooksAtRequests() {
				t.Error("it does not look at requests")
			}
			tunnel := sends(t, "a.test:443", "GET", "/")
			tunnel.HTTP = nil
			opaque := tunnel
			opaque.TLS, opaque.Protocol = nil, policy.ProtocolOpaque
			for stage, r := range map[string]policy.Request{"name": to(t, "a.test:443"), "tls": tunnel, "opaque": opaque} {
				if d := evaluate(t, e, r); d.Verdict != policy.Inspect || d.Needs == 0 {
					t.Errorf("%s: %v needing %b", stage, d.Verdict, d.Needs)
				}
			}
		})
	}
}

// TestTheTimeIsKnownAhead has rules about the clock beside one that makes the policy
// look ahead.
func TestTheTimeIsKnownAhead(t *testing.T) {
	const other = "package egress\nallow contains {\"rule\": \"other\"} if { input.destination.host == \"other.test\"; input.http.method == \"GET\" }\n"
	for text, want := range map[string]policy.Verdict{
		`allow contains {"rule": "a"} if time.now_ns() < 5`:                                                                           policy.Abstain,
		`allow contains {"rule": "a"} if time.now_ns() > 5`:                                                                           policy.Allow,
		"allow contains {\"rule\": \"a\"}\ndeny contains {\"rule\": \"d\"} if time.now_ns() > 5":                                      policy.Deny,
		"allow contains {\"rule\": \"a\"}\ndeny contains {\"rule\": \"d\"} if time.now_ns() < 5":                                      policy.Allow,
		"allow contains {\"rule\": \"a\"} if not late\nlate if time.now_ns() > 5":                                                     policy.Abstain,
		`allow contains {"rule": "a"} if time.on(time.now_ns(), "UTC", {"Monday"})`:                                                   policy.Abstain,
		`allow contains {"rule": "a"} if time.between(time.now_ns(), "UTC", "00:00", "00:01")`:                                        policy.Abstain,
		"allow contains {\"rule\": \"a\"}\ndeny contains {\"rule\": \"d\"} if net.any([\"10.0.0.0/8\"], input.destination.addresses)": policy.Deny,
	} {
		e := load(t, other+text)
		r := to(t, "a.test:443")
		r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
		if d := evaluate(t, e, r); d.Verdict != want {
			t.Errorf("%s: %v, want %v", text, d.Verdict, want)
		}
	}
}

// TestAPackageMayHaveTheNameThatOPAGives has rules in the package into which OPA
// puts those that it makes, unless it is told another one.
func TestAPackageMayHaveTheNameThatOPAGives(t *testing.T) {
	e := load(t, "package egress\nallow contains {\"rule\": \"a\"} if data.partial.v == \"ok\"", rego.Source{
		Name: "partial.rego", Text: []byte("package partial\nv := \"bad\" if input.http.method != \"GET\" else := \"ok\""),
	})
	if d := evaluate(t, e, to(t, "a.test:443")); d.Verdict != policy.Inspect {
		t.Errorf("%+v", d)
	}
}

// TestTheTimeOfRequestsIsNotThatOfTheirTunnel: a tunnel that is opened by day may be used at night.
func TestTheTimeOfRequestsIsNotThatOfTheirTunnel(t *testing.T) {
	const always = "package egress\nallow contains {\"rule\": \"a\"}\n"
	for _, rule := range []string{
		`deny contains {"rule": "d"} if { input.http.method == "POST"; not time.office_hours(input.time, "UTC") }`,
		`deny contains {"rule": "d"} if { input.http.method == "POST"; not time.between(time.now_ns(), "UTC", "08:00", "18:00") }`,
		`ask contains {"rule": "q"} if { input.http.method == "POST"; late }
			late if time.now_ns() > 1795456800000000000`,
	} {
		e := load(t, always+rule)
		tunnel, request := sends(t, "a.test:443", "POST", "/"), sends(t, "a.test:443", "POST", "/")
		tunnel.HTTP, tunnel.Time, request.Time = nil, time.Date(2026, 11, 23, 11, 0, 0, 0, time.UTC), time.Date(2026, 11, 23, 23, 0, 0, 0, time.UTC)
		if d := evaluate(t, e, tunnel); d.Verdict != policy.Inspect || d.Needs&policy.NeedsMethod == 0 {
			t.Errorf("%s: %v needing %b", rule, d.Verdict, d.Needs)
		}
		if d := evaluate(t, e, request); d.Verdict > policy.Ask {
			t.Errorf("%s: %v at night", rule, d.Verdict)
		}
		request.Time = tunnel.Time
		if d := evaluate(t, e, request); d.Verdict != policy.Allow {
			t.Errorf("%s: %v by day", rule, d.Verdict)
		}
	}
	for _, rule := range []string{
		`deny contains {"rule": "d"} if not time.office_hours(input.time, "UTC")`,
		`deny contains {"rule": "d"} if time.now_ns() < 5`,
	} {
		tunnel := sends(t, "a.test:443", "POST", "/")
		tunnel.HTTP, tunnel.Time = nil, time.Date(2026, 11, 23, 11, 0, 0, 0, time.UTC)
		if d := evaluate(t, load(t, always+rule), tunnel); d.Verdict != policy.Allow {
			t.Errorf("%s: %v", rule, d.Verdict)
		}
	}
}

// TestARestrictionByTheWayInHoldsForNames: no later stage would apply it to a question.
func TestARestrictionByTheWayInHoldsForNames(t *testing.T) {
	for condition, names := range map[string]policy.Verdict{
		`input.via == "dns"`: policy.Deny,
		`input.via == "dns"; startswith(input.dns.name, "a")`: policy.Deny,
		`input.via == "dns"; startswith(input.dns.name, "b")`: policy.Allow,
		`not input.via in {"connect", "http"}`:                policy.Deny,
		`not input.via in {"connect", "dns"}`:                 policy.Allow,
		`input.via == "http"`:                                 policy.Allow,
		`input.via == "dns"; input.destination.port == 443`:   policy.Allow,
	} {
		for set, want := range map[string]policy.Verdict{"deny": policy.Deny, "ask": policy.Ask} {
			if names == policy.Allow {
				want = policy.Allow
			}
			e := load(t, "package egress\nallow contains {\"rule\": \"a\"} if input.via == \"connect\"\n"+set+" contains {\"rule\": \"r\"} if { "+condition+" }")
			if d := evaluate(t, e, asks(t, "a.test")); d.Verdict != want {
				t.Errorf("%s if %s: a name is %v", set, condition, d.Verdict)
			}
			if d := evaluate(t, e, to(t, "a.test:443")); d.Verdict != policy.Allow {
				t.Errorf("%s if %s: a connection is %v", set, condition, d.Verdict)
			}
		}
	}
}

// TestAnAskAboutAddressesIsReached: the name is resolved first, so that there is something to ask about.
func TestAnAskAboutAddressesIsReached(t *testing.T) {
	e := load(t, `package egress
ask contains {"rule": "q"} if net.any({"93.184.0.0/16"}, input.destination.addresses)
deny contains {"rule": "d"} if input.destination.port == 22`)
	for hostport, want := range map[string][2]policy.Verdict{
		"a.test:443": {policy.Allow, policy.Ask},
		"a.test:22":  {policy.Deny, policy.Deny},
	} {
		r := to(t, hostport)
		d := evaluate(t, e, r)
		if d.Verdict != want[0] {
			t.Errorf("%s by name: %v", hostport, d.Verdict)
		}
		if open := d.AnyProtocol && d.ECH && d.Upgrade; d.Verdict == policy.Allow && !open {
			t.Errorf("%s by name takes what other layers permit: %+v", hostport, d)
		}
		r.Destination.Addrs = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
		if d := evaluate(t, e, r); d.Verdict != want[1] {
			t.Errorf("%s by address: %v", hostport, d.Verdict)
		}
	}
	elsewhere := to(t, "a.test:443")
	elsewhere.Destination.Addrs = []netip.Addr{netip.MustParseAddr("8.8.8.8")}
	if d := evaluate(t, e, elsewhere); d.Verdict != policy.Abstain {
		t.Errorf("elsewhere: %v", d.Verdict)
	}
	if d := evaluate(t, e, asks(t, "a.test")); d.Verdict != policy.Abstain {
		t.Errorf("a question: %v", d.Verdict)
	}
	hello := load(t, `package egress
ask contains {"rule": "q"} if input.tls.sni == "a.test"`)
	r := sends(t, "a.test:443", "GET", "/")
	r.HTTP, r.TLS, r.Protocol = nil, nil, policy.ProtocolUnseen
	if d := evaluate(t, hello, r); d.Verdict != policy.Abstain {
		t.Errorf("before the ClientHello: %v", d.Verdict)
	}
	both := load(t, `package egress
ask contains {"rule": "q"} if net.any({"93.184.0.0/16"}, input.destination.addresses)
allow contains {"rule": "read"} if input.http.method == "GET"`)
	if d := evaluate(t, both, to(t, "a.test:443")); d.Verdict != policy.Inspect {
		t.Errorf("beside an allow of some requests: %v", d.Verdict)
	}
}

// TestAPendingRuleGivesAndTakesNothingYet: its addresses decide whether it holds at all.
func TestAPendingRuleGivesAndTakesNothingYet(t *testing.T) {
	e := load(t, `package egress
allow contains {"rule": "any"} if input.destination.host == "a.test"
allow contains {"rule": "inside", "max_bytes_up": 9} if net.any({"10.0.0.0/8"}, input.destination.addresses)`)
	r := sends(t, "a.test:80", "POST", "/")
	for addr, most := range map[string]int64{"": 0, "93.184.216.34": 0, "10.0.0.1": 9} {
		r.Destination.Addrs = nil
		if addr != "" {
			r.Destination.Addrs = []netip.Addr{netip.MustParseAddr(addr)}
		}
		if d := evaluate(t, e, r); d.Verdict != policy.Allow || d.MaxBytesUp != most {
			t.Errorf("at %q: %v, %d bytes", addr, d.Verdict, d.MaxBytesUp)
		}
	}
}

// TestAWholeRequestIsDecidedBeforeItsNameIsResolved: nothing is left to inspect.
func TestAWholeRequestIsDecidedBeforeItsNameIsResolved(t *testing.T) {
	e := load(t, `package egress
v := "inside" if net.any({"10.0.0.0/8"}, input.destination.addresses) else := "bad" if input.http.method == "PURGE" else := "outside"
allow contains {"rule": "a"} if v == "outside"`)
	r := sends(t, "a.test:80", "POST", "/")
	r.Destination.Addrs = nil
	if d := evaluate(t, e, r); d.Verdict != policy.Allow || d.Needs != 0 {
		t.Errorf("%v needing %b", d.Verdict, d.Needs)
	}
}

// TestAPendingAllowTakesNoWebSocketFromOthers: at the name it looks as if it held, because it reads the whole input.
func TestAPendingAllowTakesNoWebSocketFromOthers(t *testing.T) {
	e := load(t, `package egress
allow contains {"rule": "tunnels"} if object.get(input, ["http", "path"], "-") == "-"
deny contains {"rule": "far"} if net.any({"10.0.0.0/8"}, input.destination.addresses)`)
	r := sends(t, "a.test:80", "GET", "/")
	r.HTTP.Upgrade = true
	if d := evaluate(t, e, r); d.Verdict != policy.Abstain {
		t.Errorf("with addresses: %v", d.Verdict)
	}
	r.Destination.Addrs = nil
	if d := evaluate(t, e, r); d.Verdict != policy.Allow || !d.Upgrade {
		t.Errorf("by name: %v, WebSocket %t", d.Verdict, d.Upgrade)
	}
}
