package rego_test

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

func TestLint(t *testing.T) {
	const host = "input.destination.host"
	for _, row := range []struct{ condition, want string }{
		{`regex.match("example.com", ` + host + `)`, "2:45: the pattern is not anchored"},
		{`regex.match("^example[.]com", ` + host + `)`, "not anchored"},
		{`regex.match("example[.]com$", ` + host + `)`, "not anchored"},
		{`regex.match("^a[.]com$|b[.]com", ` + host + `)`, "not anchored"},
		{`regex.match("^a|b$", ` + host + `)`, "not anchored"},
		{`regex.match("(?m)^a[.]com$", ` + host + `)`, "not anchored"},
		{`regex.match("^example[.]com$", ` + host + `)`, ""},
		{`regex.match("^(a|b)[.]com$", ` + host + `)`, ""},
		{`regex.match("^a$|^b$", ` + host + `)`, ""},
		{`regex.match("^/repos", input.http.path)`, ""},
		{`regex.match("[", ` + host + `)`, ""},
		{`regex.match("x", input.tls.sni)`, "not anchored"},
		{`regex.match("x", lower(` + host + `))`, "not anchored"},
		{`{ h := ` + host + `; regex.match("x", h) }`, "not anchored"},
		{`{ d := input.http.path; regex.match("x", d) }`, ""},
		{`regex.match("x", name)`, "not anchored"},
		{`endswith(` + host + `, "example.com")`, "hosts that only end like it match as well, as evilexample.com does"},
		{`endswith(` + host + `, ".example.com")`, ""},
		{`endswith(input.http.path, ".git")`, ""},
		{`not endswith(` + host + `, "example.com")`, "hosts that only end like it"},
		{`endswith(lower(` + host + `), "example.com")`, "hosts that only end like it"},
		{`glob.match("*.example.com", null, ` + host + `)`, `with null delimiters "*" matches dots`},
		{`glob.match("*.example.com", [], ` + host + `)`, ""},
		{`glob.match("*.example.com", ["."], ` + host + `)`, ""},
		{`host.matches(` + host + `, "*.example.com")`, ""},
		{host + ` == "Example.com"`, `2:59: hosts are in lower case, so this is never one of them; write "example.com"`},
		{`"Example.com" == ` + host, "in lower case"},
		{host + ` != "Example.com"`, "in lower case"},
		{host + ` = "Example.com"`, "in lower case"},
		{host + ` == "example.com"`, ""},
		{`input.http.method == "GET"`, ""},
		{`upper(` + host + `) == "EXAMPLE.COM"`, ""},
		{`lower(` + host + `) == "Example.com"`, "in lower case"},
		{`endswith(` + host + `, ".Example.com")`, "in lower case"},
		{`startswith(input.tls.sni, "API.")`, "in lower case"},
		{host + ` in {"a.test", "B.test"}`, `2:70: hosts are in lower case, so this is never one of them; write "b.test"`},
		{host + ` in ["a.test", "b.test"]`, ""},
		{`{ h := ` + host + `; h == "Example.com" }`, "in lower case"},
		{host + ` in data.mixed`, `has "B.test"`},
		{host + ` in data.plain`, ""},
		{`not net.cidr_contains("10.0.0.0/8", ` + host + `)`, "2:69: a host that is a name lies in no network"},
		{`not net.contains("10.0.0.0/8", ` + host + `)`, "a host that is a name"},
		{`not net.any(["10.0.0.0/8"], [` + host + `])`, ""},
		{`net.contains("10.0.0.0/8", ` + host + `)`, ""},
		{`{ h := ` + host + `; not net.contains("10.0.0.0/8", h) }`, "a host that is a name"},
		{`not net.contains("10.0.0.0/8", input.tls.sni)`, "a host that is a name"},
		{`not inside`, "2:33: a host that is a name"},
		{`inside`, ""},
		{`not within("10.0.0.0/8", ` + host + `)`, "a host that is a name"},
		{`not within("10.0.0.0/8", "10.0.0.1")`, ""},
		{`{ some a in input.destination.addresses; not net.contains("10.0.0.0/8", a) }`, "one address lies outside"},
		{`{ a := input.destination.addresses[_]; not net.cidr_contains("10.0.0.0/8", a) }`, "one address lies outside"},
		{`not net.cidr_contains("10.0.0.0/8", input.destination.addresses[_])`, "one address lies outside"},
		{`{ some a in input.destination.addresses; not within("10.0.0.0/8", a) }`, "one address lies outside"},
		{`{ some a in ["10.0.0.1"]; not net.contains("10.0.0.0/8", a) }`, ""},
		{`not net.any(["10.0.0.0/8"], input.destination.addresses)`, ""},
		{`not "yes" in input.http.headers["x-a"]`, `2:46: where a request has no input.http.headers["x-a"] this is undefined, and not true`},
		{`not startswith(input.http.headers["x-a"][0], "a")`, "no input.http.headers"},
		{`not input.http.body_size <= 10`, "no input.http.body_size"},
		{`not input.http.body_size in {1, 2}`, "no input.http.body_size"},
		{`not trim_space(input.http.query) == "a"`, "no input.http.query"},
		{`input.http.body.model == "a"`, ""},
		{`{ some m in input.http.body.messages; m.role == "a" }`, ""},
		{`input.http.body.model != "a"`, ""}, // of an allow: without the member it does not hold
		{`{ h := input.http; h.body.model == "a" }`, "egressd does not hold the body for this"},
		{`{ i := input; i.http.body.model == "a" }`, "does not hold the body"},
		{`{ h := input.http; h.method == "GET" }`, ""},
		{`object.get(input, ["http", "body", "model"], "") == "a"`, "does not hold the body"},
		{`object.get(input.http, "body", {}) == {}`, "does not hold the body"},
		{`object.get(input, ["destination", "host"], "") == "a"`, ""},
		{`object.get(input.http.body, "model", "") == "a"`, ""},
		{`{ some k; input.http[k].model == "a" }`, "does not hold the body"},
		{`{ walk(input.http, [_, v]); v == "a" }`, "does not hold the body"},
		{`bodyOf(input.http)`, "does not hold the body"},
		{`contains(input.http.query, "admin")`, "2:42: the query is as the client wrote it"},
		{`input.http.query == "admin=1"`, "%61dmin"},
		{`"admin=1" == lower(input.http.query)`, "%61dmin"},
		{`regex.match("^admin=", input.http.query)`, "%61dmin"},
		{`input.http.query in {"admin=1"}`, "%61dmin"},
		{`{ q := input.http.query; startswith(q, "admin") }`, "%61dmin"},
		{`input.http.query == ""`, ""},
		{`count(input.http.query) < 10`, ""},
		{`"admin" in object.keys(urlquery.decode_object(input.http.query))`, ""},
		{`input.http.query`, ""},
		{`not host.matches(input.tls.sni, "a.test")`, "no input.tls.sni"},
		{`not input.destination.registrable in {"a.test"}`, "no input.destination.registrable"},
		{`not input.sandbox.labels.team in {"a"}`, "no input.sandbox.labels.team"},
		{`{ some name in ["x-a"]; not "yes" in input.http.headers[name] }`, "no input.http.headers"},
		{`not input.http.headers["x-a"]`, ""},
		{`not input.http.headers["x-a"][0] == "yes"`, ""},
		{`not "x-a" in object.keys(input.http.headers)`, ""},
		{`not count([v | some v in input.http.headers["x-a"]]) == 0`, ""},
		{`not "yes" in object.get(input.http.headers, "x-a", [])`, ""},
		{`not path.matches(input.http.path, "/x")`, ""},
		{`not net.any(["10.0.0.0/8"], input.destination.addresses)`, ""},
		{`"yes" in input.http.headers["x-a"]`, ""},
	} {
		text := "package egress\nallow contains {\"rule\": \"r\"} if " + row.condition + "\n\nname := input.dns.name\ninside if net.cidr_contains(\"10.0.0.0/8\", input.destination.host)\nwithin(p, x) if net.contains(p, x)\nbodyOf(h) if h.body.model == \"a\"\n"
		found := rego.Lint([]rego.Source{
			{Name: "egress.rego", Text: []byte(text)},
			{Name: "lists.json", Text: []byte(`{"mixed": ["a.test", "B.test", "C.test"], "plain": ["a.test"]}`)},
		})
		said := ""
		for _, p := range found {
			said += p.String() + "\n"
		}
		if (said == "") != (row.want == "") || !strings.Contains(said, row.want) || strings.Count(said, "\n") > 1 {
			t.Errorf("%s: %q, want %q", row.condition, said, row.want)
		}
	}
}

