package file

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestARuleThatLooksWhereNothingMayLookIsAnError(t *testing.T) {
	rows := []struct{ name, lines, never, want string }{
		{"methods of the host", "allow: [{host: a.test, methods: [GET]}]", "a.test", `f:2:9: allow[0]: methods of a.test needs a look into tunnels that tls.never keeps shut with a.test; remove one of them, or narrow the rule to a.test:80`},
		{"methods and paths", "allow: [{host: a.test, methods: [GET], paths: [/x], id: read}]", "a.test", `read: methods and paths of a.test needs`},
		{"an upgrade", "allow: [{host: a.test, upgrade: websocket}]", "a.test", `upgrade of a.test needs`},
		{"a credential", "allow: [{host: a.test, inject: {header: A, env: K}}]", "a.test", `inject of a.test needs a look into tunnels that tls.never keeps shut with a.test; remove one of them`},
		{"a deny", "allow: [a.test]\ndeny: [{host: a.test, methods: [POST]}]", "a.test", `f:3:8: deny[0]: methods`},
		{"an ask", "ask: [{host: a.test, methods: [POST]}]", "a.test", `ask[0]: methods`},
		{"a deny of everything", "allow: [a.test]\ndeny: [{host: '*', methods: [POST]}]", "b.test", `deny[0]: methods of * needs a look into tunnels that tls.never keeps shut with b.test; remove one of them, or narrow the rule to *:80`},
		{"a list of a sandbox", "sandboxes: [{name: a, token_file: t, allow: [{host: a.test, methods: [GET]}]}]", "a.test", `sandboxes[0].allow[0]: methods`},
		{"a deny of a sandbox", "sandboxes: [{name: a, token_file: t, deny: [{host: a.test, methods: [GET]}]}]", "a.test", `sandboxes[0].deny[0]: methods`},
		{"an address below a prefix", "unsafe_allow: [{host: '[::1]:1-100', methods: [GET]}]", "'[::/64]:80-81'", `narrow the rule to [::1]:80`},
		{"a port that is not 80", "allow: [{host: 'a.test:8443', methods: [GET]}]", "'a.test:*'", `keeps shut with a.test:*; remove one of them`},
		{"the second of several", "allow: [{host: a.test, methods: [GET]}]", "b.test, '*.test'", `keeps shut with *.test`},

		{"a rule that looks at nothing", "allow: [a.test]", "a.test", ""},
		{"port 80 of the rule", "allow: [{host: 'a.test:80', methods: [GET]}]", "a.test", ""},
		{"port 80 that is never inspected", "allow: [{host: a.test, methods: [GET]}]", "'a.test:80'", ""},
		{"another host", "allow: [{host: a.test, methods: [GET]}]", "b.test", ""},
		{"a preset", "presets: [npm]", "'*'", ""},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			_, err := Parse("f", []byte("version: 1\n"+row.lines+"\ntls: {never: ["+row.never+"]}"))
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("the error is\n%v\nand does not hold\n%s", err, row.want)
			case row.want != "" && len(strings.Split(err.Error(), "\n")) != 1:
				t.Errorf("said more than once:\n%v", err)
			}
			if hinted := strings.Contains(row.want, ":80"); err != nil && !hinted && strings.Contains(row.want, "remove one of them") && !strings.HasSuffix(err.Error(), "remove one of them") {
				t.Errorf("the hint would not help: %v", err)
			}
		})
	}
}

// lookers is a policy whose evaluator looks at all requests, as a preset or
// another evaluator may, with hosts that are never inspected.
func lookers(t testing.TB, never string) *policy.Policy {
	return compiled(t, "tls: {never: ["+never+"]}", Environment{
		Inspection: true, Evaluators: []policy.Evaluator{voice{Verdict: policy.Inspect, Needs: policy.NeedsMethod, Rule: "looks"}},
	})
}

func TestATunnelThatIsNeverInspectedIsRefusedWhereARuleLooks(t *testing.T) {
	p := lookers(t, "pinned.test, '*.bank.test:443', 93.184.0.0/16, 'any.test:*'")
	const refused, looked = "deny method-denied by looks", "inspect by looks"
	rows := []struct{ ask, want string }{
		{"pinned.test", refused},
		{"pinned.test:80", refused},
		{"pinned.test:8443", looked},
		{"x.pinned.test", looked},
		{"a.b.bank.test", refused},
		{"bank.test", looked},
		{"a.bank.test:80", looked},
		{"any.test:8443", refused},
		{"93.184.216.34", refused},
		{"93.185.0.1", looked},
		{"other.test => 93.184.216.34", looked},
		{"other.test => pinned.test", looked},
	}
	for _, row := range rows {
		if got := saying(p.Decide(context.Background(), asking(t, row.ask))); got != row.want {
			t.Errorf("%s: %q, want %q", row.ask, got, row.want)
		}
	}
	want := "whether a request to pinned.test:443 is allowed, or what is added to it, depends on the request, and tls.never keeps egressd from looking into the tunnel"
	if d := p.Decide(context.Background(), asking(t, "pinned.test")); d.Reason != want {
		t.Errorf("the reason is %q", d.Reason)
	}
}

func TestWhatIsNeverInspectedMayBeAllowedWhole(t *testing.T) {
	p := compiled(t, "allow: [pinned.test]\ndeny: [{host: 93.184.216.34, methods: [POST]}]\ntls: {never: [pinned.test]}", inspecting)
	rows := []struct{ ask, want string }{
		{"pinned.test => 93.184.1.1", "allow by allow[0]"},
		{"pinned.test => 93.184.216.34", "deny method-denied by allow[0]"},
		{"http://pinned.test/ => 93.184.216.34", "allow by allow[0]"},
	}
	for _, row := range rows {
		if got := saying(p.Decide(context.Background(), asking(t, row.ask))); got != row.want {
			t.Errorf("%s: %q, want %q", row.ask, got, row.want)
		}
	}
}

func TestThePromisesOfAFileAreJudgedWithWhatIsNeverInspected(t *testing.T) {
	f, err := Parse("f", []byte("version: 1\nallow: ['pinned.test:443']\ndeny: [{host: 93.184.216.34, methods: [POST]}]\ntls: {never: [93.184.0.0/24, pinned.test]}\ntests: [allow https://pinned.test/, deny https://93.184.0.1/]"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Compile(Environment{}); err != nil {
		t.Error(err)
	}
}

func TestATunnelToInspectIsDecidedWithoutMuchGarbage(t *testing.T) {
	const rule = "allow: [{host: a.test, inject: {header: A, env: K}}]\n"
	without, with := compiled(t, rule, inspecting), compiled(t, rule+"tls: {never: ['*.b.test', c.test, 93.184.0.0/16]}", inspecting)
	r := asking(t, "a.test")
	count := func(p *policy.Policy) float64 {
		return testing.AllocsPerRun(100, func() { p.Decide(context.Background(), r) })
	}
	if a, b := count(without), count(with); a != b {
		t.Errorf("%v allocations, and %v with tls.never", a, b)
	}
}
