package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// typed runs a command of egressd about the state of d, and returns what it says.
func typed(t *testing.T, d *world.Daemon, words ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), world.Egressd.Path(), words...)
	cmd.Dir = d.Dir
	cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	text, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState.ExitCode() < 0 {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// TestRunLearns lets a program go where no rule speaks of, and nowhere else, and
// makes rules of it that hold.
func TestRunLearns(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [\"a.allowed.test\"]\ndeny: [\"*.denied.test\"]\n")
	script := `curl -sS -m9 http://a.allowed.test/; curl -sS -m9 --cacert lab.pem https://b.allowed.test/; curl -sS -m9 http://b.allowed.test/
for u in http://x.denied.test/ http://10.0.0.5/ http://internal.corp.test/; do curl -sS -m9 -o refused -w '%{http_code}\n' $u; done`
	r := runAs(t, d, "user", script, "--learn")
	if strings.Count(r.out, "origin") < 3 || strings.Count(r.out, "403") != 3 {
		t.Fatalf("%q %q", r.out, r.talk)
	}
	if r.denied("x.denied.test", policy.RuleDeny) == 0 || r.denied("10.0.0.5", policy.AddressDenied) == 0 || r.denied("internal.corp.test", policy.AddressDenied) == 0 {
		t.Errorf("%+v", r.records)
	}

	suggested, code := typed(t, d, "policy", "suggest", "--config", d.Config, "--run", "last")
	if code != 0 || !strings.Contains(suggested, "\n  - b.allowed.test:443 #") || !strings.Contains(suggested, "\n  - {host: b.allowed.test:80, methods: [GET], paths: [/]} #") ||
		strings.Contains(suggested, "a.allowed.test") || strings.Contains(suggested, "x.denied") || strings.Contains(suggested, "10.0.0.5") || strings.Contains(suggested, "- internal.corp.test") {
		t.Fatalf("%d %s", code, suggested)
	}
	learned := filepath.Join(d.Dir, "learned.yaml")
	before, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(learned, before, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := typed(t, d, "policy", "suggest", "--config", learned, "--run", "last", "--apply"); code != 0 || !strings.Contains(out, "that opens CONNECT b.allowed.test:443, GET http://b.allowed.test/\n") {
		t.Fatalf("%d %s", code, out)
	}
	if out, code := typed(t, d, "policy", "replay", learned, "--config", d.Config, "--run", "last"); code != 0 {
		t.Errorf("what was learned decides otherwise: %d %s", code, out)
	}
	if out, code := typed(t, d, "policy", "replay", d.Config, "--config", d.Config, "--run", "last"); code != 1 || !strings.Contains(out, "b.allowed.test:443") || strings.Contains(out, "a.allowed.test") {
		t.Errorf("without what was learned: %d %s", code, out)
	}
}
