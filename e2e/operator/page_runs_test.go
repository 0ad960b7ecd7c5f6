package operator

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/egressd/egressd/e2e/chromium"
	"github.com/egressd/egressd/e2e/world"
)

// TestThePageOfRuns has a person who only types egressd run: the page lists the runs without a daemon, grows while one goes on,
// counts one of them, and writes the policy file, so that the next run is no longer denied.
func TestThePageOfRuns(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config", "egressd")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(config, "egressd.yaml")
	if err := os.WriteFile(policy, []byte("version: 1\nallow: [allowed.test]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	egressd := func(words ...string) *exec.Cmd {
		cmd := exec.Command(world.Egressd.Path(), words...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME="+filepath.Join(dir, "state"), "XDG_CONFIG_HOME="+filepath.Join(dir, "config"), "XDG_RUNTIME_DIR="+filepath.Join(dir, "runtime"))
		return cmd
	}
	run := func(script string) string {
		t.Helper()
		text, err := egressd("run", "--", "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return string(text)
	}
	run("curl -s -m5 http://evil.test/; curl -s -m5 http://evil.test/; exit 0")
	cmd := egressd("ui", "--no-open")
	link := linkOf(t, cmd, cmd.Start)
	ctx := browser(t)
	base := open(t, ctx, link)
	waitFor(t, ctx, "the list", "", `location.pathname == "/runs" && document.querySelectorAll("tbody tr").length == 1 && document.querySelector("tbody .deny-text").textContent == "✗ 2"`)

	goes := egressd("run", "--", "sh", "-c", "curl -s -m5 http://other.test/; until [ -e "+filepath.Join(dir, "end")+" ]; do sleep 0.1; done")
	var said bytes.Buffer
	goes.Stdout, goes.Stderr = &said, &said
	if err := goes.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, ctx, "a run that goes on", "", `document.querySelectorAll("tbody tr").length == 2 && document.querySelector("tbody tr").textContent.includes("running") && document.querySelector("tbody tr .deny-text").textContent == "✗ 1"`)
	shot(t, ctx, "runs")
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := goes.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	waitFor(t, ctx, "its end", "", `document.querySelector("tbody tr").textContent.includes("exit 0")`)
	waitFor(t, ctx, "both logs verified", base+"/runs", `[...document.querySelectorAll("tbody tr")].every(e => e.textContent.includes("good"))`)

	seriousFindings(t, ctx, "Runs")
	figure := `document.querySelector(".figure.deny strong").textContent`
	waitFor(t, ctx, "all runs together", base+"/", figure+` == "3"`)
	waitFor(t, ctx, "the last run", base+"/?q=run:last", figure+` == "1"`)
	shot(t, ctx, "one-run")
	t.Logf("denied, and allowed from the row: 2 clicks, %s", chromium.AllowFromRow(t, ctx, base, "host:evil.test"))
	shot(t, ctx, "act")
	if text, err := os.ReadFile(policy); err != nil || !strings.Contains(string(text), "evil.test") {
		t.Fatalf("the policy file is %q, %v", text, err)
	}
	if text := run("curl -s -m5 http://evil.test/; exit 0"); strings.Contains(text, "denied") {
		t.Errorf("the next run: %s", text)
	}
}

// shot saves a picture of the page, if somebody asks for pictures.
func shot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	folder := os.Getenv(shotsVariable)
	if folder == "" {
		return
	}
	var picture []byte
	do(t, ctx, window(1360, 900, "light"), chromedp.CaptureScreenshot(&picture))
	if err := os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o600); err != nil {
		t.Fatal(err)
	}
}
