package rego_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

// unsound are policies that compile, and fail at some request or at each one. Each says on which line.
var unsound = []struct {
	name, text, data string
	line             int
	says             string
}{
	{"a message beside the rule", `deny contains {"rule": "x", "msg": "no"} if input.http.method == "BREW"`, "", 2, `"reason"`},
	{"conftest's message", "deny contains msg if {\n\tinput.http.method == \"BREW\"\n\tmsg := sprintf(\"no %s\", [input.http.path])\n}", "", 2, `"reason": msg`},
	{"a string", `allow contains "api" if input.destination.host == "never.example.com"`, "", 2, "an object"},
	{"a number", `allow contains 1 if input.destination.host == "never.example.com"`, "", 2, "an object"},
	{"no rule", `deny contains {"reason": "no"} if input.http.method == "BREW"`, "", 2, "no rule"},
	{"a rule with a space", `deny contains {"rule": "no uploads"} if input.http.method == "BREW"`, "", 2, "without spaces"},
	{"a budget of nothing beside a computed reason", `allow contains {"rule": "x", "max_bytes_up": 0, "reason": input.http.path} if input.http.method == "BREW"`, "", 2, "at least 1"},
	{"a reason that is a number", `deny contains {"rule": "x", "reason": count(input.http.path)} if input.http.method == "BREW"`, "", 2, "string"},
	{"a member by a variable", "deny contains m if {\n\tinput.http.method == \"BREW\"\n\tm := {\"rule\": \"x\", \"details\": {}}\n}", "", 2, `"reason"`},
	{"members of the data", "deny contains m if {\n\tsome m in data.members\n\tinput.http.method == \"BREW\"\n}", `{"members": [{"rule": "a"}, {"name": "b"}]}`, 2, `"name"`},
	{"members of a rule", "deny contains m if {\n\tsome m in members\n\tinput.http.method == \"BREW\"\n}\nmembers := [{\"rule\": \"a\"}, \"b\"]", "", 2, "an object"},
	{"a member that a function makes", "deny contains said(\"x\") if input.http.method == \"BREW\"\nsaid(name) := {\"rule\": name, \"severity\": \"high\"}", "", 2, `"severity"`},

	{"a pattern with a port in a list", `allow contains {"rule": "a"} if host.any(input.destination.host, ["*.github.com", "github.com:443"])`, "", 2, "github.com:443"},
	{"a pattern with a port in a set", `allow contains {"rule": "a"} if host.any(input.destination.host, {"*.github.com", "github.com:443"})`, "", 2, "github.com:443"},
	{"a suffix without its star", `allow contains {"rule": "a"} if host.any(input.destination.host, [".github.com"])`, "", 2, ".github.com"},
	{"a prefix with host bits", "deny contains {\"rule\": \"a\"} if {\n\tsome a in input.destination.addresses\n\tnet.contains(\"10.0.0.1/8\", a)\n}", "", 4, "10.0.0.1/8"},
	{"a prefix with host bits in a list", `deny contains {"rule": "a"} if net.any(["10.0.0.1/8"], input.destination.addresses)`, "", 2, "10.0.0.1/8"},
	{"a path without a slash", `allow contains {"rule": "a"} if path.any(input.http.path, ["repos/**"])`, "", 2, "repos/**"},
	{"a time that is none", `deny contains {"rule": "a"} if time.between(input.time, "UTC", "9:00", "25:00")`, "", 2, "HH:MM"},
	{"a zone that is none", `deny contains {"rule": "a"} if time.office_hours(input.time, "Europe/Berlim")`, "", 2, "time zone"},
	{"a day that is none", `deny contains {"rule": "a"} if time.on(input.time, "UTC", {"Mon"})`, "", 2, "Monday"},
	{"an expression that is none", `deny contains {"rule": "a"} if { input.http.method == "BREW"; regex.match("[", input.http.path) }`, "", 2, "["},
	{"a pattern of the data", `allow contains {"rule": "a"} if host.any(input.destination.host, data.hosts)`, `{"hosts": ["a.test", "b.test:443"]}`, 2, "b.test:443"},
	{"one of the data, one by one", "allow contains {\"rule\": \"a\"} if {\n\tinput.http.method == \"BREW\"\n\tsome one in data.teams\n\thost.matches(input.destination.host, one.host)\n}", `{"teams": [{"host": "a.test"}, {"host": "https://b.test"}]}`, 5, "b.test"},
	{"one of data with keys", `allow contains {"rule": "a"} if host.any(input.destination.host, data.by_sandbox[input.sandbox.name])`, `{"by_sandbox": {"ci": ["a.test"], "web": ["b.test:80"]}}`, 2, "b.test:80"},
	{"a variable", "allow contains {\"rule\": \"a\"} if {\n\tinput.http.method == \"BREW\"\n\tpattern := \"a.test:443\"\n\thost.matches(input.destination.host, pattern)\n}", "", 4, "a.test:443"},
	{"a rule", "hosts := [\"a.test:443\"]\nallow contains {\"rule\": \"a\"} if host.any(input.destination.host, hosts)", "", 2, "a.test:443"},
	{"a set of rules", "hosts contains \"a.test:443\"\nallow contains {\"rule\": \"a\"} if host.any(input.destination.host, hosts)", "", 2, "a.test:443"},
	{"an argument that a function passes on", "allow contains {\"rule\": \"a\"} if { input.http.method == \"BREW\"; reaches(\"a.test:443\") }\nreaches(pattern) if host.matches(input.destination.host, pattern)", "", 2, "a.test:443"},
	{"two functions that pass it on", "allow contains {\"rule\": \"a\"} if { input.http.method == \"BREW\"; outer([\"a.test:443\"]) }\nouter(list) if inner(input.destination.host, list)\ninner(h, list) if host.any(h, list)", "", 2, "a.test:443"},
	{"an import", "import data.egressd.host as hosts\nallow contains {\"rule\": \"a\"} if hosts.any(input.destination.host, [\"a.test:443\"])", "", 3, "a.test:443"},
	{"within a comprehension", `allow contains {"rule": "a"} if { input.http.method == "BREW"; count([1 | host.matches(input.destination.host, "a.test:443")]) > 0 }`, "", 2, "a.test:443"},
	{"within every", `allow contains {"rule": "a"} if { input.http.method == "BREW"; every a in input.destination.addresses { net.contains("10.0.0.1/8", a) } }`, "", 2, "10.0.0.1/8"},
	{"below not", `deny contains {"rule": "a"} if { input.http.method == "BREW"; not host.matches(input.destination.host, "a.test:443") }`, "", 2, "a.test:443"},
	{"in an else", "ok if { input.http.method == \"BREW\" } else if { host.matches(input.destination.host, \"a.test:443\") }\nallow contains {\"rule\": \"a\"} if ok", "", 2, "a.test:443"},
	{"a number that is none", `deny contains {"rule": "a"} if { input.http.method == "BREW"; to_number("x") > 1 }`, "", 2, "to_number"},
	{"a number that is none, for one sandbox", `deny contains {"rule": "a"} if { input.sandbox.name == "nightly"; to_number("x") > 1 }`, "", 2, "to_number"},
	{"a member of the data, for one sandbox", "deny contains m if {\n\tinput.sandbox.name == \"nightly\"\n\tsome m in data.members\n}", `{"members": [{"rule": "a"}, {"rule": ""}]}`, 2, "a name"},
	{"a pattern that is put together, for one sandbox", `allow contains {"rule": "a"} if { input.sandbox.name == "nightly"; host.matches(input.destination.host, concat(":", ["a.test", "443"])) }`, "", 2, "a.test:443"},
	{"a name in no network", `deny contains {"rule": "a"} if net.contains("10.0.0.0/8", input.destination.host)`, "", 2, "not an address"},
	{"two values of one rule", "size := 1 if input.destination.port > 1\nsize := 2 if input.destination.port > 2\ndeny contains {\"rule\": \"a\"} if size > 1", "", 3, "conflict"},
	{"a zone of OPA's own functions", `deny contains {"rule": "a"} if { input.http.method == "BREW"; time.weekday([input.time, "Mars/Base"]) == "Monday" }`, "", 2, "time zone"},
	{"a glob that is none", "deny contains {\"rule\": \"a\"} if { input.http.method == \"BREW\"; glob.match(\"[a\", [], input.http.path) }", "", 2, ""},
	{"an expression to replace that is none", "deny contains {\"rule\": \"a\"} if { input.http.method == \"BREW\"; regex.replace(input.http.path, \"(\", \"\") == \"x\" }", "", 2, "("},
	{"a network that is none", `deny contains {"rule": "a"} if { some a in input.destination.addresses; net.cidr_contains("10.0.0.0/33", a) }`, "", 2, "10.0.0.0/33"},
	{"a name that is computed, and has a space", "deny contains {\"rule\": name} if {\n\tinput.http.method == \"BREW\"\n\tname := sprintf(\"no %s\", [input.http.method])\n}", "", 2, "without spaces"},
	{"a member that is computed from text", "deny contains m if {\n\tinput.http.method == \"BREW\"\n\tm := json.unmarshal(sprintf(\"[%d]\", [input.destination.port]))\n}", "", 2, "an object"},
	{"a ceiling", `ceiling contains "api" if input.http.method == "BREW"`, "", 2, "an object"},
	{"a budget that is computed", `allow contains {"rule": "a", "max_bytes_up": count([])}`, "", 2, "at least 1"},
}

