package rego_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

func refused(t *testing.T, sources []rego.Source, o rego.Options) string {
	t.Helper()
	e, err := rego.Load(sources, o)
	if err == nil || e != nil {
		t.Fatalf("loaded: %v, %v", e, err)
	}
	return err.Error()
}

func TestLoadRefuses(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"a misspelt field", "package egress\n\nallow contains {\"rule\": \"r\"} if input.destination.hots == \"a.test\"", "egress.rego:3:33: undefined ref: input.destination.hots"},
		{"a misspelt part", "package egress\nallow contains {\"rule\": \"r\"} if input.destinatoin.host == \"a.test\"", "egress.rego:2:33"},
		{"a misspelt field of a part in a variable", "package egress\nallow contains {\"rule\": \"r\"} if { d := input.destination; d.hots == \"a.test\" }", "egress.rego:2"},
		{"a number for a text", "package egress\nallow contains {\"rule\": \"r\"} if input.destination.port == \"443\"", "egress.rego:2"},
		{"a misspelt function", "package egress\nallow contains {\"rule\": \"r\"} if host.match(input.destination.host, \"a.test\")", "egress.rego:2"},
		{"a pattern with a scheme", "package egress\nallow contains {\"rule\": \"r\"} if host.matches(input.destination.host, \"https://a.test\")", "egress.rego:2:70: "},
		{"a pattern with a port, by its long name", "package egress\nallow contains {\"rule\": \"r\"} if data.egressd.host.matches(input.destination.host, \"a.test:443\")", "egress.rego:2:"},
		{"a pattern with a port, by an import", "package egress\nimport data.egressd.host as h\nallow contains {\"rule\": \"r\"} if h.matches(input.destination.host, \"a.test:443\")", "egress.rego:3:"},
		{"a pattern of paths with a query", "package egress\nallow contains {\"rule\": \"r\"} if path.matches(input.http.path, \"/a?b\")", "egress.rego:2:"},
		{"a syntax error", "package egress\nallow contains {", "egress.rego:2:"},
		{"a half-written file", "package egr", "no file has a rule"},
		{"an empty file", "", "egress.rego:1:1: "},
		{"no package", "allow := true", "egress.rego:1:1"},
		{"another package", "package policy\nallow contains {\"rule\": \"r\"}", "egress.rego:2:1: nobody asks allow of package policy; write it as allow in package egress"},
		{"none of the sets", "package egress\nfiles contains {\"rule\": \"r\"}", "no file has a rule for allow, ask or deny"},
		{"a value for a set", "package egress\nallow := true", "egress.rego:2:1: allow is a set"},
		{"a function for a set", "package egress\ndeny(x) if x", "egress.rego:2:1: deny is a set"},
		{"an object for a set", "package egress\ndeny[x] := 1 if x := input.via", "egress.rego:2:1: deny is a set"},
		{"the library's package", "package egressd.host\nmatches(_, _) := true", "egress.rego:1:1: package egressd belongs"},
		{"OPA's package", "package system\nx := 1", "package system belongs"},
		{"an unused variable", "package egress\nallow contains {\"rule\": \"r\"} if { x := 1 }", "egress.rego:2"},
		{"the syntax of old versions", "package egress\nallow[{\"rule\": \"r\"}] { true }", "egress.rego:2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := refused(t, []rego.Source{{Name: "egress.rego", Text: []byte(row.text)}}, rego.Options{}); !strings.Contains(got, row.want) {
				t.Errorf("said %q, want %q", got, row.want)
			}
		})
	}
}

func TestLoadNamesEveryProblem(t *testing.T) {
	_, err := rego.Load([]rego.Source{
		{Name: "a.rego", Text: []byte("package egress\nallow contains {")},
		{Name: "b.rego", Text: []byte("package egress\ndeny contains }")},
		{Name: "notes.txt", Text: []byte("hello")},
	}, rego.Options{})
	var problems policy.FileError
	if !errors.As(err, &problems) || len(problems) < 3 {
		t.Fatal(err)
	}
	text := "package egress\n" + strings.Repeat("allow contains {\"rule\": \"r\"} if input.destination.hots == \"a\"\n", 15)
	_, err = rego.Load([]rego.Source{{Name: "c.rego", Text: []byte(text)}}, rego.Options{})
	if !errors.As(err, &problems) || len(problems) != 15 || problems[14].File != "c.rego" || problems[14].Line != 16 {
		t.Fatal(err)
	}
}

