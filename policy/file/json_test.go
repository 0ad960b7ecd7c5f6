package file

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// posting is a request with a body, which was read as a whole.
func posting(t *testing.T, ask, kind, body string) *policy.Request {
	t.Helper()
	r := asking(t, ask)
	r.HTTP.BodySize = int64(len(body))
	r.HTTP.Body = &policy.Body{Bytes: []byte(body), Content: []byte(body), Ended: true}
	if kind != "" {
		r.HTTP.Header = map[string][]string{"content-type": strings.Split(kind, "|")}
	}
	return r
}

func TestConditionsOnABodyOfJSON(t *testing.T) {
	allowing := compiled(t, `allow: [{host: a.test, methods: [POST], json: {/model: ["claude-*"], /n: [5, "x"], "/a/0/b~1c": [true]}, id: x}]`, inspecting)
	const whole = `{"model":"claude-x","n":5,"a":[{"b/c":true}]}`
	denying := compiled(t, "default: allow\ndeny: [{host: a.test, json: {/tool: [rm]}}, {host: a.test, json: {/number: [5]}}]", inspecting)
	const json = "application/json"
	for _, row := range []struct {
		says, kind, body string
		allowed, denied  bool // by the allow, by the deny
	}{
		{"what is asked", json, whole, true, false},
		{"with a charset", "application/json; charset=UTF-8", whole, true, false},
		{"another kind of JSON", "application/vnd.api+json", whole, true, false},
		{"escapes", json, `{"mod\u0065l":"cl\u0061ude-x","n":"x","a":[{"b\/c":true}]}`, true, false},
		{"the member is deeper", json, `{"x":{"model":"claude-x","n":5,"a":[{"b/c":true}]}}`, false, false},
		{"another value", json, strings.Replace(whole, "claude", "gpt", 1), false, false},
		{"no value", json, strings.Replace(whole, `"n":5,`, "", 1), false, false},
		{"the second element", json, strings.Replace(whole, "[{", "[{},{", 1), false, false},
		{"an object in place of a list", json, strings.Replace(strings.Replace(whole, "[", `{"0":`, 1), "]", "}", 1), true, false},
		{"text in place of a number", json, strings.Replace(whole, "5", `"5"`, 1), false, false},
		{"another form of the number", json, strings.Replace(whole, "5", "5.0", 1), false, false},
		{"an exponent", json, strings.Replace(whole, "5", "5e0", 1), false, false},
		{"a list in place of a text", json, strings.Replace(whole, `"claude-x"`, `["claude-x"]`, 1), false, false},
		{"a NUL in a value", json, strings.Replace(whole, `claude-x`, `claude-\u0000`, 1), false, false},

		{"a twin", json, strings.Replace(whole, `{`, `{"model":"claude-x",`, 1), false, true},
		{"an escaped twin", json, strings.Replace(whole, `{`, `{"\u006dodel":"gpt",`, 1), false, true},
		{"another case beside it", json, strings.Replace(whole, `{`, `{"Model":"gpt",`, 1), false, false},
		{"a full-width letter beside it", json, strings.Replace(whole, `{`, `{"ｍodel":"gpt",`, 1), false, false},
		{"another case on the way", json, strings.Replace(whole, `{`, `{"A":[],`, 1), false, false},
		{"two values", json, whole + whole, false, true},
		{"a lone surrogate", json, strings.Replace(whole, "-x", `\ud800`, 1), false, true},
		{"invalid UTF-8", json, strings.Replace(whole, "-x", "-\xff", 1), false, true},
		{"a byte order mark", json, "\xef\xbb\xbf" + whole, false, true},
		{"UTF-16", "application/json; charset=utf-16", "{\x00}\x00", false, true},
		{"depth 65", json, strings.Replace(whole, "{", `{"d":`+strings.Repeat("[", 64)+strings.Repeat("]", 64)+",", 1), false, true},
		{"depth 64", json, strings.Replace(whole, "{", `{"d":`+strings.Repeat("[", 63)+strings.Repeat("]", 63)+",", 1), true, false},
		{"text", "text/plain", whole, false, true},
		{"no type", "", whole, false, true},
		{"two types", json + "|" + json, whole, false, true},
		{"a type that is none", "application/json; charset", whole, false, true},
		{"a form", "application/x-www-form-urlencoded", "model=claude-x", false, true},
		{"no JSON", json, "model", false, true},
		{"nothing", json, "", false, false},

		{"what is denied", json, `{"tool":"rm"}`, false, true},
		{"what is denied, in another case", json, `{"TOOL":"rm"}`, false, true},
		{"what is denied, in a list", json, `{"tool":["rm"]}`, false, true},
		{"what is not denied", json, `{"tool":"ls"}`, false, false},
		{"the number that is denied, in another form", json, `{"number":5.0}`, false, true},
		{"a large number", json, `{"number":50000000000000000000}`, false, true},
		{"the number that is denied, as text", json, `{"number":"5"}`, false, true},
		{"another number", json, `{"number":6}`, false, false},
		{"a number in place of it", json, `{"tool":1}`, false, false},
	} {
		r := posting(t, "POST https://a.test/", row.kind, row.body)
		want := policy.BodyDenied
		if row.allowed {
			want = ""
		}
		if d := allowing.Decide(context.Background(), r); d.Class != want {
			t.Errorf("%s: the allow says %s", row.says, saying(d))
		}
		if d := denying.Decide(context.Background(), r); (d.Class == policy.RuleDeny) != row.denied {
			t.Errorf("%s: the deny says %s", row.says, saying(d))
		}
	}
	for _, query := range []string{"$ct=application/x-protobuf", "%24httpHeaders=Content-Type:text/plain"} {
		if d := allowing.Decide(context.Background(), posting(t, "POST https://a.test/?"+query, json, whole)); d.Class != policy.BodyDenied {
			t.Errorf("%s: %s", query, saying(d))
		}
	}
}

