package run

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunsAreIndexed has short runs and a long one in the index: the long one before its
// end, all of them with both ends afterwards, and each verified by its entry.
func TestRunsAreIndexed(t *testing.T) {
	d, config, index := indexed(t)
	for range 2 {
		d.ExpectExit(t, 0, "run", "--config", config, "--", "true")
	}
	long := runCommand(d, config, "cat")
	ends, err := long.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	world.WaitFor(t, "the entry of a run that goes on", func() bool { return strings.Count(readAll(t, index), `"kind":"run"`) == 3 })
	if strings.Count(readAll(t, index), `"kind":"run-end"`) != 2 {
		t.Error("it has ended in the index")
	}
	d.ExpectExit(t, 0, "run", "--config", config, "--", "true") // the index is there for others
	if all := readAll(t, index); strings.Count(all, `"kind":"run"`) != 4 || strings.Count(all, `"kind":"run-end"`) != 3 {
		t.Errorf("a run beside the long one is not in the index: %s", all)
	}
	ends.Close()
	if err := long.Wait(); err != nil {
		t.Error(err)
	}
	if strings.Count(readAll(t, index), `"kind":"run-end"`) != 4 {
		t.Error("its end is not in the index")
	}
	runs, err := filepath.Glob(filepath.Join(d.Dir, "egressd", "runs", "*"))
	if err != nil || len(runs) != 4 {
		t.Fatalf("%v, %v", runs, err)
	}
	for _, run := range runs {
		d.ExpectExit(t, 0, "log", "verify", "--config", config, "--run", filepath.Base(run))
	}
	key := strings.TrimSpace(d.ExpectExit(t, 0, "log", "verify", "--print-key", "--run", "last", "--config", config))
	world.BothVerify(t, d, 0, filepath.Dir(index), key, "")
}

// TestAShortRunWithoutIndex has the index of runs cut: a run that has no time to be
// refused anything says that nobody vouches for it.
func TestAShortRunWithoutIndex(t *testing.T) {
	d, config, index := indexed(t)
	d.ExpectExit(t, 0, "run", "--config", config, "--", "true")
	if err := os.Truncate(index, 10); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	short := runCommand(d, config, "true")
	short.Stderr = &said
	if err := short.Run(); err != nil || !strings.Contains(said.String(), "egressd: error: record the end of the run's log: the index of runs: ") {
		t.Errorf("it said %q, %v", said.String(), err)
	}
}

// indexed returns where runs are kept that nothing else of the machine has, and the first
// segment of their index.
func indexed(t *testing.T) (d *world.Daemon, config, index string) {
	t.Helper()
	d = &world.Daemon{Dir: t.TempDir()}
	config = filepath.Join(d.Dir, "egressd.yaml")
	if err := os.WriteFile(config, []byte("version: 1\nallow: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return d, config, filepath.Join(d.Dir, "egressd", "runs-index", "00000001.log")
}

func runCommand(d *world.Daemon, config string, argv ...string) *exec.Cmd {
	cmd := exec.Command(world.Egressd.Path(), append([]string{"run", "-q", "--config", config, "--"}, argv...)...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.Dir, "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
	return cmd
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
