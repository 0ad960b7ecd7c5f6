package log

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestLogCutBehindAnAnchor sends checkpoints to a file, kills egressd, and cuts the log
// and its checkpoints back to an earlier one, as somebody would who has the machine:
// by itself that is a good log, and beside what was sent it is not.
func TestLogCutBehindAnAnchor(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "kept")
	d := world.NewDaemon(t, "version: 1\nallow: [\"203.0.0.0/16:443\"]\n")
	anchorConfig(t, d, "file:"+kept)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	for range 3 {
		before := notesIn(t, kept)
		ask(d, "denied.test")
		world.WaitFor(t, "another checkpoint", func() bool { return notesIn(t, kept) > before })
	}
	d.Kill()

	dir := filepath.Join(d.Dir, "audit")
	key := strings.TrimSpace(d.ExpectExit(t, 0, "log", "verify", "--print-key", "--config", d.Config))
	world.BothVerify(t, d, 0, dir, key, kept)
	cutBack(t, dir)
	world.BothVerify(t, d, 0, dir, key, "")
	world.BothVerify(t, d, 2, dir, key, kept)
}

// anchorConfig gives egressd's configuration an anchor.
func anchorConfig(t *testing.T, d *world.Daemon, place string) {
	t.Helper()
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	with := bytes.Replace(text, []byte("audit: {"), []byte("audit: {anchors: [\""+place+"\"], "), 1)
	if err := os.WriteFile(d.Config, with, 0o600); err != nil || bytes.Equal(text, with) {
		t.Fatal("the configuration has no audit section", err)
	}
}

func notesIn(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n— "))
}

// cutBack cuts a log of one segment back to the first of its checkpoints that is for
// any record.
func cutBack(t *testing.T, dir string) {
	t.Helper()
	notes, lines := filepath.Join(dir, "00000001.ckpt"), filepath.Join(dir, "00000001.log")
	text, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	parts := bytes.SplitAfter(text, []byte("\n\n")) // text and signature in turn
	for i := 0; i+1 < len(parts); i += 2 {
		var segment, first, length int64
		at := strings.Split(string(parts[i]), "\n")[4]
		if _, err := fmt.Sscanf(at, "segment %d %d %d", &segment, &first, &length); err != nil {
			t.Fatal(err)
		}
		if length > 0 {
			if err := errors.Join(os.Truncate(lines, length), os.WriteFile(notes, bytes.Join(parts[:i+2], nil), 0o600)); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no checkpoint is for a record")
}

// TestRunsAreAnchored: the anchors of a run get the checkpoints of the index of runs. A
// run that is taken out of it again, and the log of a run in the place of another, are
// known by both verifiers.
func TestRunsAreAnchored(t *testing.T) {
	d := &world.Daemon{Dir: t.TempDir()}
	kept := filepath.Join(d.Dir, "kept")
	config := filepath.Join(d.Dir, "egressd.yaml")
	if err := os.WriteFile(config, []byte("version: 1\nallow: []\naudit: {anchors: [\"file:"+kept+"\"]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if said := d.ExpectExit(t, 0, "run", "--config", config, "--", "cat", kept); strings.Contains(said, "egressd/") {
			t.Error("the program can read what was kept")
		}
	}
	state := filepath.Join(d.Dir, "egressd")
	runs, err := filepath.Glob(filepath.Join(state, "runs", "*"))
	if err != nil || len(runs) < 2 {
		t.Fatalf("%v, %v", runs, err)
	}
	index := filepath.Join(state, "runs-index")
	second := filepath.Base(runs[1])
	key := strings.TrimSpace(d.ExpectExit(t, 0, "log", "verify", "--print-key", "--run", second, "--config", config))
	verifyRun(t, d, 0, config, runs[1], index, key, kept)

	swapped := runs[1] + ".was"
	if err := errors.Join(os.Rename(runs[1], swapped), os.CopyFS(runs[1], os.DirFS(runs[0]))); err != nil {
		t.Fatal(err)
	}
	verifyRun(t, d, 4, config, runs[1], index, key, kept)
	if err := errors.Join(os.RemoveAll(runs[1]), os.Rename(swapped, runs[1])); err != nil {
		t.Fatal(err)
	}
	cutBack(t, index)
	verifyRun(t, d, 2, config, runs[1], index, key, kept)
}

func verifyRun(t *testing.T, d *world.Daemon, code int, config, run, index, key, kept string) {
	t.Helper()
	d.ExpectExit(t, code, "log", "verify", "--run", filepath.Base(run), "--config", config, "--checkpoint", kept)
	out, err := exec.Command("python3", world.Source("docs", "verify", "verify.py"), "--key", key, "--index", index, "--checkpoint", kept, run).CombinedOutput()
	if got := world.ExitCode(err); got != code {
		t.Errorf("verify.py ended with %d, not %d: %s", got, code, out)
	}
}
