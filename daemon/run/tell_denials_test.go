package run

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/talk"
)

// TestDenialsAreToldWhileTheProgramRuns tells of each destination once, of a flood a few lines, and nothing of a program that ends
// at once.
func TestDenialsAreToldWhileTheProgramRuns(t *testing.T) {
	for _, row := range []struct {
		says  string
		hosts func(i int) string
		many  int
		lasts time.Duration
		lines int
	}{
		{"a program that goes on", func(i int) string { return fmt.Sprintf("h%d.test", i) }, 3, time.Minute, 3},
		{"a program that ends at once", func(i int) string { return "a.test" }, 1, time.Second, 0},
		{"names below one domain", func(i int) string { return fmt.Sprintf("n%d.evil.com", i) }, 60, time.Minute, 1},
		{"many domains", func(i int) string { return fmt.Sprintf("h%d.com", i) }, 60, time.Minute, tellMost + 1},
		{"a name for a terminal", func(i int) string { return "a\x1b[2J\n.test" }, 1, time.Minute, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			r := &runner{talk: &talk.Held{To: &out}, options: Options{}, Daemon: &daemon.Daemon{Gate: new(egress.Gate)}}
			r.Gate.SetDenyMessages(egress.DenyMessages{User: "Ask Ada"})
			r.talk.Hold()
			r.noteDenials()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.tellDenials(ctx)
			}()
			for i := range row.many {
				r.tally.First(egress.DeniedHost{Host: row.hosts(i), Port: 443, Class: "default-deny", Reason: "no rule allows it"})
				synctest.Wait()
			}
			time.Sleep(row.lasts)
			cancel()
			<-done
			said := strings.Count(out.String(), "egressd: the operator says: Ask Ada\n")
			if said != min(row.lines, 1) {
				t.Errorf("%s: the operator's words are there %d times:\n%s", row.says, said, out.String())
			}
			if n := strings.Count(out.String(), "\n") - said; n != row.lines || strings.Contains(out.String(), "\x1b") {
				t.Errorf("%s: %d lines, want %d:\n%s", row.says, n, row.lines, out.String())
			}
		})
	}
}