// TestWhatFailsAtARequestFailsAtLoad has each of them refused with its line.
func TestWhatFailsAtARequestFailsAtLoad(t *testing.T) {
	for _, row := range unsound {
		t.Run(row.name, func(t *testing.T) {
			sources := []rego.Source{{Name: "egress.rego", Text: []byte("package egress\n" + row.text + "\n")}}
			if row.data != "" {
				sources = append(sources, rego.Source{Name: "data.json", Text: []byte(row.data)})
			}
			_, err := rego.Load(sources, rego.Options{})
			problems, ok := errors.AsType[policy.FileError](err)
			if !ok {
				t.Fatalf("loads, or without a place: %v", err)
			}
			if p := problems[0]; p.File != "egress.rego" || p.Line != row.line || !strings.Contains(p.Message, row.says) {
				t.Errorf("%v, want line %d and %s", err, row.line, row.says)
			}
		})
	}
}

// TestASlowPolicyIsAnErrorForAPerson: the commands that answer a person refuse it, with its line. A daemon,
// which may be busy, loads it.
func TestASlowPolicyIsAnErrorForAPerson(t *testing.T) {
	sources := []rego.Source{{Name: "egress.rego", Text: []byte("package egress\n\nallow contains {\"rule\": \"r\"} if count([1 | some a in numbers.range(1, 10000); some b in numbers.range(1, 10000); a == b + 1]) > 0\n")}}
	if _, err := rego.Load(sources, rego.Options{}); err != nil {
		t.Errorf("for a daemon: %v", err)
	}
	_, err := rego.Load(sources, rego.Options{Patient: true})
	problems, ok := errors.AsType[policy.FileError](err)
	if !ok || problems[0].Line != 3 || !strings.Contains(problems[0].Message, "too long") {
		t.Errorf("for a person: %v", err)
	}
}