// TestLintKnowsWhichBodiesAreHeld: of a rule that denies a body, either the body is asked for or the lint says that it is not.
func TestLintKnowsWhichBodiesAreHeld(t *testing.T) {
	for _, condition := range []string{
		`input.http.body.model == "a"`, `input.http.body["model"] == "a"`, `{ b := input.http.body; b.model == "a" }`, `object.get(input.http.body, "model", "") == "a"`, `model(input.http.body)`,
		`{ h := input.http; h.body.model == "a" }`, `{ i := input; i.http.body.model == "a" }`, `object.get(input, ["http", "body", "model"], "") == "a"`, `object.get(input.http, "body", {}).model == "a"`,
		`{ walk(input, [_, v]); v == "a" }`, `bodyOf(input.http)`, `{ some k; input.http[k].model == "a" }`, `{ some k; input[k].body.model == "a" }`,
	} {
		text := "package egress\nallow contains {\"rule\": \"a\"}\ndeny contains {\"rule\": \"d\"} if " + condition + "\nmodel(b) if b.model == \"a\"\nbodyOf(h) if h.body.model == \"a\"\n"
		r := sends(t, "10.0.0.1:443", "POST", "/")
		r.HTTP.BodySize = 13
		d := evaluate(t, load(t, text), r)
		held, found := d.Needs&policy.NeedsBody != 0, rego.Lint([]rego.Source{{Name: "egress.rego", Text: []byte(text)}})
		if held == (len(found) > 0) {
			t.Errorf("%s: the body is held: %t, and the lint says %v", condition, held, found)
		}
	}
	for condition, named := range map[string]bool{
		`input.http.body.model != "a"`: true, `"a" != input.http.body.model`: true, `not may`: false, `input.http.body != {}`: false, `input.http.method != "GET"`: false,
	} {
		text := "package egress\ndeny contains {\"rule\": \"d\"} if " + condition + "\nmay if input.http.body.model == \"a\"\n"
		if found := rego.Lint([]rego.Source{{Name: "egress.rego", Text: []byte(text)}}); (len(found) == 1) != named {
			t.Errorf("%s: %v", condition, found)
		}
	}
}

