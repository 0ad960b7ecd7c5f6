package run

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestAtItsEndRunOffersToAllow has a person answer at a terminal. Keys from before the offer are the shell's, and then nothing is offered. Metadata and
// private addresses are not offered.
func TestAtItsEndRunOffersToAllow(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	outer := exec.Command("bash", "--norc", "--noprofile", "-i")
	outer.Dir = d.Dir
	outer.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir, "PS1=outer> ", "TERM=xterm", "CI=", "HISTFILE=", "RUN="+world.Egressd.Path()+" run --config "+d.Config+" --")
	c := onTerminal(t, d, outer)
	c.until("outer> ")

	const denied = "for u in a.evil.test b.evil.test 169.254.169.254 10.0.0.1; do curl -sm9 http://$u/; done; exit 4"
	c.types("$RUN sh -c 'echo begun; while ! [ -e typed ]; do sleep 0.02; done; " + denied + "'\n")
	c.until("begun\r\n")
	c.types("echo 'ke''pt'; unset x")
	c.until("unset x") // the terminal has it
	writeFiles(t, d, 0o600, map[string]string{"typed": ""})
	if got := c.until("outer> "); strings.Contains(got, "q: quit") {
		t.Errorf("offered to who types on: %q", got)
	}
	c.types("\n")
	c.until("kept")
	c.until("outer> ")
	for _, environment := range []string{"CI=true", "TERM=dumb"} {
		c.types(environment + " $RUN sh -c '" + denied + "'; echo 'ov''er'\n")
		if got := c.until("over"); strings.Contains(got, "q: quit") || !strings.Contains(got, "to allow it: ") {
			t.Errorf("%s: %q", environment, got)
		}
		c.until("outer> ")
	}
	c.types("$RUN sh -c '" + denied + "'\n")
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
