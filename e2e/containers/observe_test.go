package containers

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
	"github.com/egressd/egressd/record"
)

// TestAPodIsWatchedAndThenEnforced has real clients in the agent's container of the manifest, and the operator's commands in that of
// egressd.
func TestAPodIsWatchedAndThenEnforced(t *testing.T) {
	p := startPod(t, world.Observed+"deny: [\"*.denied.test\"]\n")
	ca, dir := p.World.Origin.Ca.File(t), t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	s := world.Session{
		Daemon: p.Daemon,
		Typed: func(words ...string) (string, int) {
			out, err := p.in(p.beside, append([]string{"env", "HOME=" + p.Dir, "XDG_STATE_HOME=" + p.Dir, world.Egressd.Path()}, words...)...)
			return out, exitCode(t, err)
		},
		Do: func(command string) (string, []record.Record) {
			return p.During(t, func() string {
				out, _ := p.asAgent(p.agent.confined(), world.InFolder(dir, ca, command))
				return out
			})
		},
	}
	s.WatchedThenEnforced(t)
}

// TestAContainerIsWatchedAndThenEnforced has real clients in a container of Docker's engine. The lines are for its sandbox alone.
func TestAContainerIsWatchedAndThenEnforced(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, strings.Replace(dockerPolicy, "allow: [\"*.allowed.test\"]\n", world.Observed+"deny: [\"*.denied.test\"]\n", 1))
	ca, dir := w.Origin.Ca.File(t), t.TempDir()
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-d", "--hostname", machine, "-v", dir + ":" + dir, "-v", ca + ":" + ca + ":ro"}, hostPrograms(t)...)
	out, err := w.dockerRun(t.Context(), d, "web", append(args, engine.Shell)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := strings.TrimSpace(string(out))
	t.Cleanup(func() { w.docker(t, "rm", "-f", c) })
	w.said(t, c, "sandbox web · transparent")
	s := world.Session{
		Daemon: d,
		Typed: func(words ...string) (string, int) {
			out, err := d.Command(t.Context(), nil, words...).CombinedOutput()
			return string(out), exitCode(t, err)
		},
		Do: func(command string) (string, []record.Record) {
			return d.During(t, func() string {
				out, _ := w.Docker(t.Context(), "exec", c, "sh", "-c", "exec 2>&1; "+world.InFolder(dir, ca, command))
				return out
			})
		},
	}
	s.WatchedThenEnforced(t)
	for sandbox, want := range map[string]int{"web": 0, "narrow": 1} {
		if out, code := s.Typed("check", "--config", d.Config, "--sandbox", sandbox, "npm.allowed.test"); code != want {
			t.Errorf("check for sandbox %s: %d %s", sandbox, code, out)
		}
	}
}

// hostPrograms have a container of any image use the programs of this machine.
func hostPrograms(t *testing.T) (args []string) {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", strings.TrimSpace(string(root))} {
		if _, err := os.Stat(dir); err == nil {
			args = append(args, "-v", dir+":"+dir+":ro")
		}
	}
	return append(args, "-e", "PATH="+os.Getenv("PATH"))
}

// exitCode is that of a command which has ended with an error, or without one.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	exit := new(exec.ExitError)
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		t.Fatal(err)
	}
	return exit.ExitCode()
}
