package run

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
)

// TestRunsAreListed has a run with a log of its own, and then one that a daemon has: both are listed, and the last run
// is the last one, wherever its records are.
func TestRunsAreListed(t *testing.T) {
	d := world.Start(t, sharedPolicy)
	before := runBeside(t, d, []string{"--name", "other"}, "curl -s -m9 http://early.test/; true")
	if before.Code != 0 {
		t.Fatal(before.Talk)
	}
	listed := func() (all []source.Run) {
		t.Helper()
		out := d.RunCommand(t, nil, "log", "--runs", "--json", "--config", d.Config)
		for line := range strings.Lines(out.Out) {
			var r source.Run
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			all = append(all, r)
		}
		return all
	}
	last := func() (hosts string) {
		t.Helper()
		out := d.RunCommand(t, nil, "log", "--run", "last", "--json", "--config", d.Config)
		for line := range strings.Lines(out.Out) {
			r, err := record.Decode([]byte(strings.TrimSpace(line)))
			if err != nil {
				t.Fatal(err)
			}
			if r.Dst != nil && !strings.Contains(hosts, r.Dst.Host) {
				hosts += r.Dst.Host + " "
			}
		}
		return hosts
	}
	runBeside(t, d, []string{"--alone", "--name", "alone"}, "curl -s -m9 http://one.test/; exit 3")
	if got := last(); got != "one.test " {
		t.Errorf("the last run asked for %q", got)
	}
	runBeside(t, d, []string{"--name", "shared"}, "curl -s -m9 http://two.test/; true")
	if got := last(); got != "two.test " {
		t.Errorf("the last run asked for %q", got)
	}
	all := listed()
	if len(all) != 3 {
		t.Fatalf("%+v", all)
	}
	for i, want := range []struct {
		sandbox string
		daemon  bool
		code    int
	}{{"shared", true, 0}, {"alone", false, 3}, {"other", true, 0}} {
		r := all[i]
		if r.Sandbox != want.sandbox || r.Daemon != want.daemon || r.Code == nil || *r.Code != want.code || r.Denied != 1 || r.Running || r.Program != "sh" {
			t.Errorf("%d: %+v", i, r)
		}
		if _, err := os.Stat(r.Log); err != nil {
			t.Error(err)
		}
	}
	if out := d.RunCommand(t, nil, "log", "verify", "--run", all[1].ID, "--config", d.Config); out.Code != 0 {
		t.Errorf("the log of a listed run: %d %s", out.Code, out.Talk)
	}
}

// TestTheLogOfTheLastRunIsFound has no daemon, and types egressd log alone.
func TestTheLogOfTheLastRunIsFound(t *testing.T) {
	d, config, _ := indexed(t)
	d.ExpectExit(t, 0, "run", "--config", config, "--", "true")
	if _, code := typed(t, d, "log", "--config", config, "kind:start"); code != 0 {
		t.Errorf("exit %d", code)
	}
	if _, code := typed(t, d, "log", "--config", config, "--dir", d.Dir+"/nowhere"); code != 1 {
		t.Errorf("of a folder that is not there: exit %d", code)
	}
}
