package rego_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// anyPolicy draws a policy out of conditions of every kind: on what is known at
// once, on the request, negated, and through helpers.
func anyPolicy(rt *rapid.T) string {
	condition := rapid.SampledFrom([]string{
		`input.destination.port == 443`, `input.destination.port == 80`, `host.matches(input.destination.host, "api.github.com")`,
		`host.any(input.destination.host, {"*.anthropic.com", "api.github.com"})`, `not input.destination.port == 8443`,
		`input.http.method == "GET"`, `input.http.method in {"GET", "HEAD"}`, `not input.http.method == "POST"`,
		`startswith(input.http.path, "/repos/")`, `path.matches(input.http.path, "/repos/acme/**")`, `not path.matches(input.http.path, "/repos/**")`,
		`reads`, `not reads`, `kind(input.http.method) == "read"`, `kind(input.http.method) != "read"`, `not input.http`, `input.http`,
		`x := input.http; x.method == "GET"`, `count([m | m := input.http.method; m == "GET"]) == 1`, `every c in [input.http.method] { c != "POST" }`,
		`some m in ["GET", "PUT"]; input.http.method == m`, `input.http.body_size > 10`, `not input.http.body_size > 10`, `limit == 5`, `limit > 5`,
		`input.stage != "dns"`, `object.get(input, ["http", "method"], "NONE") == "GET"`, `object.get(input, "http", {}) == {}`,
		`risk == "low"`, `risk != "low"`, `not risk == "high"`, `input.stage == "http"`, `time.now_ns() > 5`, `time.now_ns() < 5`,
		`path.any(input.http.path, ["/user", "/repos/acme/**"])`, `input.stage != "http"`, `input.stage == "tls"`, `not input.stage == "http"`,
		`input.stage in {"name", "address"}`, `input.http.headers["x-a"][_] == "b"`, `not input.http.headers["x-a"]`,
		`contains(input.http.query, "q")`, `not input.http.query`, `input.via == "connect"`, `input.tls.sni == "api.github.com"`, `not input.tls`,
	})
	var text strings.Builder
	text.WriteString("package egress\nallow contains {\"rule\": \"never\"} if input.destination.port == 1\n")
	text.WriteString("reads if input.http.method == \"GET\"\nreads if startswith(input.http.path, \"/user\")\n")
	text.WriteString("kind(m) := \"read\" if m in {\"GET\", \"HEAD\"} else := \"write\"\n")
	text.WriteString("risk := \"high\" if input.http.method != \"GET\" else := \"low\"\n")
	text.WriteString("default limit := 5\nlimit := 10 if input.http.method == \"PUT\"\n")
	for i := range rapid.IntRange(1, 4).Draw(rt, "rules") {
		set := rapid.SampledFrom([]string{"allow", "allow", "deny", "ask"}).Draw(rt, "set")
		body := rapid.SliceOfNDistinct(condition, 1, 3, rapid.ID[string]).Draw(rt, "body")
		fmt.Fprintf(&text, "%s contains {\"rule\": \"r%d\"} if {\n", set, i)
		for n, c := range body {
			fmt.Fprintf(&text, "\t%s\n", strings.ReplaceAll(c, "x", fmt.Sprintf("x%d", n))) // no two variables of one name
		}
		text.WriteString("}\n")
	}
	return text.String()
}

// TestWhatIsSaidAheadHolds compares what is said before the request is known with
// what is said about every request after that.
func TestWhatIsSaidAheadHolds(t *testing.T) {
	var requests []policy.Request
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "post"} {
		for _, path := range []string{"/", "/repos/acme/x", "/repos/other", "/user", "/a//b"} {
			for _, size := range []int64{-1, 5, 50} {
				r := sends(t, "api.github.com:443", method, path)
				r.TLS = &policy.ClientHello{ServerName: "api.github.com"}
				r.HTTP.BodySize = size
				switch size {
				case 5:
					r.HTTP.Query, r.HTTP.Header = "q=1", map[string][]string{"x-a": {"b"}}
				case 50:
					r.HTTP.Upgrade = true
				}
				requests = append(requests, r)
			}
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		text := anyPolicy(rt)
		e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte(text)}}, rego.Options{Deadline: patient})
		if err != nil {
			rt.Fatalf("%v\n%s", err, text)
		}
		early := to(t, "api.github.com:443")
		early.Protocol, early.TLS = policy.ProtocolTLS, &policy.ClientHello{ServerName: "api.github.com"} // the last look at a tunnel
		ahead, err := e.Evaluate(context.Background(), &early)
		if err != nil {
			rt.Fatalf("%v\n%s", err, text)
		}
		if ahead.Verdict <= policy.Ask && strings.Contains(text, "input.stage") {
			return // the tunnel is refused at this stage, whatever the policy says of another
		}
		for _, r := range requests {
			d, err := e.Evaluate(context.Background(), &r)
			if err != nil || !holds(ahead, d, &r) {
				rt.Fatalf("ahead %v needing %b, then %v for %+v (%v)\n%s", ahead.Verdict, ahead.Needs, d.Verdict, *r.HTTP, err, text)
			}
		}
	})
}

