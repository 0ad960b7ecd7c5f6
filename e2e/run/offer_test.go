package run

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestAtItsEndRunOffersToAllow has a person answer at a terminal. Keys from before the offer do not count. Metadata and
// private addresses are not offered.
func TestAtItsEndRunOffersToAllow(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	outer := exec.Command("bash", "--norc", "--noprofile", "-i")
	outer.Dir = d.Dir
	outer.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "PS1=outer> ", "TERM=dumb", "HISTFILE=", "RUN="+world.Egressd.Path()+" run --config "+d.Config+" --")
	c := onTerminal(t, d, outer)
	c.until("outer> ")

	c.types("$RUN sh -c 'echo begun; sleep 1; for u in a.evil.test b.evil.test 169.254.169.254 10.0.0.1; do curl -sm9 http://$u/; done; exit 4'\n")
	c.until("begun\r\n")
	c.types("yyyy")
	first := c.until("q: quit ")
	c.types("n")
	second := c.until("q: quit ")
	if strings.Contains(policyText(t, d), "evil.test") {
		t.Error("a key from before the offer counts")
	}
	c.types("y")
	rest := c.until("outer> ")
	last := second[strings.LastIndex(second, "egressd: run "):] + rest
	if strings.Contains(last, "169.254.169.254") || strings.Contains(last, "10.0.0.1") {
		t.Errorf("offered: %q", last)
	}
	if !strings.Contains(first, "denied: a.evil.test:80") || !strings.Contains(second, "run egressd allow b.evil.test") {
		t.Errorf("%q, then %q", first, second)
	}
	text := policyText(t, d)
	if strings.Contains(text, "a.evil.test") || !strings.Contains(text, "b.evil.test") || strings.Contains(text, "169.254") {
		t.Errorf("the policy is %s\n%s", text, rest)
	}
	c.types("echo code $?\n")
	c.until("code 4")
	c.until("outer> ")

	c.types("$RUN curl -sm9 http://a.evil.test/ </dev/null\n")
	if got := c.until("outer> "); strings.Contains(got, "q: quit") || !strings.Contains(got, "denied: a.evil.test") {
		t.Errorf("without a terminal to read from: %q", got)
	}
}

func policyText(t *testing.T, d *world.Daemon) string {
	t.Helper()
	text, err := os.ReadFile(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
