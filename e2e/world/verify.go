package world

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/daemon/doctor"
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
	ours := []string{"log", "verify", "--json", dir, "--key", key}
	theirs := []string{Source("docs", "verify", "verify.py"), "--key", key}
	if kept != "" {
		ours, theirs = append(ours, "--checkpoint", kept), append(theirs, "--checkpoint", kept)
	}
	if r := d.VerifyLog(t, code, ours...); kept != "" && code == 0 && r.Unvouched != 0 {
		t.Errorf("not all is vouched for: %+v", r)
	}
	out, err := exec.Command("python3", append(theirs, dir)...).CombinedOutput()
	if got := ExitCode(err); got != code {
		t.Errorf("verify.py ended with %d, not %d: %s", got, code, out)
	}
}

// VerifyLog runs egressd log verify --json, which has to end with the code, and returns its report.
func (d *Daemon) VerifyLog(t *testing.T, code int, arguments ...string) (r verify.Report) {
	t.Helper()
	if out := d.ExpectExit(t, code, arguments...); json.Unmarshal([]byte(out), &r) != nil {
		t.Errorf("egressd %s printed no report: %s", strings.Join(arguments, " "), out)
	}
	return r
}

// Findings runs egressd doctor as a user of the gateway, and returns what it finds in one check. A finding with a
// fix is a fault.
func (d *Daemon) Findings(t *testing.T, uid uint32, check string) (found []doctor.Finding) {
	t.Helper()
	cmd := exec.Command(Egressd.Path(), "doctor", "--json", "--config", d.Config)
	cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true}}
	var out strings.Builder
	cmd.Stdout = &out
	d.World.Gateway.Run(cmd) // its status is about all checks
	for line := range strings.Lines(out.String()) {
		var f doctor.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("egressd doctor: %v in %s", err, line)
		}
		if f.Check == check {
			found = append(found, f)
		}
	}
	return found
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
