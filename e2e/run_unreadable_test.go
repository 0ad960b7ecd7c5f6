package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAnEgressdThatCannotBeReadSaysSo has its user execute it and no more: then the kernel keeps
// what is in /proc of its processes to root, the mapping of users among it.
func TestAnEgressdThatCannotBeReadSaysSo(t *testing.T) {
	d := newDaemon(t, runPolicy)
	binary := filepath.Join(d.dir, "egressd")
	text, err := os.ReadFile(Egressd.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, text, 0o711); err != nil {
		t.Fatal(err)
	}
	const user = 1338
	if err := d.giveTo(user); err != nil {
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
		{[]string{"run", "--config", d.config, "--", "true"}, "egressd: hint: chmod a+r " + binary, 125},
		{[]string{"doctor", "--config", d.config}, "fix: chmod a+r " + binary, 1},
	} {
		cmd := exec.Command(binary, row.args...)
		cmd.Env = append(os.Environ(), "HOME="+d.dir, "XDG_STATE_HOME="+d.dir, "XDG_RUNTIME_DIR="+d.dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user, NoSetGroups: true}}
		said, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != row.status || !strings.Contains(string(said), row.says) || !strings.Contains(string(said), binary+" cannot be read by this user") {
			t.Errorf("%s ended with %v and said:\n%s", row.args[0], cmd.ProcessState, said)
		}
	}
}
