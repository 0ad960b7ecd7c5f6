package rego_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// membersOfAPost are sets whose member has a budget for a POST, in ways that looking
// ahead does not see through to the member.
var membersOfAPost = map[string]string{
	"written out": `allow contains {"rule": "x", "max_bytes_up": 10} if input.http.method == "POST"`,
	"of a function": `pick(m) := {"rule": "x", "max_bytes_up": 10} if m == "POST"
allow contains pick(input.http.method)`,
	"of a function with an else": `pick(m) := {"rule": "x", "max_bytes_up": 10} if m == "POST" else := {"rule": "y"}
allow contains pick(input.http.method)`,
	"of a rule with an else": `pick := {"rule": "x", "max_bytes_up": 10} if input.http.method == "POST" else := {"rule": "y"}
allow contains pick`,
	"of a rule with a default": `default pick := {"rule": "y"}
pick := {"rule": "x", "max_bytes_up": 10} if input.http.method == "POST"
allow contains pick`,
	"whose number has a default": `default most := 1000
most := 10 if input.http.method == "POST"
allow contains {"rule": "x", "max_bytes_up": most}`,
	"whose number has an else": `most := 10 if input.http.method == "POST" else := 1000
allow contains {"rule": "x", "max_bytes_up": most}`,
	"of an object of members": `all := {"POST": {"rule": "x", "max_bytes_up": 10}, "GET": {"rule": "y"}}
allow contains all[input.http.method]`,
	"that is put together":         `allow contains object.union({"rule": "x"}, {k: 10 | k := "max_bytes_up"; input.http.method == "POST"})`,
	"that is patched":              `allow contains json.patch({"rule": "x"}, [{"op": "add", "path": "max_bytes_up", "value": count(input.http.path)}])`,
	"of a comprehension":           `allow contains o if some o in [x | x := {"rule": "x", "max_bytes_up": 10}; input.http.method == "POST"]`,
	"with a key that is looked up": "keys := {\"POST\": \"max_bytes_up\"}\nallow contains {\"rule\": \"x\", keys[input.http.method]: 10}",
	"of another set": `some_members contains {"rule": "x", "max_bytes_up": 10} if input.http.method == "POST"
allow contains o if some o in some_members`,
	"of another set with another input": `some_members contains {"rule": "x", "max_bytes_up": 10} if input.http.method == "POST"
allow contains o if some o in some_members with input.via as "x"`,
}

// TestABudgetOfTheRequestIsSeenAhead has another rule allow everything: a tunnel that
// nobody looks into would go around the budget.
func TestABudgetOfTheRequestIsSeenAhead(t *testing.T) {
	for name, text := range membersOfAPost {
		t.Run(name, func(t *testing.T) {
			e := load(t, "package egress\nallow contains {\"rule\": \"all\"}\n"+text)
			if d := evaluate(t, e, sends(t, "a.test:443", "POST", "/")); d.Verdict != policy.Allow || d.MaxBytesUp == 0 {
				t.Fatalf("a request: %v with %d", d.Verdict, d.MaxBytesUp)
			}
			tunnel := sends(t, "a.test:443", "GET", "/")
			tunnel.HTTP = nil
			for stage, r := range map[string]policy.Request{"name": to(t, "a.test:443"), "tls": tunnel} {
				if d := evaluate(t, e, r); d.Verdict != policy.Inspect {
					t.Errorf("%s: %v with %d", stage, d.Verdict, d.MaxBytesUp)
				}
			}
		})
	}
}

// TestWhatPassesUnreadNeedsNoLook compares what is said of a tunnel with what is said
// of every request that could be in it: the budget, the credential and the verdict
// of one that passes unread are those of all of them.
func TestWhatPassesUnreadNeedsNoLook(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := anyPolicyWithOptions(rt)
		e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte(text)}}, rego.Options{Deadline: patient, Cached: 16})
		if err != nil {
			rt.Fatalf("%v\n%s", err, text)
		}
		tunnel := sends(t, "a.test:443", "GET", "/")
		tunnel.HTTP, tunnel.TLS.ServerName = nil, rapid.SampledFrom([]string{"a.test", "b.test"}).Draw(rt, "sni")
		tunnel.Usage = &policy.Usage{BytesUp: 5}
		ahead, err := e.Evaluate(t.Context(), &tunnel)
		if err != nil {
			rt.Fatalf("%v\n%s", err, text)
		}
		if ahead.Verdict != policy.Allow || ahead.Needs != 0 {
			return
		}
		for _, method := range []string{"GET", "POST", "PUT"} {
			for _, path := range []string{"/", "/x"} {
				r := tunnel
				r.HTTP = &policy.HTTPRequest{Method: method, Path: path, Header: map[string][]string{"x-a": {method}}}
				d, err := e.Evaluate(t.Context(), &r)
				if err != nil || d.Verdict != policy.Allow || d.MaxBytesUp != ahead.MaxBytesUp || d.Inject != ahead.Inject {
					rt.Fatalf("ahead %v with %d, then %v with %d for %s %s (%v)\n%s", ahead.Verdict, ahead.MaxBytesUp, d.Verdict, d.MaxBytesUp, method, path, err, text)
				}
			}
		}
	})
}

