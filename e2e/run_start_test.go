package e2e

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestTheSandboxIsBegunFirst looks at the order in which the parts of the command
// are initialised: what starts a sandbox comes before the large ones.
func TestTheSandboxIsBegunFirst(t *testing.T) {
	cmd := exec.Command(os.Getenv(binaryVariable), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at := func(path string) int { return strings.Index(string(out), "\ninit "+path+" @") }
	first := at("github.com/egressd/egressd/internal/ahead")
	if first < 0 {
		t.Fatalf("nothing is begun ahead:\n%s", out)
	}
	for _, later := range []string{"github.com/open-policy-agent/opa/v1/ast", "net", "net/http", "encoding/json", "crypto/internal/fips140/check"} {
		if other := at(later); other < first {
			t.Errorf("%s is initialised before what starts a sandbox (at %d, %d)", later, other, first)
		}
	}
}

// TestARunThatIsNoneLeavesNothing has run refuse what it is asked for, when the
// sandbox is begun already. What was begun has the streams of the command, which
// stay open for as long as it is there.
func TestARunThatIsNoneLeavesNothing(t *testing.T) {
	for name, words := range map[string][]string{
		"help":                     {"--help"},
		"no program":               {},
		"a flag that there is not": {"--nothing", "--", "true"},
		"no policy":                {"--config", "/nonexistent/egressd.yaml", "--", "true"},
		"a port that is none":      {"-p", "x", "--", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Getenv(binaryVariable), append([]string{"run"}, words...)...)
			cmd.WaitDelay = 20 * time.Second
			out, err := cmd.CombinedOutput()
			if errors.Is(err, exec.ErrWaitDelay) {
				t.Errorf("something is left that has its streams: %s", out)
			}
			if said := regexp.MustCompile(`(?i)panic|goroutine \d|jail-stage`).Find(out); said != nil || len(out) == 0 {
				t.Errorf("said %s", out)
			}
		})
	}
}