func holds(ahead, d policy.Decision, r *policy.Request) bool {
	ambiguous := !policy.CanonicalPath(r.HTTP.Path) || !policy.CanonicalMethod(r.HTTP.Method)
	switch {
	case ahead.Verdict == policy.Inspect:
		return true
	case ahead.Verdict == policy.Allow && r.HTTP.Upgrade && !d.Upgrade:
		return false
	case ahead.Verdict != policy.Allow && ambiguous:
		return d.Verdict != policy.Allow
	case ahead.Needs == 0:
		return d.Verdict == ahead.Verdict
	default: // it may yet be refused, and by another set; it is never allowed
		return d.Verdict != policy.Allow && (ahead.Verdict == policy.Abstain || d.Verdict <= ahead.Verdict)
	}
}

// TestAddingAnEvaluatorNeverLoosens holds any two policies to what the first lets pass
// where all that it is silent on is allowed. Silence is not one verdict: a question for a
// name is decided at many ports, and the second policy may open one that the first leaves out.
func TestAddingAnEvaluatorNeverLoosens(t *testing.T) {
	load := func(rt *rapid.T, text string) policy.Evaluator {
		e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte(text)}}, rego.Options{Deadline: patient})
		if err != nil {
			rt.Fatal(err)
		}
		return e
	}
	rapid.Check(t, func(rt *rapid.T) {
		first, second := load(rt, anyPolicy(rt)), load(rt, anyPolicy(rt))
		everything := load(rt, "package egress\nallow contains {\"rule\": \"all\"}")
		r := anyRequest(rt, t)
		decide := func(evaluators ...policy.Evaluator) policy.Verdict {
			return policy.New(evaluators...).Decide(context.Background(), &r).Verdict
		}
		most, both, turned := decide(first, everything), decide(first, second), decide(second, first)
		if both > most || both != turned {
			rt.Fatalf("at most %v, together %v, turned round %v", most, both, turned)
		}
	})
}

// FuzzEvaluate puts requests that no parser made to a policy that reads all of
// them. It has to say that it failed, or deny, or find the one host that it allows.
func FuzzEvaluate(f *testing.F) {
	f.Add("api.anthropic.com", "GET", "/repos/acme/x", "q=1", "Accept", "text/html", "api.anthropic.com", "A", uint16(443), uint8(0))
	f.Add("api.anthropic.com\x00.evil.test", "get", "/../", "\xff", "", "\xff\n", "::ffff:10.0.0.1", "", uint16(0), uint8(3))
	e := load(f, `package egress
allow contains {"rule": "one", "reason": sprintf("%v", [input])} if host.matches(input.destination.host, "api.anthropic.com")
deny contains {"rule": "sni"} if not host.any(input.tls.sni, {"api.anthropic.com", "*.github.com", "10.0.0.0/8", "x.test"})
deny contains {"rule": "path"} if not path.any(input.http.path, ["/repos/**", "/"])
deny contains {"rule": "header"} if { some name, values in input.http.headers; some v in values; contains(v, name) }
`)
	f.Fuzz(func(t *testing.T, host, method, path, query, header, value, name, kind string, port uint16, parts uint8) {
		r := policy.Request{
			Via: policy.ViaConnect, Destination: policy.Destination{Host: host, Port: port},
			TLS:  &policy.ClientHello{ServerName: name, ALPN: []string{kind}},
			HTTP: &policy.HTTPRequest{Method: method, Path: path, Query: query, Header: map[string][]string{header: {value}}, BodySize: int64(port)},
		}
		if parts&1 != 0 {
			r.HTTP = nil
		}
		if parts&2 != 0 {
			r.TLS = nil
		}
		if parts&4 != 0 {
			r.DNS = &policy.DNSQuery{Name: name, Type: kind}
		}
		d, err := e.Evaluate(context.Background(), &r)
		switch {
		case err != nil && d.Verdict != policy.Deny:
			t.Fatalf("%v, %v", d.Verdict, err)
		case d.Verdict > policy.Deny && d.Verdict < policy.Abstain && !strings.EqualFold(strings.TrimSuffix(host, "."), "api.anthropic.com"):
			t.Fatalf("%v for %q", d.Verdict, host)
		case len(d.Reason) > 256:
			t.Fatalf("a reason of %d bytes", len(d.Reason))
		}
	})
}
