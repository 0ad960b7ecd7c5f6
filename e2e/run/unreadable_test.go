package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestAnEgressdThatCannotBeReadSaysSo has its user execute it and no more: then the kernel keeps
// what is in /proc of its processes to root, the mapping of users among it.
func TestAnEgressdThatCannotBeReadSaysSo(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	binary := filepath.Join(d.Dir, "egressd")
	text, err := os.ReadFile(world.Egressd.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, text, 0o711); err != nil {
		t.Fatal(err)
	}
	const user = 1338
	if err := d.Chown(user); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(binary, 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args   []string
		says   string
		status int
	}{
		{[]string{"run", "--config", d.Config, "--", "true"}, "egressd: hint: chmod a+r " + binary, 125},
		{[]string{"doctor", "--config", d.Config}, "fix: chmod a+r " + binary, 1},
	} {
		cmd := exec.Command(binary, row.args...)
		cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "XDG_RUNTIME_DIR="+d.Dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user, NoSetGroups: true}}
		said, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != row.status || !strings.Contains(string(said), row.says) || !strings.Contains(string(said), binary+" cannot be read by this user") {
			t.Errorf("%s ended with %v and said:\n%s", row.args[0], cmd.ProcessState, said)
		}
	}
}
