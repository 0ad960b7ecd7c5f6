package run

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/egressd/egressd/daemon/run"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/egress"
)

// summaryScript makes allowed, denied and failing requests, and writes into the file of the summary.
const summaryScript = `curl -sS -m9 http://a.allowed.test/x; curl -sS -m9 -d 12345 http://b.allowed.test/y
curl -sS -m9 http://evil.test/; curl -sS -m9 http://evil.test/; curl -sS -m9 http://169.254.169.254/; curl -sS -m9 http://refuses.allowed.test/
printf '{"run": "mine", "denials": 0}%5000s' x >run.json
`

var deniedID = regexp.MustCompile(`--from \S+`)

// readSummary returns the one object in the file, and tests what differs from run to run.
func readSummary(t *testing.T, d *world.Daemon, talk string) (got run.Result) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.Dir, "run.json"))
	if err != nil {
		t.Fatalf("%v: %s", err, talk)
	}
	lines := json.NewDecoder(bytes.NewReader(text))
	lines.DisallowUnknownFields()
	if err := lines.Decode(&got); err != nil || lines.More() {
		t.Fatalf("%v in %s", err, text)
	}
	if got.Run == "" || got.Log == "" || !strings.HasPrefix(got.Policy, "sha256:") || got.Seconds <= 0 || got.Up < 5 || got.Down == 0 {
		t.Errorf("it says %s", text)
	}
	for i := range got.Denied {
		got.Denied[i].Fix = deniedID.ReplaceAllString(got.Denied[i].Fix, "--from ID")
	}
	return got
}

func TestTheSummaryFileHasWhatTheRunCameTo(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	want := run.Result{Sandbox: "sums", Requests: 3, Hosts: 3, Failed: 1, Denials: 3, Denied: []egress.DeniedHost{
		{Host: "evil.test", Port: 80, Times: 2, Class: "default-deny", Reason: "no rule allows evil.test:80", Fix: "egressd allow evil.test --from ID --save --config " + d.Config},
		{Host: "169.254.169.254", Port: 80, Times: 1, Class: "address-denied", Reason: "169.254.169.254 is not open to sandboxes (metadata)"},
	}}
	for _, row := range []struct {
		end   string
		flags []string
		code  int
	}{
		{"exit 3", nil, 3},
		{"exit 0", []string{"--fail-on-deny"}, 86},
	} {
		r := runAs(t, d, "root", summaryScript+row.end, append(row.flags, "--name", "sums", "--summary", "run.json")...)
		got := readSummary(t, d, r.talk)
		if r.code != row.code || got.ExitCode != row.code || !strings.Contains(r.talk, got.Run) || filepath.Base(got.Log) != got.Run {
			t.Errorf("exit %d, %+v: %s", r.code, got, r.talk)
		}
		got.Run, got.Log, got.Policy, got.ExitCode, got.Seconds, got.Up, got.Down = "", "", "", 0, 0, 0, 0
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

// TestTheSummaryFileBesideADaemon has the same requests, which the daemon decides.
func TestTheSummaryFileBesideADaemon(t *testing.T) {
	d := world.Start(t, sharedPolicy)
	e := runBeside(t, d, []string{"--name", "sums", "--summary", filepath.Join(d.Dir, "run.json")}, "cd "+d.Dir+"; "+summaryScript)
	got := readSummary(t, d, e.Talk)
	if got.Sandbox != "sums" || got.ExitCode != 0 || got.Requests != 3 || got.Hosts != 3 || got.Failed != 1 || got.Denials != 3 || len(got.Denied) != 2 ||
		got.Denied[0].Host != "evil.test" || got.Denied[0].Times != 2 || !strings.HasPrefix(got.Denied[0].Fix, "egressd allow evil.test") {
		t.Errorf("%+v: %s", got, e.Talk)
	}
}
