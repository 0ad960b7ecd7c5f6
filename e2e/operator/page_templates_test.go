package operator

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/egressd/egressd/e2e/world"
)

// TestThePageOfManySandboxesOfATemplate looks at twenty sandboxes whose ids are UUIDs: each can be reached from the first view, their rows
// stay low in a narrow window, and a list that is cut shows the same ones each time.
func TestThePageOfManySandboxesOfATemplate(t *testing.T) {
	d := world.NewDaemon(t, world.WithAdmin(world.AdminSocket, "allow: [\"*.allowed.test\"]\nsandboxes: [{name: \"e2b-{id}\", user: \"sbx-{id}\", token_file: web.token}]\n"))
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	dir := t.TempDir()
	for i := range 20 {
		if _, err := d.Shell(dir, "", fmt.Sprintf("curl -sS -m20 -x http://$LAB_PROXY --proxy-user sbx-0b9a7f42-5c1d-4e53-9a55-1f9d3d0c2a%02d:another-secret http://a.allowed.test/x http://evil.test/y", i)); err != nil {
			t.Fatal(err)
		}
	}
	link, _ := startPageOf(t, d)
	ctx := browserIn(t, d.World.Gateway)
	complaints := listen(ctx)
	base := open(t, ctx, link)
	const cards = `document.querySelectorAll("aside .card").length`
	waitFor(t, ctx, "twelve sandboxes, and a link to the others", base+"/", cards+` == 12 && document.querySelector("aside .more a")?.textContent == "and 8 more"`)
	do(t, ctx, chromedp.Click("aside .more a", chromedp.ByQuery))
	waitFor(t, ctx, "all sandboxes", "", cards+` == 20 && [...document.querySelectorAll("aside .card h3")].some(e => e.textContent.endsWith("2a00"))`)
	seriousFindings(t, ctx, "/ with all sandboxes")

	for _, view := range []string{"/", "/requests"} {
		do(t, ctx, window(360, 740, "light"), chromedp.Navigate(base+view), chromedp.WaitVisible("table.rows", chromedp.ByQuery))
		var highest float64
		do(t, ctx, chromedp.Evaluate(`Math.max(...[...document.querySelectorAll("table.rows tbody tr")].map(e => e.getBoundingClientRect().height))`, &highest))
		if highest > 160 { // a card of six lines, one of them for the acts
			t.Errorf("%s: a row is %.0f px high in a narrow window", view, highest)
		}
	}
	const who = `document.querySelector("table.rows td:nth-child(6)")?.textContent`
	var first, again string
	do(t, ctx, chromedp.Navigate(base+"/sent"), chromedp.WaitVisible("table.rows", chromedp.ByQuery), chromedp.Evaluate(who, &first))
	for range 3 {
		do(t, ctx, chromedp.Reload(), chromedp.WaitVisible("table.rows", chromedp.ByQuery), chromedp.Evaluate(who, &again))
		if again != first || again == "" {
			t.Errorf("by %q, and then by %q", first, again)
		}
	}
	if all := complaints(); len(all) > 0 {
		t.Errorf("the browser complains: %s", all)
	}
}
