package operator

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/egressd/egressd/e2e/world"
)

// tabTo presses Tab until the element that a selector finds has the focus.
func tabTo(t *testing.T, ctx context.Context, selector string) {
	t.Helper()
	for range 80 {
		var there bool
		do(t, ctx, chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`document.activeElement.matches('`+selector+`')`, &there))
		if there {
			return
		}
	}
	t.Fatalf("Tab does not reach %s", selector)
}

// TestAReviewIsPutInForce reviews what was denied by default, with the keyboard alone: it marks a rule, looks at the
// change, saves it, and the daemon decides by it.
func TestAReviewIsPutInForce(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "allow: [elsewhere.allowed.test] # the only one\n"))
	link, _ := startPageOf(t, d)
	ctx := browserIn(t, d.World.Gateway)
	complaints := listen(ctx)
	base := open(t, ctx, link)
	if got := <-beside(t, d, askCurl+"http://new.allowed.test/x"); !strings.Contains(got, "default-deny") {
		t.Fatalf("before, curl printed %q", got)
	}
	waitFor(t, ctx, "the proposal", base+"/review?of=denied", `document.querySelector("[data-review] input")`)
	seriousFindings(t, ctx, "/review")
	tabTo(t, ctx, `[data-review] input[value*="new.allowed.test:80"]`)
	do(t, ctx, chromedp.KeyEvent("y"))
	waitFor(t, ctx, "the mark", "", `document.querySelector("[data-review] input").checked && document.activeElement.matches("[data-after]")`)
	do(t, ctx, chromedp.KeyEvent(kb.Enter))
	waitFor(t, ctx, "the change", "", `document.querySelector(".source .add")?.textContent.includes("new.allowed.test:80")`)
	waitFor(t, ctx, "the difference in the log", "", `[...document.querySelectorAll("table.rows tr")].some(e => e.textContent.includes("new.allowed.test:80") && e.querySelector(".verdict.deny + .quiet") && e.querySelector(".verdict.allow"))`)
	seriousFindings(t, ctx, "/change")
	tabTo(t, ctx, ".save button")
	do(t, ctx, chromedp.KeyEvent(kb.Enter))
	waitFor(t, ctx, "the word that it was saved", "", `location.pathname == "/policy" && document.querySelector("main .notice")?.textContent.includes("Saved to")`)
	waitFor(t, ctx, "the file in force", "", `document.querySelector(".in-force")`)
	if got := <-beside(t, d, askCurl+"http://new.allowed.test/x"); !strings.Contains(got, "GET /x") {
		t.Errorf("in force, curl printed %q", got)
	}
	waitFor(t, ctx, "the rule with its hit", base+"/policy", `[...document.querySelectorAll("table.rows tr")].some(e => e.textContent.includes("new.allowed.test:80") && e.querySelector("td.n a")?.textContent == "1")`)
	waitFor(t, ctx, "the proposal is done", base+"/review?of=denied", `document.body.textContent.includes("is in the policy") && !document.querySelector("[data-review] input")`)
	if all := complaints(); len(all) > 0 {
		t.Errorf("the browser complains: %s", all)
	}
}
