package run

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// TestRunAnswersAtTheProxyOfThePolicy has programs that were set up for egressd serve work under run, and leaves the
// port to the program if the policy has no proxy there.
func TestRunAnswersAtTheProxyOfThePolicy(t *testing.T) {
	const asks = `for h in a.allowed.test evil.test; do curl -sS -m9 -x http://127.0.0.1:3128 http://$h/x 2>&1; done`
	d := world.NewDaemon(t, "version: 1\nlisten: {proxy: [\"127.0.0.1:3128\"]}\nallow: [\"*.allowed.test\"]\n")
	r := runAs(t, d, "user", asks)
	if !strings.Contains(r.out, "origin") || r.denied("evil.test", policy.DefaultDeny) != 1 || !strings.Contains(r.out, "default-deny") {
		t.Errorf("%q %q", r.out, r.talk)
	}
	d = world.NewDaemon(t, "version: 1\nlisten: {proxy: [\"127.0.0.1:3129\"]}\nallow: [\"*.allowed.test\"]\n")
	if r = runAs(t, d, "user", asks); strings.Contains(r.out, "origin") || strings.Count(r.out, "curl: (7)") != 2 {
		t.Errorf("without a proxy there: %q %q", r.out, r.talk)
	}
}