// TestABodyIsReadOnlyWhereItDecides: other requests to the host are decided by their heads.
func TestABodyIsReadOnlyWhereItDecides(t *testing.T) {
	const text = `allow:
  - {host: a.test, methods: [POST], paths: [/v1/**], json: {/model: [x]}}
  - {host: a.test, methods: [POST], paths: [/up]}
  - {host: a.test, methods: [POST], paths: [/h], headers: {x-a: ["1"]}, json: {/model: [x]}}
  - {host: b.test}
deny:
  - {host: b.test, methods: [PUT], json: {/model: [x]}}
sandboxes:
  - {name: all, listen: "unix:/a"}
  - {name: narrow, listen: "unix:/b", allow: [{host: b.test, json: {/user: [me]}}]}
`
	p := compiled(t, text, inspecting)
	for _, row := range []struct {
		who, ask string
		size     int64
		want     policy.Verdict
	}{
		{"all", "POST https://a.test/v1/x", -1, policy.Inspect},
		{"all", "POST https://a.test/v1/x", 9, policy.Inspect},
		{"all", "POST https://a.test/v1/x", 0, policy.Deny},
		{"all", "POST https://a.test/up", -1, policy.Allow},
		{"all", "GET https://a.test/v1/x", -1, policy.Deny},
		{"all", "POST https://a.test/h", -1, policy.Deny},
		{"all", "POST https://a.test/other", -1, policy.Deny},
		{"all", "PUT https://b.test/", -1, policy.Inspect},
		{"all", "PUT https://b.test/", 0, policy.Allow},
		{"all", "POST https://b.test/", -1, policy.Allow},
		{"narrow", "POST https://b.test/", -1, policy.Inspect},
		{"narrow", "POST https://b.test/", 0, policy.Deny},
		{"narrow", "POST https://a.test/v1/x", -1, policy.Deny},
	} {
		r := asking(t, row.ask)
		r.Sandbox.Name, r.HTTP.BodySize = row.who, row.size
		r.HTTP.Header = map[string][]string{"x-a": {"1", "1"}}
		d := p.Decide(context.Background(), r)
		if d.Verdict != row.want || d.Verdict == policy.Inspect && d.Needs != policy.NeedsBody {
			t.Errorf("%s: %s of %d bytes: %s, needs %b, want %s", row.who, row.ask, row.size, saying(d), d.Needs, row.want)
		}
	}
}

// TestAnExceptionToTheBaselineReadsTheBody, also where it has to be read first.
func TestAnExceptionToTheBaselineReadsTheBody(t *testing.T) {
	p := compiled(t, `unsafe_allow: [{host: "127.0.0.1:8080", json: {/model: [x]}}]`, inspecting)
	unread := asking(t, "POST http://127.0.0.1:8080/")
	if d := p.Decide(context.Background(), unread); d.Verdict != policy.Inspect || !d.Needs.ReadsBody() {
		t.Errorf("an unread body: %s", saying(d))
	}
	for body, want := range map[string]policy.Class{`{"model":"x"}`: "", `{"model":"y"}`: policy.BodyDenied, `{"model":"x"`: policy.BodyDenied} {
		if d := p.Decide(context.Background(), posting(t, "POST http://127.0.0.1:8080/", "application/json", body)); d.Class != want {
			t.Errorf("%s: %s", body, saying(d))
		}
	}
}

func TestBadConditionsOnJSON(t *testing.T) {
	for rule, want := range map[string]string{
		`json: {}`:                          "allow[0].json is empty",
		`json: [/model]`:                    "allow[0].json is a list; write a mapping of JSON Pointers",
		`json: {model: [x]}`:                `allow[0].json: "model" is not a JSON Pointer; write /model`,
		`json: {/a~b: [x]}`:                 `allow[0].json: "/a~b" is not a JSON Pointer`,
		`json: {/model: []}`:                "allow[0].json./model is empty",
		`json: {/n: [1.5]}`:                 `allow[0].json./n: "1.5" is no whole number`,
		`json: {/n: [1e3]}`:                 "is no whole number",
		`json: {/n: [[1]]}`:                 "allow[0].json./n is a list",
		`json: {/model: [x]}, tls: any`:     "allow[0] has json, which needs requests that can be seen, and tls or ech",
		`json: {/model: [x], /model: [y]}`:  "allow[0].json./model stands a second time",
		`jsons: {/model: [x]}`:              `allow[0] has no key "jsons"; did you mean "json"?`,
		`json: {/model: [x], "/a\nb": [y]}`: "has control characters",
	} {
		_, err := Parse("f", []byte("version: 1\nallow: [{host: a.test, "+rule+"}]"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}
