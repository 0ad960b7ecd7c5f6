package file

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

func compiledIn(t *testing.T, text string, env Environment) *policy.Policy {
	t.Helper()
	f, err := Parse("t.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(env)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func judged(t *testing.T, p *policy.Policy, sandbox, what string) policy.Decision {
	t.Helper()
	r, err := ParseCheck(what)
	if err != nil {
		t.Fatal(err)
	}
	r.Sandbox, r.Usage = policy.Sandbox{Name: sandbox}, new(policy.Usage)
	d, _ := p.Judge(context.Background(), r)
	return d
}

const observedSandboxes = `version: 1
allow: [a.example.com, {host: api.example.com, methods: [GET]}, 10.0.0.5:8443, {host: ask.example.com, id: plain}]
deny: ["*.denied.example"]
ask: ["*.asked.example"]
ceiling: ["*.example.com", "*.fresh.example", "*.denied.example", "*.asked.example", 10.0.0.5:8443, "93.184.216.0/24:*"]
sandboxes:
  - {name: narrow, token_file: t, allow: [a.example.com, {host: api.example.com, methods: [GET]}], mode: observe}
  - {name: "ci-{id}", token_file: u, mode: observe, until: 2999-12-31T23:00:00+01:00}
  - {name: past, token_file: v, mode: observe, until: 2020-01-01T00:00:00Z}
  - {name: plain, token_file: w}
tests: ["deny https://x.fresh.example/"]
`

// TestOneSandboxIsObserved has sandboxes that are observed beside those that are not.
func TestOneSandboxIsObserved(t *testing.T) {
	p := compiledIn(t, observedSandboxes, Environment{Inspection: true})
	for _, row := range []struct {
		sandbox, what string
		want          policy.Verdict
		learned       bool
	}{
		{"narrow", "a.example.com:443", policy.Allow, false},
		{"narrow", "x.fresh.example:443", policy.Allow, true},
		{"narrow", "ask.example.com:443", policy.Allow, true}, // a line of the file, which its own list does not have
		{"narrow", "POST http://api.example.com/", policy.Deny, false},
		{"narrow", "10.0.0.5:8443", policy.Deny, false}, // its own list holds for private addresses
		{"narrow", "93.184.216.34:22", policy.Allow, true},
		{"narrow", "x.denied.example:443", policy.Deny, false},
		{"narrow", "x.asked.example:443", policy.Ask, false},
		{"narrow", "outside.test:443", policy.Deny, false}, // the ceiling holds
		{"narrow", "169.254.169.254:80", policy.Deny, false},
		{"narrow", "127.0.0.1:80", policy.Deny, false},
		{"ci-7", "x.fresh.example:443", policy.Allow, true},
		{"ci-7", "10.0.0.6:443", policy.Deny, false},
		{"past", "x.fresh.example:443", policy.Deny, false},
		{"plain", "x.fresh.example:443", policy.Deny, false},
		{"unlisted", "x.fresh.example:443", policy.Deny, false},
		{"", "x.fresh.example:443", policy.Deny, false},
	} {
		if d := judged(t, p, row.sandbox, row.what); d.Verdict != row.want || (d.Rule == policy.LearnRule) != row.learned {
			t.Errorf("%s by %s: %s by %s (%s)", row.what, row.sandbox, d.Verdict, d.Rule, d.Reason)
		}
		if d := judged(t, p.Enforced(), row.sandbox, row.what); d.Rule == policy.LearnRule || row.learned && d.Verdict != policy.Deny {
			t.Errorf("%s by %s, enforced: %s by %s", row.what, row.sandbox, d.Verdict, d.Rule)
		}
	}
	var who []string
	for _, o := range p.Observing() {
		who = append(who, o.Text())
	}
	if got, want := strings.Join(who, ", "), "sandbox narrow, sandbox ci-{id} until 2999-12-31T23:00:00+01:00"; got != want {
		t.Errorf("it observes %s, want %s", got, want)
	}
}

// TestObserving has a whole file that observes, with the rows of what is learned under egressd run.
func TestObserving(t *testing.T) {
	const text = "version: 1\nmode: observe\nallow: [10.0.0.5:8443]\ndeny: [\"*.denied.example\"]\nsandboxes: [{name: narrow, token_file: t, allow: [a.example.com]}, {name: wide, token_file: u}]\n"
	p := compiledIn(t, text, Environment{Inspection: true})
	for _, row := range []struct {
		sandbox, what string
		want          policy.Verdict
	}{
		{"wide", "new.example:443", policy.Allow},
		{"wide", "x.denied.example:443", policy.Deny},
		{"wide", "10.0.0.6:8443", policy.Deny},
		{"wide", "metadata.google.internal:80", policy.Deny},
		{"wide", "egressd.internal:443", policy.Deny},
		{"narrow", "new.example:443", policy.Deny}, // a list of its own holds, unless mode: observe stands beside it
	} {
		if d := judged(t, p, row.sandbox, row.what); d.Verdict != row.want {
			t.Errorf("%s by %s: %s by %s", row.what, row.sandbox, d.Verdict, d.Rule)
		}
	}
	if plain := compiledIn(t, strings.Replace(text, "mode: observe\n", "", 1), Environment{Inspection: true}); plain.RulesID() == p.RulesID() {
		t.Error("a policy that observes has the id of one that enforces")
	}
}

// TestAnObservationEndsByItself has no reload.
func TestAnObservationEndsByItself(t *testing.T) {
	until := time.Now().Add(time.Second).Truncate(time.Second).Add(time.Second)
	p := compiledIn(t, "version: 1\nmode: observe\nuntil: "+until.Format(time.RFC3339)+"\n", Environment{})
	if d := judged(t, p, "default", "new.example:443"); d.Rule != policy.LearnRule {
		t.Fatalf("%s by %s", d.Verdict, d.Rule)
	}
	time.Sleep(time.Until(until))
	if d := judged(t, p, "default", "new.example:443"); d.Verdict != policy.Deny || d.Class != policy.DefaultDeny || len(p.Observing()) > 0 {
		t.Errorf("afterwards: %s by %s", d.Verdict, d.Rule)
	}
}

func TestModesThatChangeNothing(t *testing.T) {
	for lines, want := range map[string]string{
		"mode: observe\nuntil: tomorrow\n":                                       "a time with its zone",
		"mode: watch\n":                                                          "mode",
		"until: 2999-01-01T00:00:00Z\n":                                          "until is the end of mode: observe",
		"mode: observe\nuntil: 2999-01-01\n":                                     "a time with its zone",
		"mode: observe\nuntil: 2999-01-01T00:00:00\n":                            "a time with its zone",
		"mode: enforce\nuntil: 2999-01-01T00:00:00Z\n":                           "until is the end of mode: observe",
		"mode: observe\ndefault: allow\n":                                        "changes nothing",
		"default: allow\nsandboxes: [{name: a, token_file: t, mode: observe}]\n": "changes nothing",
		"sandboxes: [{name: a, token_file: t, until: 2999-01-01T00:00:00Z}]\n":   "sandboxes[0].until is the end",
		"sandboxes: [{name: a, token_file: t, mode: [observe]}]\n":               "mode",
		"sandboxes: [{name: a, token_file: t, mode: observe, until: {a: b}}]\n":  "a time with its zone",
	} {
		if _, err := Parse("t.yaml", []byte("version: 1\n"+lines)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", lines, err, want)
		}
	}
	if _, err := Parse("t.yaml", []byte("version: 1\ndefault: allow\nsandboxes: [{name: a, token_file: t, allow: [], mode: observe}]\n")); err != nil {
		t.Errorf("a list of its own is observed under default: allow, too: %v", err)
	}
	for _, parse := range []func(string, []byte) (*File, error){ParseOrganisation, ParseProject} {
		if _, err := parse("t.yaml", []byte("version: 1\nmode: observe\n")); err == nil || !strings.Contains(err.Error(), "egressd.yaml") {
			t.Errorf("another file observes: %v", err)
		}
	}
}