func TestSourcesThatClash(t *testing.T) {
	good := rego.Source{Name: "egress.rego", Text: []byte("package egress\nallow contains {\"rule\": \"r\"}")}
	for name, sources := range map[string][]rego.Source{
		"the file is given twice":              {good, good},
		"is in another file too":               {good, {Name: "a.json", Text: []byte(`{"x": 1}`)}, {Name: "b.yaml", Text: []byte("x: 2")}},
		"belongs to egressd":                   {good, {Name: "a.json", Text: []byte(`{"egressd": {}}`)}},
		"does not hold one":                    {good, {Name: "a.json", Text: []byte(`[1]`)}},
		"conflicting rule":                     {good, {Name: "a.json", Text: []byte(`{"egress": {"allow": []}}`)}},
		"it holds nothing":                     {good, {Name: "a.yaml"}},
		"nothing; write an object":             {good, {Name: "a.json", Text: []byte("null")}},
		"take the file away":                   {good, {Name: "a.json", Text: []byte("{}")}},
		"or take the file away":                {good, {Name: "a.yaml", Text: []byte("# later\n")}},
		"more than one document":               {good, {Name: "a.yaml", Text: []byte("x: 1\n---\nblocked: [a.test]\n")}},
		"put each in a file":                   {good, {Name: "a.yaml", Text: []byte("x: 1\r--- {y: 2}\r")}},
		"is not UTF-8":                         {good, {Name: "a.yaml", Text: []byte("\xff\xfex\x00:\x00 \x001\x00\n\x00")}},
		`the key "b" twice`:                    {good, {Name: "a.json", Text: []byte(`{"a": [{"b": ["a.test"], "c": 1, "b": []}]}`)}},
		`a.yaml:4:1: it has the key "b" twice`: {good, {Name: "a.yaml", Text: []byte("lists:\n  - b: [a.test]\n    c: 1\n    b: []\n")}},
		`a.yaml:1:1: it has the key "c" twice`: {good, {Name: "a.yaml", Text: []byte("lists: {c: 1, \"c\": 2}\n")}},
		`the key "blocked" twice`:              {good, {Name: "a.yaml", Text: []byte("blocked: [a.test]\nx: 1\n\"blocked\" : []\n")}},
		"in lower case":                        {good, {Name: "deny.REGO", Text: []byte("package egress\ndeny contains {\"rule\": \"d\"}")}},
		"larger than":                          {good, {Name: "a.json", Text: make([]byte, 65<<20)}},
	} {
		if got := refused(t, sources, rego.Options{}); !strings.Contains(got, name) {
			t.Errorf("said %q, want %q", got, name)
		}
	}
	tests := rego.Source{Name: "egress_test.rego", Text: []byte("package egress_test\nthis is no Rego")}
	if _, err := rego.Load([]rego.Source{good, tests}, rego.Options{}); err != nil {
		t.Errorf("tests are loaded: %v", err)
	}
}

// TestWhatReachesOutsideDoesNotExist calls what a sealed policy must not have.
func TestWhatReachesOutsideDoesNotExist(t *testing.T) {
	for _, call := range []string{
		`http.send({"method": "GET", "url": "http://a.test"})`, `net.lookup_ip_addr("a.test")`, `opa.runtime().env`, `rand.intn("x", 10)`,
		`uuid.rfc4122("x")`, `trace("x")`, `rego.parse_module("x", "package x")`, `json.match_schema({}, {"$ref": "http://a.test"})`,
		`json.verify_schema({"$ref": "http://a.test"})`, `io.jwt.encode_sign({}, {}, {})`, `io.jwt.decode_verify("x", {})`,
		`providers.aws.sign_req({}, {}, 0)`, `strings.render_template("{{.x}}", {"x": 1})`, `regex.globs_match("a*", "b*")`, `graphql.is_valid("x", "y")`,
		`crypto.x509.parse_and_verify_certificates("x")`, `regex.template_match("x", "x", "{", "}")`, `regex.is_valid("x")`, `strings.replace_n({}, "x")`,
		`bits.lsh(1, 1)`, `product([1])`, `graph.reachable_paths({}, ["x"])`,
	} {
		text := "package egress\n\nallow contains {\"rule\": \"r\", \"reason\": x} if x := " + call
		got := refused(t, []rego.Source{{Name: "egress.rego", Text: []byte(text)}}, rego.Options{})
		if !strings.Contains(got, "egress.rego:3:") || !strings.Contains(got, "undefined function") || !strings.Contains(got, "leaves out") {
			t.Errorf("%s: %s", call, got)
		}
	}
}

