package rego_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/rego"
)

func sourcesOf(texts ...string) (all []rego.Source) {
	for i, text := range texts {
		all = append(all, rego.Source{Name: string(rune('a'+i)) + ".rego", Text: []byte(text)})
	}
	return all
}

func loadAsked(t *testing.T, o rego.Options, texts ...string) *rego.Evaluator {
	t.Helper()
	o.Deadline = patient
	e, err := rego.Load(sourcesOf(texts...), o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestACeilingIsAQuestionOfItsOwn(t *testing.T) {
	e := loadAsked(t, rego.Options{Layer: policy.Organisation}, `package egress
allow contains {"rule": "own"} if input.destination.host == "own.test"
ceiling contains {"rule": "web"} if host.matches(input.destination.host, "*.web.test")
ceiling contains {"rule": "reads"} if {
	input.destination.host == "reads.test"
	input.http.method == "GET"
}
`)
	c := e.Ceiling()
	if c == nil {
		t.Fatal("there is no ceiling")
	}
	for _, row := range []struct {
		e    *rego.Evaluator
		r    policy.Request
		want policy.Verdict
		rule string
	}{
		{e, to(t, "own.test:443"), policy.Allow, "own"},
		{e, to(t, "a.web.test:443"), policy.Abstain, ""},
		{c, to(t, "own.test:443"), policy.Abstain, ""},
		{c, to(t, "a.web.test:443"), policy.Allow, "web"},
		{c, to(t, "reads.test:443"), policy.Inspect, "reads"},
		{c, sends(t, "reads.test:443", "GET", "/"), policy.Allow, "reads"},
		{c, sends(t, "reads.test:443", "POST", "/"), policy.Abstain, ""},
		{c, asks(t, "reads.test"), policy.Allow, "reads"},
		{c, asks(t, "other.test"), policy.Abstain, ""},
	} {
		for range 2 { // once from the cache
			if d := evaluate(t, row.e, row.r); d.Verdict != row.want || d.Rule != row.rule {
				t.Errorf("%s: %v by %s, want %v by %s", row.r.Destination, d.Verdict, d.Rule, row.want, row.rule)
			}
		}
	}
	if d := evaluate(t, c, to(t, "reads.test:443")); d.Needs != policy.NeedsMethod || !slices.Equal(d.AllowedIf, []string{"method is GET"}) {
		t.Errorf("it needs %b and says %q", d.Needs, d.AllowedIf)
	}
	if !e.LooksAtRequests() {
		t.Error("a ceiling that looks at requests is passed over")
	}
	e = loadAsked(t, rego.Options{}, "package egress\nallow contains {\"rule\": \"own\"} if input.destination.port == 443\nceiling contains {\"rule\": \"x\"} if path.matches(input.http.path, \"/x/**\")\n")
	if d := evaluate(t, e, sends(t, "own.test:443", "POST", "//")); d.Verdict != policy.Allow {
		t.Errorf("what the ceiling reads has nothing to do with the other sets: %+v", d)
	}
}

func TestACeilingAloneIsAPolicy(t *testing.T) {
	e := loadAsked(t, rego.Options{}, `package egress
ceiling contains {"rule": "web"} if input.destination.port == 443
`)
	if d := evaluate(t, e, to(t, "a.test:443")); d.Verdict != policy.Abstain || e.Decides() {
		t.Errorf("%+v", d)
	}
	if d := evaluate(t, e.Ceiling(), to(t, "a.test:443")); d.Verdict != policy.Allow {
		t.Errorf("%+v", d)
	}
	if loadAsked(t, rego.Options{}, allows).Ceiling() != nil {
		t.Error("a policy without a ceiling has one")
	}
}

func TestACeilingThatGivesMoreIsAnError(t *testing.T) {
	for _, option := range []string{`"ech": "allow"`, `"tls": "any"`, `"upgrade": "websocket"`, `"inject": "key"`} {
		module := "package egress\nX contains {\"rule\": \"r\", " + option + "} if input.destination.port == 443\n"
		ceiling := loadAsked(t, rego.Options{}, strings.Replace(module, "X", "ceiling", 1)).Ceiling()
		bare := loadAsked(t, rego.Options{Bare: true}, strings.Replace(module, "X", "allow", 1))
		for name, e := range map[string]policy.Evaluator{"a ceiling": ceiling, "a bare policy": bare} {
			r := sends(t, "a.test:443", "GET", "/")
			if d, err := e.Evaluate(t.Context(), &r); err == nil || d.Verdict != policy.Deny {
				t.Errorf("%s with %s: %+v", name, option, d)
			}
		}
	}
}

func TestPackagesOfSandboxes(t *testing.T) {
	o := rego.Options{Layer: policy.Organisation, Sandboxes: []string{"web", "my-ci.1", "idle"}}
	e := loadAsked(t, o, "package egress\ndeny contains {\"rule\": \"org\"} if input.destination.port == 22\n",
		"package egress.web\nallow contains {\"rule\": \"one\"} if input.destination.host == \"a.test\"\n",
		"package egress[\"my-ci.1\"]\ndeny contains {\"rule\": \"never\"} if input.http.method == \"POST\"\n")
	web, ci := e.Sandbox("web"), e.Sandbox("my-ci.1")
	if web == nil || ci == nil || e.Sandbox("idle") != nil || e.Sandbox("other") != nil {
		t.Fatal("the packages were not told apart")
	}
	if !web.Allows() || ci.Allows() || e.Allows() {
		t.Error("which of them list what is allowed is wrong")
	}
	for _, row := range []struct {
		e    *rego.Evaluator
		r    policy.Request
		want policy.Verdict
		rule string
	}{
		{e, to(t, "a.test:22"), policy.Deny, "org"}, {e, to(t, "a.test:443"), policy.Abstain, ""},
		{web, to(t, "a.test:22"), policy.Allow, "one"}, {web, to(t, "b.test:443"), policy.Abstain, ""},
		{ci, to(t, "a.test:22"), policy.Abstain, ""}, {ci, sends(t, "a.test:443", "POST", "/"), policy.Deny, "never"},
	} {
		d := evaluate(t, row.e, row.r)
		if d.Verdict != row.want || d.Rule != row.rule || d.Rule != "" && (d.Layer == policy.PerSandbox) == (row.e == e) {
			t.Errorf("%s: %+v, want %v by %s", row.r.Destination, d, row.want, row.rule)
		}
	}
}

func TestSandboxes(t *testing.T) {
	names, egress := rego.Sandboxes(sourcesOf(
		"package egress.web\nallow contains {\"rule\": \"a\"}", "package egress[\"my-ci\"]\nx := 1\ndeny contains {\"rule\": \"a\"}",
		"package egress.helpers\nx := 1", "package egress.a.b\ndeny contains {\"rule\": \"a\"}", "no Rego", "package egress.web\nask contains {\"rule\": \"b\"}",
	))
	if !slices.Equal(names, []string{"my-ci", "web"}) || egress {
		t.Errorf("%q, %t", names, egress)
	}
	if _, egress := rego.Sandboxes(sourcesOf("package egress\nceiling contains {\"rule\": \"a\"}")); !egress {
		t.Error("a ceiling decides nothing")
	}
}

func TestPackagesOfNobodyAreRefused(t *testing.T) {
	o := rego.Options{Sandboxes: []string{"web", "data-lab"}}
	for _, row := range []struct {
		o           rego.Options
		other, want string
	}{
		{o, "package egress.wbe\ndeny contains {\"rule\": \"d\"}", `b.rego:2:1: nobody asks deny of package egress.wbe; no sandbox is named wbe; did you mean package egress["web"]?`},
		{o, "package egress.data_lab\nallow contains {\"rule\": \"d\"}", `did you mean package egress["data-lab"]?`},
		{o, "package egress.marketing\ndeny contains {\"rule\": \"d\"}", "no sandbox is named marketing; name one of web, data-lab"},
		{o, "package egress.web\nceiling contains {\"rule\": \"d\"}", "nobody asks ceiling of package egress.web; a ceiling stands in package egress alone"},
		{o, "package egress.web\ndenies contains {\"rule\": \"d\"}\nask contains {\"rule\": \"d\"}", "nothing reads denies; write deny"},
		{o, "package egress.web\ndeny := 1", "deny is a set of reasons"},
		{o, "package egress\nceilings contains {\"rule\": \"d\"}", "nothing reads ceilings; write ceiling"},
		{o, "package egress\nceiling := true", "ceiling is a set of reasons"},
		{o, "package other\nceiling contains {\"rule\": \"d\"}", "nobody asks ceiling of package other"},
		{rego.Options{}, "package egress.ceiling\nx := 1", "egress.ceiling is asked as a set"},
	} {
		if got := refused(t, sourcesOf(allows, row.other), row.o); !strings.Contains(got, row.want) {
			t.Errorf("%s: %s, want %s", row.other, got, row.want)
		}
	}
	own := rego.Options{Package: "egress.web"}
	for other, want := range map[string]string{
		"package egress\ndeny contains {\"rule\": \"d\"}":            "nobody asks deny of package egress; write it as deny in package egress.web",
		"package egress.ci\ndeny contains {\"rule\": \"d\"}":         "nobody asks deny of package egress.ci",
		"package egress.web\nceiling contains {\"rule\": \"d\"}":     "nobody asks ceiling of package egress.web",
		"package egress.web.deny\nuploads contains {\"rule\": \"\"}": "egress.web.deny is asked as a set",
	} {
		if got := refused(t, sourcesOf("package egress.web\nallow contains {\"rule\": \"a\"}", other), own); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", other, got, want)
		}
	}
}
