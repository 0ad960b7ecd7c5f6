package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestRunWithoutAFolderForItsLog has a state folder that cannot be made, as with a read-only HOME.
func TestRunWithoutAFolderForItsLog(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	if err := os.WriteFile(d.Config, []byte(world.RunPolicy+"upstream: {dns: ["+fmt.Sprint(world.Resolver)+"]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(d.Dir, "closed")
	if err := os.Mkdir(closed, 0o555); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ user, state string }{{"user", closed}, {"user", "/proc/self"}, {"root", "/proc/self"}, {"user", ""}, {"root", "/dev/null"}} {
		for _, flags := range [][]string{nil, {"--fs"}} {
			t.Run(strings.Join(append([]string{row.user, filepath.Base(row.state)}, flags...), " "), func(t *testing.T) {
				work, temporary := filepath.Join(d.Dir, "work"), filepath.Join(t.TempDir())
				if err := os.MkdirAll(work, 0o755); err != nil {
					t.Fatal(err)
				}
				for _, uid := range []string{"0", "1000"} {
					if err := os.Symlink("/usr", filepath.Join(temporary, "egressd-"+uid+"-link")); err != nil { // of an earlier program
						t.Fatal(err)
					}
				}
				cmd := jailed(t.Context(), d, row.user, flags, "sh", "-c", "ls $TMPDIR/*/runs; curl -sS -m9 http://evil.test/; exit 3")
				cmd.Dir = work
				cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+row.state, "TMPDIR="+temporary)
				if row.state == "" {
					cmd.Env = append(cmd.Env, "HOME=/dev/null")
				}
				var out, talk strings.Builder
				cmd.Stdout, cmd.Stderr = &out, &talk
				_ = d.World.Gateway.Run(cmd) // the code says it
				if cmd.ProcessState.ExitCode() != 3 || strings.Contains(talk.String(), "panic") {
					t.Fatalf("exit %d, %s", cmd.ProcessState.ExitCode(), talk.String())
				}
				logs, _ := filepath.Glob(filepath.Join(temporary, "*", "runs", "*"))
				if len(logs) != 1 || !strings.Contains(talk.String(), "egressd log --dir "+logs[0]) {
					t.Fatalf("logs %q, printed %s", logs, talk.String())
				}
				records, err := (&world.AuditLog{Dir: logs[0]}).Since(0)
				if r := (&ran{records: records}); err != nil || r.denied("evil.test", "default-deny") == 0 {
					t.Errorf("%v: %v", err, records)
				}
				if strings.Contains(out.String(), filepath.Base(logs[0])) {
					t.Errorf("the program sees its log: %s", out.String())
				}
			})
		}
	}
	// A policy that names the folder is obeyed.
	if err := os.WriteFile(d.Config, []byte(world.RunPolicy+"audit: {dir: /proc/self/log}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := runAs(t, d, "user", "true"); r.code != 125 || !strings.Contains(r.talk, "/proc/self/runs") {
		t.Errorf("exit %d, %s", r.code, r.talk)
	}
}
