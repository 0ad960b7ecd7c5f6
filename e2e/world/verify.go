package world

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// WaitFor waits until come returns true. After 20 seconds it fails the test.
func WaitFor(t *testing.T, what string, come func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !come(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// BothVerify runs both verifiers, which have to end with the code.
func BothVerify(t *testing.T, d *Daemon, code int, dir, key, kept string) {
	t.Helper()
	ours := []string{"log", "verify", dir, "--key", key}
	theirs := []string{Source("docs", "verify", "verify.py"), "--key", key}
	if kept != "" {
		ours, theirs = append(ours, "--checkpoint", kept), append(theirs, "--checkpoint", kept)
	}
	said := d.ExpectExit(t, code, ours...)
	if kept != "" && code == 0 && strings.Contains(said, "vouches for the last") {
		t.Errorf("not all is vouched for: %s", said)
	}
	out, err := exec.Command("python3", append(theirs, dir)...).CombinedOutput()
	if got := ExitCode(err); got != code {
		t.Errorf("verify.py ended with %d, not %d: %s", got, code, out)
	}
}

// ExpectExit runs a command of egressd, which has to end with the code.
func (d *Daemon) ExpectExit(t *testing.T, code int, arguments ...string) string {
	t.Helper()
	cmd := exec.Command(Egressd.Path(), arguments...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.Dir, "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	out, err := cmd.Output()
	if got := ExitCode(err); got != code {
		t.Errorf("egressd %s ended with %d, not %d: %s %v", strings.Join(arguments, " "), got, code, out, err)
	}
	return string(out)
}

// ExitCode returns the exit status that an error of package os/exec stands for.
func ExitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}
