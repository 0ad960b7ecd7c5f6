package containers

import (
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/chromium"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
)

// TestDeniedInAContainerIsAllowedFromTheRow: what a container is denied is allowed by two clicks on the page of the daemon that it is behind,
// and its requests have answers as soon as the file is in force, without a restart.
func TestDeniedInAContainerIsAllowedFromTheRow(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	policy := strings.Replace(dockerPolicy, "listen: {", "listen: {admin: \""+world.AdminSocket+"\", ", 1)
	d := w.startBeside(t, strings.Replace(policy, `"*.allowed.test"`, "b.allowed.test", 1))
	out, err := w.dockerRun(t.Context(), d, "web", "-d", engine.Shell).Output()
	if err != nil {
		t.Fatal(err)
	}
	c := strings.TrimSpace(string(out))
	t.Cleanup(func() { w.docker(t, "rm", "-f", c) })
	w.said(t, c, "sandbox web · transparent")
	web := w.ways(t, c)
	link, _ := chromium.StartPageOf(t, d)
	ctx := chromium.In(t, d.World.Gateway)
	base := chromium.Open(t, ctx, link)
	const request = "get http://new.allowed.test/x"
	if printed := web(request); !strings.Contains(printed, "default-deny") {
		t.Fatalf("before, the container printed %q", printed)
	}
	took := chromium.AllowFromRow(t, ctx, base, "host:new.allowed.test sandbox:web")
	saved, printed := time.Now(), ""
	if !world.Eventually(world.Settling, func() bool { // egressd looks at the file for itself
		printed = web(request)
		return strings.Contains(printed, "200 OK") && strings.Contains(printed, "GET /x")
	}) {
		t.Errorf("allowed, it printed %q", printed)
	}
	took += time.Since(saved).Round(time.Millisecond)
	if printed := web("get http://other.allowed.test/x"); strings.Contains(printed, "200 OK") {
		t.Errorf("another host: it printed %q", printed)
	}
	t.Logf("denied in a container, allowed from the row, and works: 2 clicks, %s", took)
}
