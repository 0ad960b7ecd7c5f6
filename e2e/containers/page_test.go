package containers

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/chromium"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab/engine"
)

// TestDeniedInAContainerIsAllowedFromTheRow: what a container is denied is allowed by two clicks on the page of the daemon that it is behind,
// and its next request has an answer, without a restart. It counts for the list of the sandbox that was denied.
func TestDeniedInAContainerIsAllowedFromTheRow(t *testing.T) {
	w := theEngine(t)
	if w == nil {
		return
	}
	d := w.startBeside(t, strings.Replace(dockerPolicy, "listen: {", "listen: {admin: \"unix:${XDG_RUNTIME_DIR}/operator/admin.sock\", ", 1))
	contained := func(sandbox, image string) waysOut {
		c := w.contain(t, "--network", "none", "-v", world.Egressd.Path()+":/egressd:ro", "-v", filepath.Join(d.Dir, sandbox)+":/run/egressd:ro", image, "/egressd", "enter", "--", engine.ProbePath, "wait")
		w.said(t, c, "sandbox "+sandbox+" · transparent")
		return w.ways(t, c)
	}
	web := contained("web", engine.Shell)
	link, _ := chromium.StartPageOf(t, d)
	ctx := chromium.In(t, d.World.Gateway)
	base := chromium.Open(t, ctx, link)
	const request = "get http://evil.test/x"
	if printed := web(request); !strings.Contains(printed, "default-deny") {
		t.Fatalf("before, it printed %q", printed)
	}
	took := chromium.AllowFromRow(t, ctx, base, "host:evil.test sandbox:web")
	if printed := web(request); !strings.Contains(printed, "200 OK") || !strings.Contains(printed, "GET /x") {
		t.Errorf("allowed, it printed %q", printed)
	}
	if printed := web("get http://other.test/x"); strings.Contains(printed, "200 OK") {
		t.Errorf("another host: it printed %q", printed)
	}
	t.Logf("denied in a container, and allowed from the row: 2 clicks, %s", took)
}