func TestLintLeavesTestsAndWhatIsNoRego(t *testing.T) {
	found := rego.Lint([]rego.Source{
		{Name: "egress_test.rego", Text: []byte("package egress_test\ntest_x if endswith(input.destination.host, \"a\")\n")},
		{Name: "broken.rego", Text: []byte("package {")},
		{Name: "data.json", Text: []byte("{}")},
	})
	if len(found) != 0 {
		t.Error(found)
	}
}

func TestFormat(t *testing.T) {
	const loose = "package egress\nallow contains {\"rule\":\"r\"} if {host.matches(input.destination.host,\"a.test\");net.contains(\"10.0.0.0/8\",\"10.0.0.1\")}\n"
	once, err := rego.Format(rego.Source{Name: "f.rego", Text: []byte(loose)})
	if err != nil || string(once) == loose {
		t.Fatal(string(once), err)
	}
	if twice, err := rego.Format(rego.Source{Name: "f.rego", Text: once}); err != nil || string(twice) != string(once) {
		t.Errorf("the second time it is\n%s%v", twice, err)
	}
	if _, err := rego.Load([]rego.Source{{Name: "f.rego", Text: once}}, rego.Options{}); err != nil {
		t.Errorf("%v in\n%s", err, once)
	}
	if _, err := rego.Format(rego.Source{Name: "f.rego", Text: []byte("package egress\nallow {\n")}); err == nil || !strings.HasPrefix(err.Error(), "f.rego:") {
		t.Error(err)
	}
}

// TestLintKnowsWhatNotMeans compares what it says with what comes of it, for a request
// that has nothing it can do without.
func TestLintKnowsWhatNotMeans(t *testing.T) {
	for _, condition := range []string{
		`not "yes" in input.http.headers["x-a"]`, `not startswith(input.http.headers["x-a"][0], "a")`, `not input.http.headers["x-a"]`,
		`not input.http.headers["x-a"][0] == "yes"`, `not "x-a" in object.keys(input.http.headers)`, `not input.http.headers["x-a"][0] != "yes"`,
		`not count([v | some v in input.http.headers["x-a"]]) > 0`, `not "yes" in object.get(input.http.headers, "x-a", [])`,
		`not input.http.body_size <= 10`, `not input.http.body_size == 10`, `not count(input.http.query) == 5`, `not input.tls.ja4 == lower("A")`,
		`not host.matches(input.tls.sni, "a.test")`, `not input.tls.sni == "a.test"`, `not path.matches(input.http.path, "/x")`,
		`not input.destination.registrable in {"a.test"}`, `not input.sandbox.labels.team in {"a"}`, `not input.http.method in {"GET"}`,
	} {
		text := "package egress\nallow contains {\"rule\": \"a\"}\ndeny contains {\"rule\": \"d\"} if " + condition
		r := sends(t, "10.0.0.1:80", "POST", "/")
		r.TLS, r.HTTP.BodySize = nil, -1
		d := evaluate(t, load(t, text), r)
		found := rego.Lint([]rego.Source{{Name: "egress.rego", Text: []byte(text)}})
		if (d.Verdict == policy.Deny) != (len(found) == 0) {
			t.Errorf("%s: %v, and lint says %v", condition, d.Verdict, found)
		}
	}
}
