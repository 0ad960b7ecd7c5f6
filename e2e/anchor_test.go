package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLogCutBehindAnAnchor sends checkpoints to a file, kills egressd, and cuts the log
// and its checkpoints back to an earlier one, as somebody would who has the machine:
// by itself that is a good log, and beside what was sent it is not.
func TestLogCutBehindAnAnchor(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "kept")
	d := newDaemon(t, "version: 1\nallow: [\"203.0.0.0/16:443\"]\n")
	anchorConfig(t, d, "file:"+kept)
	d.run(t, exec.Command(Egressd.Path(), "serve", "--config", d.config))
	for range 3 {
		before := notesIn(t, kept)
		d.ask("denied.test")
		waitFor(t, "another checkpoint", func() bool { return notesIn(t, kept) > before })
	}
	d.kill()

	dir := filepath.Join(d.dir, "audit")
	key := strings.TrimSpace(d.said(t, 0, "log", "key", "--config", d.config))
	bothSay(t, d, 0, dir, key, kept)
	cutBack(t, dir)
	bothSay(t, d, 0, dir, key, "")
	bothSay(t, d, 2, dir, key, kept)
}

// anchorConfig gives egressd's configuration an anchor.
func anchorConfig(t *testing.T, d *daemon, place string) {
	t.Helper()
	text, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	with := bytes.Replace(text, []byte("audit: {"), []byte("audit: {anchors: [\""+place+"\"], "), 1)
	if err := os.WriteFile(d.config, with, 0o600); err != nil || bytes.Equal(text, with) {
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

func waitFor(t *testing.T, what string, come func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !come(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
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

// bothSay runs both verifiers, which have to end with the code.
func bothSay(t *testing.T, d *daemon, code int, dir, key, kept string) {
	t.Helper()
	ours := []string{"log", "verify", dir, "--key", key}
	theirs := []string{Source("docs", "verify", "verify.py"), "--key", key}
	if kept != "" {
		ours, theirs = append(ours, "--checkpoint", kept), append(theirs, "--checkpoint", kept)
	}
	said := d.said(t, code, ours...)
	if kept != "" && code == 0 && strings.Contains(said, "vouches for the last") {
		t.Errorf("not all is vouched for: %s", said)
	}
	out, err := exec.Command("python3", append(theirs, dir)...).CombinedOutput()
	if got := exitCode(err); got != code {
		t.Errorf("verify.py ended with %d, not %d: %s", got, code, out)
	}
}

// said runs a command of egressd, which has to end with the code.
func (d *daemon) said(t *testing.T, code int, arguments ...string) string {
	t.Helper()
	cmd := exec.Command(Egressd.Path(), arguments...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.dir, "HOME="+d.dir, "XDG_STATE_HOME="+d.dir)
	out, err := cmd.Output()
	if got := exitCode(err); got != code {
		t.Errorf("egressd %s ended with %d, not %d: %s %v", strings.Join(arguments, " "), got, code, out, err)
	}
	return string(out)
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// TestRunsAreAnchored: the anchors of a run get the checkpoints of the index of runs. A
// run that is taken out of it again, and the log of a run in the place of another, are
// known by both verifiers.
func TestRunsAreAnchored(t *testing.T) {
	d := &daemon{dir: t.TempDir()}
	kept := filepath.Join(d.dir, "kept")
	config := filepath.Join(d.dir, "egressd.yaml")
	if err := os.WriteFile(config, []byte("version: 1\nallow: []\naudit: {anchors: [\"file:"+kept+"\"]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if said := d.said(t, 0, "run", "--config", config, "--", "cat", kept); strings.Contains(said, "egressd/") {
			t.Error("the program can read what was kept")
		}
	}
	state := filepath.Join(d.dir, "egressd")
	runs, err := filepath.Glob(filepath.Join(state, "runs", "*"))
	if err != nil || len(runs) < 2 {
		t.Fatalf("%v, %v", runs, err)
	}
	index := filepath.Join(state, "runs-index")
	second := filepath.Base(runs[1])
	key := strings.TrimSpace(d.said(t, 0, "log", "key", "--run", second, "--config", config))
	d.verifyRun(t, 0, config, runs[1], index, key, kept)

	swapped := runs[1] + ".was"
	if err := errors.Join(os.Rename(runs[1], swapped), os.CopyFS(runs[1], os.DirFS(runs[0]))); err != nil {
		t.Fatal(err)
	}
	d.verifyRun(t, 4, config, runs[1], index, key, kept)
	if err := errors.Join(os.RemoveAll(runs[1]), os.Rename(swapped, runs[1])); err != nil {
		t.Fatal(err)
	}
	cutBack(t, index)
	d.verifyRun(t, 2, config, runs[1], index, key, kept)
}

func (d *daemon) verifyRun(t *testing.T, code int, config, run, index, key, kept string) {
	t.Helper()
	d.said(t, code, "log", "verify", "--run", filepath.Base(run), "--config", config, "--checkpoint", kept)
	out, err := exec.Command("python3", Source("docs", "verify", "verify.py"), "--key", key, "--index", index, "--checkpoint", kept, run).CombinedOutput()
	if got := exitCode(err); got != code {
		t.Errorf("verify.py ended with %d, not %d: %s", got, code, out)
	}
}
