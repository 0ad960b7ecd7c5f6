package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// outlined is the short form of opinions: "file: deny rule-deny by deny[0]".
func outlined(all []policy.Opinion) (lines []string) {
	for _, o := range all {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s", o.Part, saying(o.Decision))))
		for _, s := range o.Rules {
			line := fmt.Sprintf("  %s %s %s at %d:%d", s.Rule, s.Effect, s.Pattern, s.Line, s.Column)
			for _, is := range []struct {
				word string
				set  bool
			}{{" holds", s.Holds}, {" depends", s.Depends}, {" ties", s.Ties}} {
				if is.set {
					line += is.word
				}
			}
			if s.Address.IsValid() {
				line += " for " + s.Address.String()
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func TestOpinions(t *testing.T) {
	for _, row := range []struct{ name, lines, ask, want string }{
		{"silence", "", "a.test", `
baseline: abstain by
file: abstain by
sandbox: abstain by`},
		{"the closest host first", "allow: [{host: b.a.test, methods: [GET]}]\ndeny: [\"*\", \"*.a.test\"]\n", "b.a.test", `
baseline: abstain by
file: inspect by allow[0]
  allow[0] allow b.a.test at 2:9 depends
  deny[1] deny *.a.test at 3:13 holds
  deny[0] deny * at 3:8 holds
sandbox: abstain by`},
		{"a request that is known", "allow: [{host: a.test, methods: [GET]}]\n", "POST http://a.test/", `
baseline: abstain by
file: deny method-denied by allow[0]
  allow[0] allow a.test at 2:9
sandbox: abstain by`},
		{"a tie", "allow: [a.test]\ndeny: [a.test:443]\n", "a.test", `
baseline: abstain by
file: deny rule-deny by deny[0]
  deny[0] deny a.test:443 at 3:8 holds
  allow[0] allow a.test at 2:9 holds ties
sandbox: abstain by`},
		{"another port is not about it", "allow: [\"a.test:22\"]\n", "a.test", `
baseline: abstain by
file: abstain by
sandbox: abstain by`},
		{"a line before a preset", "deny: [registry.npmjs.org]\npresets: [npm]\n", "registry.npmjs.org", `
baseline: abstain by
file: deny rule-deny by deny[0]
  deny[0] deny registry.npmjs.org at 2:8 holds
presets: allow by preset:npm
  preset:npm allow registry.npmjs.org:443 at 7:5 holds
sandbox: abstain by`},
		{"the addresses of an allowed name", "allow: [a.test, 11.0.0.0/8]\ndeny: [11.0.0.0/24, \"*\"]\n", "a.test => 11.0.0.1", `
baseline: abstain by
file: deny rule-deny by deny[0]
  allow[0] allow a.test at 2:9 holds
  deny[1] deny * at 3:21 holds
  deny[0] deny 11.0.0.0/24 at 3:8 holds for 11.0.0.1
sandbox: abstain by`},
		{"a private address", "allow: [a.test]\n", "a.test => 10.0.0.1", `
baseline: deny address-denied by baseline
file: allow by allow[0]
  allow[0] allow a.test at 2:9 holds
sandbox: abstain by`},
		{"a list of the sandbox's own", "allow: [a.test]\nsandboxes: [{name: ci, listen: \"127.0.0.1:1\", allow: [b.test]}]\n", "a.test", `
baseline: abstain by
file: allow by allow[0]
  allow[0] allow a.test at 2:9 holds
sandbox: deny default-deny by default`},
	} {
		r := asking(t, row.ask)
		r.Sandbox.Name = "ci"
		if !strings.Contains(row.lines, "sandboxes") {
			r.Sandbox.Name = "default"
		}
		got := strings.Join(outlined(compiled(t, row.lines, inspecting).Opinions(t.Context(), r)), "\n")
		if got != strings.TrimPrefix(row.want, "\n") {
			t.Errorf("%s:\n%s", row.name, got)
		}
	}
}

func TestFurtherOpinions(t *testing.T) {
	broken := asked(func(context.Context, *policy.Request) (policy.Decision, error) {
		return policy.Decision{Verdict: policy.Allow}, errors.New("it broke")
	})
	p := compiled(t, "", Environment{Evaluators: []policy.Evaluator{answering(policy.Decision{Verdict: policy.Allow, Rule: "r"}), broken}})
	all := p.Opinions(t.Context(), asking(t, "a.test"))
	if len(all) != 5 || all[3].Decision.Rule != "r" || all[3].Layer != policy.Organisation || all[4].By == nil {
		t.Fatalf("%+v", all)
	}
	if o := all[4]; o.Err == nil || o.Decision.Verdict != policy.Deny || o.Decision.Class != policy.PolicyError {
		t.Errorf("%+v", o)
	}
	if (*policy.Policy)(nil).Opinions(t.Context(), asking(t, "a.test")) != nil {
		t.Error("no policy has an opinion")
	}
}

func TestLines(t *testing.T) {
	f, err := Parse("f.yaml", []byte("version: 1\nallow:\n  - a.test\n  - {host: b.test, methods: [GET], id: reads}\ndeny: [c.test]\nunsafe_allow: [\"127.0.0.1:80\"]\npresets: [npm]\nsandboxes: [{name: ci, listen: \"127.0.0.1:1\", deny: [d.test]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := f.Lines()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range lines[:6] {
		got = append(got, fmt.Sprintf("%s %s/%s%s %s %s %q | %s", l.ID, l.Layer, l.Sandbox, l.Preset, l.Effect, l.Pattern, l.Words, l.Place))
	}
	want := []string{
		`allow[0] user/ allow a.test "" | f.yaml:3:5: - a.test`,
		`reads user/ allow b.test "method is GET or HEAD" | f.yaml:4:5: - {host: b.test, methods: [GET], id: reads}`,
		`deny[0] user/ deny c.test "" | f.yaml:5:8: deny: [c.test]`,
		`unsafe_allow[0] user/ allow 127.0.0.1:80 "" | f.yaml:6:16: unsafe_allow: ["127.0.0.1:80"]`,
		`sandboxes[0].deny[0] sandbox/ci deny d.test "" | f.yaml:8:54: sandboxes: [{name: ci, listen: "127.0.0.1:1", deny: [d.test]}]`,
		`preset:npm user/npm allow registry.npmjs.org:443 "" | preset npm:7:5: - registry.npmjs.org:443`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if len(lines) != 13 {
		t.Errorf("%d lines", len(lines))
	}
}
