package log

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// verifies runs egressd log verify, with the key that this machine has.
func verifies(t *testing.T, d *world.Daemon) (code int, said string) {
	t.Helper()
	cmd := exec.Command(world.Egressd.Path(), "log", "verify", d.Log.Dir)
	cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}