func anyPolicyWithOptions(rt *rapid.T) string {
	text := `package egress
pick(m) := {"rule": "up", "max_bytes_up": 10} if m == "POST" else := {"rule": "other"}
default most := 1000
most := 10 if input.http.method == "POST"
named contains {"rule": "n", "max_bytes_up": 30} if input.tls.sni == "b.test"
named contains {"rule": "m", "max_bytes_up": 20} if input.http.headers["x-a"][0] == "PUT"
`
	members := rapid.SampledFrom([]string{
		`{"rule": "a"}`, `{"rule": "b", "max_bytes_up": 50}`, `pick(input.http.method)`, `pick(input.tls.sni)`, `pick(input.destination.host)`,
		`{"rule": "c", "max_bytes_up": most}`, `object.union({"rule": "d"}, {k: 7 | k := "max_bytes_up"; input.http.path == "/x"})`,
		`object.union({"rule": "d"}, {k: 7 | k := "max_bytes_up"; input.tls.sni == "b.test"})`,
		`[m | some m in named][_]`, `{"rule": sprintf("%s", [input.http.method])}`, `{"rule": input.tls.sni, "max_bytes_up": count(input.tls.sni)}`,
		`{"rule": "e", "max_bytes_up": object.get({"POST": 10}, input.http.method, 40)}`,
	})
	condition := rapid.SampledFrom([]string{
		`true`, `true`, `input.http.method == "POST"`, `not input.http.method == "POST"`, `input.tls.sni == "a.test"`, `input.http.headers["x-a"][0] == "PUT"`,
		`input.usage.bytes_up > 10`, `input.usage.bytes_up < 10`, `not input.http`, `most == 10`, `count(named) > 1`, `input.stage == "http"`,
	})
	for i := range rapid.IntRange(1, 4).Draw(rt, "rules") {
		set := rapid.SampledFrom([]string{"allow", "allow", "allow", "deny", "ask"}).Draw(rt, "set")
		text += fmt.Sprintf("%s contains m%d if {\n\tm%d := %s\n\t%s\n\t%s\n}\n", set, i, i, members.Draw(rt, "member"), condition.Draw(rt, "a"), condition.Draw(rt, "b"))
	}
	return text
}

// TestWhatPassesUnreadIsAllTheSameLater has the sandbox use more while a tunnel is
// open: what is then said of a request in it depends on the request in no way.
func TestWhatPassesUnreadIsAllTheSameLater(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := anyPolicyOfUsage(rt)
		e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte(text)}}, rego.Options{Deadline: patient})
		if err != nil {
			rt.Fatalf("%v\n%s", err, text)
		}
		tunnel := sends(t, "a.test:443", "GET", "/")
		tunnel.HTTP, tunnel.Usage = nil, &policy.Usage{BytesUp: 5}
		ahead, err := e.Evaluate(t.Context(), &tunnel)
		if err != nil {
			rt.Fatalf("%v\n%s", err, text)
		}
		if ahead.Verdict != policy.Allow || ahead.Needs != 0 {
			return
		}
		for _, used := range []int64{5, 15, 25} {
			var first policy.Decision
			for i, method := range []string{"GET", "POST", "PUT"} {
				r := tunnel
				r.Usage = &policy.Usage{BytesUp: used, RequestsMinute: used}
				r.HTTP = &policy.HTTPRequest{Method: method, Path: "/" + method}
				d, err := e.Evaluate(t.Context(), &r)
				if err != nil {
					rt.Fatal(err)
				}
				if i == 0 {
					first = d
				}
				if d.Verdict != first.Verdict || d.MaxBytesUp != first.MaxBytesUp {
					rt.Fatalf("after %d: %v with %d for GET, %v with %d for %s\n%s", used, first.Verdict, first.MaxBytesUp, d.Verdict, d.MaxBytesUp, method, text)
				}
			}
		}
	})
}

func anyPolicyOfUsage(rt *rapid.T) string {
	text := `package egress
much if input.usage.bytes_up > 10
much if { input.usage.requests_minute > 20; input.http.method == "PUT" }
rate := "fast" if input.usage.requests_minute > 20 else := "slow" if input.http.method != "GET" else := "none"
left := 20 - input.usage.bytes_up
late(m) if { much; m == "POST" }
allow contains {"rule": "all"}
`
	condition := rapid.SampledFrom([]string{
		`true`, `input.http.method == "POST"`, `not input.http.method == "POST"`, `input.usage.bytes_up > 10`, `not input.usage.bytes_up < 20`,
		`much`, `not much`, `rate == "fast"`, `rate == "slow"`, `rate != "fast"`, `left < 0`, `late(input.http.method)`, `not late(input.http.method)`,
		`count([1 | much; input.http.method == "PUT"]) == 1`, `every m in [input.http.method] { m != "PUT" }`, `input.tls.sni == "a.test"`,
		`sum([input.usage.bytes_up, count(input.http.method)]) > 18`, `object.get(input.usage, "bytes_up", 0) > 20`, `input.stage == "http"`,
	})
	for i := range rapid.IntRange(1, 3).Draw(rt, "rules") {
		member := rapid.SampledFrom([]string{
			`deny contains {"rule": "r"}`, `ask contains {"rule": "r"}`, `allow contains {"rule": "r", "max_bytes_up": 10}`,
			`allow contains object.union({"rule": "r"}, {"max_bytes_up": count(rate)})`,
		}).Draw(rt, "member")
		text += fmt.Sprintf("%s if {\n\t%s\n\t%s\n}\n", strings.Replace(member, `"r"`, fmt.Sprintf(`"r%d"`, i), 1), condition.Draw(rt, "a"), condition.Draw(rt, "b"))
	}
	return text
}
