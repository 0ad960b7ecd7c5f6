package file

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

const alsoAllowFile = `version: 1
allow: [shared.test]
deny: [denied.test, "*.held.test"]
sandboxes:
  - {name: a, listen: "127.0.0.1:4101", allow: [shared.test], also_allow: [a.test, denied.test, {host: m.test, methods: [GET]}, x.held.test]}
  - {name: b, listen: "127.0.0.1:4102"}
  - {name: "t-{id}", token_file: t, also_allow: [t.test]}
`

// TestAlsoAllowOpensToOneSandbox asks what each sandbox may reach of what one of them may reach alone.
func TestAlsoAllowOpensToOneSandbox(t *testing.T) {
	p := compiled(t, strings.TrimPrefix(alsoAllowFile, "version: 1\n"), inspecting)
	for _, row := range []struct {
		sandbox, host string
		want          policy.Verdict
	}{
		{"a", "shared.test", policy.Allow}, {"b", "shared.test", policy.Allow}, {"t-1", "shared.test", policy.Allow},
		{"a", "a.test", policy.Allow}, {"b", "a.test", policy.Deny}, {"t-1", "a.test", policy.Deny}, {"", "a.test", policy.Deny}, {"a2", "a.test", policy.Deny},
		{"a", "m.test", policy.Inspect}, {"b", "m.test", policy.Deny},
		{"t-1", "t.test", policy.Allow}, {"t-", "t.test", policy.Deny}, {"a", "t.test", policy.Deny}, {"b", "t.test", policy.Deny},
		{"a", "denied.test", policy.Deny}, {"a", "x.held.test", policy.Deny},
	} {
		r := asking(t, row.host)
		r.Sandbox.Name = row.sandbox
		if d := p.Decide(t.Context(), r); d.Verdict != row.want {
			t.Errorf("%s to %s: %s", row.sandbox, row.host, saying(d))
		}
	}
}

// TestAlsoAllowMakesNoExceptionToTheBaseline refuses each private address in it.
func TestAlsoAllowMakesNoExceptionToTheBaseline(t *testing.T) {
	for _, what := range []string{"10.0.0.5:8443", "127.0.0.1", "169.254.169.254:80", `"[fd00::1]:443"`, "192.168.0.0/16"} {
		_, err := Parse("f", []byte("version: 1\nsandboxes: [{name: a, token_file: t, also_allow: ["+what+"]}]\n"))
		if err == nil || !strings.Contains(err.Error(), "f:2:") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestAlsoAllowIsUnderACeiling has a ceiling hold what it opens.
func TestAlsoAllowIsUnderACeiling(t *testing.T) {
	p := compiled(t, strings.TrimPrefix(alsoAllowFile, "version: 1\n")+"ceiling: [shared.test]\n", inspecting)
	for host, want := range map[string]policy.Verdict{"a.test": policy.Deny, "shared.test": policy.Allow} {
		r := asking(t, host)
		r.Sandbox.Name = "a"
		if d := p.Decide(t.Context(), r); d.Verdict != want {
			t.Errorf("%s: %s", host, saying(d))
		}
	}
}
