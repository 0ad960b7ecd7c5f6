package rego_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/rego"
)

const tested = `package egress

allow contains {"rule": "docs"} if host.matches(input.destination.host, "docs.test")

deny contains {"rule": "lists"} if host.any(input.destination.host, data.refused)

deny contains {"rule": "never-asked"} if {
	input.destination.port == 22
	input.via == "connect"
}
`

const tests = `package egress_test

import data.egress

test_allowed if egress.allow with input as {"destination": {"host": "docs.test"}}

test_rule if {
	some r in egress.deny with input as {"destination": {"host": "a.refused.test"}}
	r.rule == "lists"
}

test_red if {
	print("the host is", "other.test")
	{"rule": "docs"} in egress.allow with input as {"destination": {"host": "other.test"}}
}

test_error if not host.canonical("no host")

test_cases[name] if {
	some name, host in {"good": "docs.test", "bad": "evil.test"}
	{"rule": "docs"} in egress.allow with input as {"destination": {"host": host}}
}

todo_test_later if false
`

func TestTestSaysWhatCameOfEachRule(t *testing.T) {
	run, err := rego.Options{}.Test(t.Context(), []rego.Source{
		{Name: "p/egress.rego", Text: []byte(tested)},
		{Name: "p/egress_test.rego", Text: []byte(tests)},
		{Name: "p/lists.json", Text: []byte(`{"refused": ["*.refused.test"]}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range run.Results {
		got[r.Name] = string(r.Outcome) + " " + r.Message
		if r.File != "p/egress_test.rego" || r.Line < 5 {
			t.Errorf("%s has the place %s:%d", r.Name, r.File, r.Line)
		}
		if r.Name == "egress_test.test_red" && r.Output != "the host is other.test\n" {
			t.Errorf("%s printed %q", r.Name, r.Output)
		}
	}
	for name, want := range map[string]string{
		"egress_test.test_allowed":    "pass ",
		"egress_test.test_rule":       "pass ",
		"egress_test.test_red":        "fail it is not true",
		"egress_test.test_error":      "fail ",
		"egress_test.todo_test_later": "skip ",
	} {
		if !strings.HasPrefix(got[name], want) {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if !slices.IsSortedFunc(run.Results, func(a, b rego.TestResult) int { return a.Line - b.Line }) {
		t.Error("the results are not in the order of their lines")
	}
	last := rego.LineRange{First: 9, Last: 9}
	if len(run.Coverage) != 1 || run.Coverage[0].File != "p/egress.rego" || run.Coverage[0].Percent <= 0 || run.Coverage[0].Percent >= 100 ||
		!slices.Contains(run.Coverage[0].Missed, last) {
		t.Errorf("coverage is %+v", run.Coverage)
	}
}

// TestTestsAreSealed has tests refused that would be no tests of what decides.
func TestTestsAreSealed(t *testing.T) {
	for name, text := range map[string]string{
		"the network":          `test_x if http.send({"method": "get", "url": "http://a.test/"})`,
		"the environment":      `test_x if opa.runtime()`,
		"a field that is none": `test_x if input.destination.hots == "a.test"`,
		"what is not Rego":     `test_x if {`,
	} {
		run, err := rego.Options{}.Test(t.Context(), []rego.Source{
			{Name: "egress.rego", Text: []byte(tested)},
			{Name: "egress_test.rego", Text: []byte("package egress_test\n" + text + "\n")},
		})
		if err == nil || run != nil || !strings.HasPrefix(err.Error(), "egress_test.rego:") {
			t.Errorf("%s: %v, %v", name, run, err)
		}
	}
}

func TestTestsEndWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := rego.Options{}.Test(ctx, []rego.Source{
		{Name: "egress.rego", Text: []byte(tested)},
		{Name: "egress_test.rego", Text: []byte("package egress_test\ntest_x if true\n")},
	})
	if err == nil {
		t.Error("tests that were called off are green")
	}
}

func TestLooksAtRequests(t *testing.T) {
	for text, want := range map[string]bool{
		`allow contains {"rule": "r"} if host.matches(input.destination.host, "a.test")`:                  false,
		`allow contains {"rule": "r"} if input.tls.sni == "a.test"`:                                       false,
		`allow contains {"rule": "r"} if input.http.method == "GET"`:                                      true,
		`deny contains {"rule": "r"} if helper` + "\n" + `helper if input["http"].path == "/"`:            true,
		`allow contains {"rule": "r"} if { some part; input[part].host == "a.test" }`:                     true,
		`allow contains {"rule": "r", "inject": "key"} if host.matches(input.destination.host, "a.test")`: true,
	} {
		e, err := rego.Load([]rego.Source{{Name: "egress.rego", Text: []byte("package egress\n" + text + "\n")}}, rego.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if e.LooksAtRequests() != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

// TestTestsReplaceBoundedBuiltIns has tests that replace what is called by another
// name here, and that put it in the place of something else.
func TestTestsReplaceBoundedBuiltIns(t *testing.T) {
	run, err := rego.Options{}.Test(context.Background(), []rego.Source{
		{Name: "egress.rego", Text: []byte("package egress\nallow contains {\"rule\": \"r\"} if concat(\",\", [input.via, \"b\"]) == \"x\"\njoin(a, b) := sprintf(\"%s%v\", [a, b])")},
		{Name: "egress_test.rego", Text: []byte(`package egress_test
import data.egress
mock(_, _) := "x"
test_function if count(egress.allow) == 1 with input.via as "connect" with concat as mock
test_value if count(egress.allow) == 1 with input.via as "connect" with concat as "x"
test_original if count(egress.allow) == 0 with input.via as "connect"
test_time if time.now_ns() == 5 with time.now_ns as 5
test_library if not egress.join("a.test", "b.test") with egress.join as host.matches
test_builtin if egress.join("-", ["a", "b"]) == "a-b" with egress.join as concat
`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Results) != 6 {
		t.Errorf("%d tests", len(run.Results))
	}
	for _, r := range run.Results {
		if r.Outcome != rego.Pass {
			t.Errorf("%s: %s", r.Name, r.Message)
		}
	}
}
