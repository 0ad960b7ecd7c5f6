package policy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

const budgetPolicy = `version: 1
allow: ["*.allowed.test"]
budgets:
  - {hosts: [up.allowed.test, other.allowed.test], up: 500kB, per: 24h}
`

// TestABudgetOutlivesARestart: what the log says was sent counts after a start. A budget with other hosts begins anew.
func TestABudgetOutlivesARestart(t *testing.T) {
	d := world.NewDaemon(t, budgetPolicy)
	serve := func() { d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config)) }
	serve()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data"), make([]byte, 200_000), 0o600); err != nil {
		t.Fatal(err)
	}
	send := func(host string, passes bool) {
		t.Helper()
		out, err := d.Shell(dir, "", "curl -sS --data-binary @data http://"+host+"/count")
		if passed := strings.Contains(out, "origin received 200000 bytes"); passed != passes || !passes && !strings.Contains(out, string(policy.ByteBudget)) {
			t.Errorf("%s: %v %q", host, err, out)
		}
	}
	send("up.allowed.test", true)
	send("other.allowed.test", true)
	send("up.allowed.test", false)
	d.Stop(t)
	serve()
	send("other.allowed.test", false)
	send("third.allowed.test", true)
	d.Stop(t)
	d.PutFile(t, filepath.Base(d.Config), strings.Replace(string(mustRead(t, d.Config)), "up: 500kB", "up: 700kB", 1))
	serve()
	send("up.allowed.test", true)
	send("up.allowed.test", false)
	d.Stop(t)
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
