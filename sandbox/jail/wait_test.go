package jail

import (
	"os/exec"
	"syscall"
	"testing"
)

// TestTheEndIsSeenOnce by either way of waiting, and nothing is sent to a number that may
// be another process's by then.
func TestTheEndIsSeenOnce(t *testing.T) {
	for name, wait := range map[string]func(*Jail) (syscall.WaitStatus, error){"by its pidfd": (*Jail).await, "blocked": (*Jail).awaitBlocked} {
		cmd := exec.Command("sh", "-c", "kill -STOP $$; exit 5")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		j := &Jail{pid: cmd.Process.Pid}
		stops := make(chan struct{}, 1)
		done := j.watchStops(func() {
			stops <- struct{}{}
			j.Signal(syscall.SIGCONT)
		})
		status, err := wait(j)
		if err != nil || status.ExitStatus() != 5 || len(stops) != 1 {
			t.Errorf("%s: status %d, %v, stopped %d times", name, status.ExitStatus(), err, len(stops))
		}
		done()
		if !j.reaped {
			t.Errorf("%s: its number is taken for its own still", name)
		}
		_ = cmd.Process.Release()
	}
}
