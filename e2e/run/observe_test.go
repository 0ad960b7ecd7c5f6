package run

import (
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// TestASessionIsWatchedAndThenEnforced watches real clients, has suggest write the rules, and enforces them: the same session
// passes without a denial, and ten things that it did not do are denied.
func TestASessionIsWatchedAndThenEnforced(t *testing.T) {
	const rules = "deny: [\"*.denied.test\"]\n"
	t.Run("serve, between two networks", func(t *testing.T) {
		d := world.Start(t, "version: 1\n"+world.Observed+rules)
		ca, dir := d.World.Origin.Ca.File(t), t.TempDir()
		s := world.Session{
			Daemon: d,
			Typed:  func(words ...string) (string, int) { return typed(t, d, words...) },
			Do: func(command string) (string, []record.Record) {
				return d.During(t, func() string {
					out, _ := d.Shell(dir, ca, command)
					return out
				})
			},
		}
		s.WatchedThenEnforced(t)
	})
	t.Run("run", func(t *testing.T) {
		d := world.NewDaemon(t, "version: 1\n"+rules)
		for name, value := range clientVariables(d, d.World.Origin.Ca.File(t)) {
			t.Setenv(name, value)
		}
		for name := range proxyNames {
			t.Setenv(name, "")
		}
		flags := []string{"--learn"}
		s := world.Session{
			Daemon:  d,
			Logs:    []string{"--run", "all"},
			Typed:   func(words ...string) (string, int) { return typed(t, d, words...) },
			Enforce: func() { flags = nil },
			Do: func(command string) (string, []record.Record) {
				r := runAs(t, d, "user", command, flags...)
				return r.out + r.talk, r.records
			},
		}
		s.WatchedThenEnforced(t)
	})
}
