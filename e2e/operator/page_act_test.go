package operator

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/chromium"
	"github.com/egressd/egressd/e2e/world"
)

// TestDeniedIsAllowedFromTheRow beside a daemon: what curl is denied is allowed by two clicks, and the next curl has its answer. A neighbour
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
	got := <-beside(t, d, askCurl+"http://new.allowed.test/x")
	if !strings.Contains(got, "GET /x") {
		t.Errorf("allowed, curl printed %q", got)
	}
	if got := <-beside(t, d, askCurl+"http://other.allowed.test/x"); !strings.Contains(got, "default-deny") {
		t.Errorf("its neighbour: curl printed %q", got)
	}
	t.Logf("denied, and allowed from the row: 2 clicks, %s", took)
}
