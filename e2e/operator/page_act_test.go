package operator

import (
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/chromium"
	"github.com/egressd/egressd/e2e/world"
)

// TestDeniedIsAllowedFromTheRow beside a daemon: what curl is denied is allowed by two clicks, and curl has its answer as soon as the file is in force. A neighbour
// of the host stays denied.
func TestDeniedIsAllowedFromTheRow(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [elsewhere.allowed.test]\n"))
	link, _ := startPageOf(t, d)
	ctx := browserIn(t, d.World.Gateway)
	base := open(t, ctx, link)
	for _, host := range []string{"new.allowed.test", "other.allowed.test"} {
		if got := <-beside(t, d, askCurl+"http://"+host+"/x"); !strings.Contains(got, "default-deny") {
			t.Fatalf("before, curl printed %q", got)
		}
	}
	took := chromium.AllowFromRow(t, ctx, base, "host:new.allowed.test")
	saved, got := time.Now(), ""
	if !world.Eventually(world.Settling, func() bool { // egressd looks at the file for itself
		got = <-beside(t, d, askCurl+"http://new.allowed.test/x")
		return strings.Contains(got, "GET /x")
	}) {
		t.Errorf("allowed, curl printed %q", got)
	}
	took += time.Since(saved).Round(time.Millisecond)
	if got := <-beside(t, d, askCurl+"http://other.allowed.test/x"); !strings.Contains(got, "default-deny") {
		t.Errorf("its neighbour: curl printed %q", got)
	}
	t.Logf("denied, allowed from the row, and works: 2 clicks, %s", took)
}
