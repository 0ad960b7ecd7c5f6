package operator

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/egressd/egressd/e2e/world"
)

// TestThePageOfTheLastRun looks at a run that has ended: its log alone, which is whole, and no view of a daemon.
func TestThePageOfTheLastRun(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	if e := d.RunCommand(t, nil, "run", "--config", d.Config, "--", "curl", "-sS", "--max-time", "20", "http://denied.test/"); !strings.Contains(e.Out, "default-deny") {
		t.Fatalf("curl printed %q, and %s", e.Out, e.Talk)
	}
	cmd := d.Command(t.Context(), nil, "ui", "--no-open", "--run", "last", "--config", d.Config)
	link := linkOf(t, cmd, func() error { return d.World.Gateway.Start(cmd) })
	ctx := browserIn(t, d.World.Gateway)
	base := open(t, ctx, link)
	waitFor(t, ctx, "the denial, and the name of the run", "", `[...document.querySelectorAll("td.dest")].some(e => e.textContent == "denied.test:80") && document.querySelector(".log").textContent.startsWith("run ")`)
	waitFor(t, ctx, "a whole log", base+"/health", `document.querySelector(".result.good")?.textContent.includes("No record was changed or removed")`)
	waitFor(t, ctx, "the rules of its policy", base+"/policy", `[...document.querySelectorAll("table.rows td")].some(e => e.textContent.includes("ssh.allowed.test"))`)
	waitFor(t, ctx, "no view of a daemon", base+"/review", `!document.querySelector('nav a[href="/questions"]')`)
}

// TestThePageOutlivesTheDaemon keeps two tabs open while the daemon ends and starts again, and reloads a view with a
// filter in its address.
func TestThePageOutlivesTheDaemon(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "ask: [{host: asked.allowed.test, id: place}]\nallow: [allowed.test]\n"))
	link, _ := startPageOf(t, d)
	ctx := browserIn(t, d.World.Gateway)
	base := open(t, ctx, link)
	other, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if got := <-beside(t, d, askCurl+"http://allowed.test/first"); !strings.Contains(got, "GET /first") {
		t.Fatalf("curl printed %q", got)
	}
	waitFor(t, other, "the request in a second tab", base+"/requests?q=host%3Aallowed.test+verdict%3Aallow", `[...document.querySelectorAll("td.dest")].some(e => e.textContent == "allowed.test:80")`)
	do(t, other, chromedp.Reload())
	waitFor(t, other, "the same after a reload", "", `document.querySelector("#q").value == "host:allowed.test verdict:allow" && document.querySelectorAll("table.rows tbody tr").length == 1`)

	do(t, ctx, page.BringToFront()) // a tab in the background keeps no connection
	d.Stop(t)
	waitFor(t, ctx, "the word that the daemon does not answer", "", `document.querySelector(".state .notice.bad")?.textContent.includes("does not answer")`)
	waitFor(t, other, "the log without a daemon", base+"/requests?q=host%3Aallowed.test", `[...document.querySelectorAll("td.dest")].some(e => e.textContent == "allowed.test:80")`)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	waitFor(t, ctx, "the daemon again", "", `!document.querySelector(".state .notice.bad")`)
	if got := <-beside(t, d, askCurl+"http://allowed.test/second"); !strings.Contains(got, "GET /second") {
		t.Fatalf("curl printed %q", got)
	}
	waitFor(t, other, "what came after the restart", base+"/requests?q=path%3A%2Fsecond", `[...document.querySelectorAll(".path")].some(e => e.textContent == "/second")`)

	do(t, ctx, page.BringToFront())
	do(t, ctx, chromedp.Focus("#q", chromedp.ByQuery))
	waits := beside(t, d, askCurl+"http://asked.allowed.test/x")
	waitFor(t, ctx, "the question in the first tab, whose filter has the focus", "", `document.querySelector(".ask-bar .gives-up time")?.textContent.includes(" s") && document.activeElement.id == "q"`)
	do(t, ctx, chromedp.Evaluate(`window.kept = document.querySelector(".ask-bar form"); 0`, nil))
	waitFor(t, other, "the question in the second tab", base+"/questions", `document.querySelector(".question")`)
	do(t, other, chromedp.Click(".question button.primary", chromedp.ByQuery))
	if got := <-waits; !strings.Contains(got, "GET /x") {
		t.Errorf("approved in the second tab, curl printed %q", got)
	}
	do(t, ctx, page.BringToFront())
	waitFor(t, ctx, "no question in the first tab", "", `!document.querySelector(".ask-bar")`)
	do(t, ctx, chromedp.Evaluate(`document.body.append(window.kept); window.kept.submit(); 0`, nil))
	waitFor(t, ctx, "the word that somebody else was first", "", `document.querySelector(".notice.bad[role=alert]")?.textContent.includes("already")`)
}