// TestWhatIsWithheldHasSomethingInstead, which policies have.
func TestWhatIsWithheldHasSomethingInstead(t *testing.T) {
	kept := map[string]bool{}
	for _, b := range rego.Kept() {
		kept[b] = true
	}
	for name, instead := range rego.Withheld() {
		if kept[name] {
			t.Errorf("%s is not withheld", name)
		}
		for _, word := range regexp.MustCompile(`[a-z0-9]+(\.[a-z0-9_]+)+`).FindAllString(instead, -1) {
			if !kept[word] && word != "input.destination.addresses" && word != "host.matches" && word != "path.matches" {
				t.Errorf("%s: policies have no %s either", name, word)
			}
		}
	}
}

// TestNewBuiltinsAreLookedAt fails when a version of OPA brings built-ins that
// nobody has judged.
func TestNewBuiltinsAreLookedAt(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "builtins.txt"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, name := range strings.Fields(string(text)) {
		known[name] = true
	}
	for _, b := range ast.CapabilitiesForThisVersion().Builtins {
		if !known[b.Name] {
			t.Errorf("%s is new: judge it, then add it to testdata/builtins.txt", b.Name)
		}
	}
}

func TestPackages(t *testing.T) {
	sources := []rego.Source{{Name: "egress.rego", Text: []byte("package egress\nallow contains {\"rule\": \"org\"}")}, {Name: "web.rego", Text: []byte("package egress[\"my-web.1\"]\ndeny contains {\"rule\": \"web\"}")}}
	for name, want := range map[string]string{"": "org", "egress": "org", "egress.my-web.1": "web"} {
		given := sources[:1] // the other would be asked by nobody
		if want == "web" {
			given = sources[1:]
		}
		e, err := rego.Load(given, rego.Options{Package: name})
		if err != nil {
			t.Fatal(err)
		}
		if d := evaluate(t, e, to(t, "a.test:443")); d.Rule != want {
			t.Errorf("package %q: %+v", name, d)
		}
	}
	for _, name := range []string{"egress.", "egressd", "data.egress", "egress.other", "egress.my-web.1"} {
		refused(t, sources, rego.Options{Package: name})
	}
}

func TestAModuleMayMeanSomethingElseByAName(t *testing.T) {
	e := load(t, "package egress\nreplace(x) := concat(\"\", [x, \"2\"])\nallow contains {\"rule\": replace(\"s\")}")
	if d := evaluate(t, e, to(t, "a.test:443")); d.Rule != "s2" {
		t.Errorf("%+v", d)
	}
	e = load(t, "package egress\nallow contains {\"rule\": \"r\"} if { host.matches(input.destination.host, \"*.test\"); net.cidr_contains(\"10.0.0.0/8\", \"10.0.0.1\"); time.now_ns() > 0; time.on(input.time, \"UTC\", {\"Wednesday\"}) }")
	if d := evaluate(t, e, to(t, "a.test:443")); d.Verdict != policy.Allow {
		t.Errorf("library and built-ins side by side: %+v", d)
	}
}

// TestDataOfOneDocument has what looks like several documents and is one.
func TestDataOfOneDocument(t *testing.T) {
	good := rego.Source{Name: "egress.rego", Text: []byte("package egress\nallow contains {\"rule\": \"r\"}")}
	for _, text := range []string{
		"---\nx: 1\n", "# lists\n\n---\nx: 1\n...\n", "%YAML 1.1\n---\nx: 1\n", "x: |\n  ---\n  y\n", "x: ----\n", "\ufeffx: 1\n",
		`{"x": {"x": 1}, "y": [{"x": 1}, {"x": 2}]}`,
	} {
		if _, err := rego.Load([]rego.Source{good, {Name: "a.yaml", Text: []byte(text)}}, rego.Options{}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestVariablesThatEqualEachOther loads a policy in which each variable equals each other one. There are more
// ways among them than anybody can follow.
func TestVariablesThatEqualEachOther(t *testing.T) {
	var b strings.Builder
	b.WriteString("package egress\n\nallow contains {\"rule\": \"r\"} if {\n")
	for i := range 10 {
		fmt.Fprintf(&b, "\tx%d := input.http.query\n", i)
		for j := range i {
			fmt.Fprintf(&b, "\tx%d = x%d\n", i, j)
		}
	}
	b.WriteString("\tregex.match(x3, input.http.path)\n\tinput.http.headers.a[_] == x4\n}\n")
	source := []rego.Source{{Name: "egress.rego", Text: []byte(b.String())}}
	if _, err := rego.Load(source, rego.Options{}); err != nil {
		t.Error(err)
	}
	rego.Lint(source)
}
