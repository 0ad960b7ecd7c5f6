package run

import (
	"fmt"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestWhatIsTypedInsideIsForAPersonOutside has a program under run type what is for the person who started it, as one does that
// follows a printed fix: each is refused with the words to pass on, and nothing changes. What works on files of its own goes on.
func TestWhatIsTypedInsideIsForAPersonOutside(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	before := policyText(t, d)
	outside := []string{
		"allow evil.test --from C000000000 --save", "deny a.allowed.test", "answer C000000000 yes", "answer",
		"log", "log by host", "log verify", "log signals", "log export --format json", "why C000000000", "ui",
		"status", "cut C000000000", "reload", "check https://evil.test/", "policy suggest", "policy replay", "policy trust",
		"doctor", "doctor --inside", "doctor --escapes",
	}
	inside := []string{"version", "policy ls " + d.Config, "policy show npm", "policy diff " + d.Config + " " + d.Config, "help policy"}
	var script strings.Builder
	for i, line := range append(append([]string{}, outside...), inside...) {
		fmt.Fprintf(&script, "%s %s >said 2>talk; echo %d $? $(wc -c <said) $(grep -c 'type, outside: egressd %s' talk)\n", world.Egressd.Path(), line, i, line[:strings.IndexAny(line+" ", " ")])
	}
	for _, as := range []string{"user", "root"} {
		r := runAs(t, d, as, script.String())
		for i, line := range outside {
			if want := fmt.Sprintf("%d 1 0 1\n", i); !strings.Contains("\n"+r.out, "\n"+want) {
				t.Errorf("%s: %s: want %q in\n%s", as, line, want, r.out)
			}
		}
		for i, line := range inside {
			if !strings.Contains(r.out, fmt.Sprintf("\n%d 0 ", len(outside)+i)) {
				t.Errorf("%s: %s: %s", as, line, r.out)
			}
		}
	}
	if after := policyText(t, d); after != before {
		t.Errorf("the policy is\n%s", after)
	}
}
