package operator

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/egressd/egressd/e2e/chromium"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// shotsVariable names a folder for pictures of the views.
const shotsVariable = "EGRESSD_E2E_SHOTS"

// startPage starts egressd ui, and returns its link.
func startPage(t *testing.T, words ...string) string {
	t.Helper()
	return startPageIn(t, "", words...)
}

// startPageIn is startPage in a folder.
func startPageIn(t *testing.T, folder string, words ...string) string {
	t.Helper()
	cmd := exec.Command(world.Egressd.Path(), append([]string{"ui", "--no-open"}, words...)...)
	cmd.Dir = folder
	return linkOf(t, cmd, cmd.Start)
}

// linkOf, startPageOf, browserIn, open, do and waitFor are the functions of package chromium.

func linkOf(t *testing.T, cmd *exec.Cmd, start func() error) string {
	t.Helper()
	return chromium.LinkOf(t, cmd, start)
}

func startPageOf(t *testing.T, d *world.Daemon) (string, *exec.Cmd) {
	t.Helper()
	return chromium.StartPageOf(t, d)
}

func browserIn(t *testing.T, n *lab.Net) context.Context {
	t.Helper()
	return chromium.In(t, n)
}

func open(t *testing.T, ctx context.Context, link string) (base string) {
	t.Helper()
	return chromium.Open(t, ctx, link)
}

func do(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	chromium.Do(t, ctx, actions...)
}

func waitFor(t *testing.T, ctx context.Context, what, address, condition string) {
	t.Helper()
	chromium.WaitFor(t, ctx, what, address, condition)
}

// browser starts Chromium.
func browser(t *testing.T, more ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	chromium.Loopback(t)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(chromium.Profile(t)),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(options, more...)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// window sets the size and the colours of the window.
func window(width, height int64, scheme string) chromedp.Action {
	return chromedp.Tasks{
		chromedp.EmulateViewport(width, height),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}),
	}
}

var pageViews = []string{"/", "/timeline", "/destinations", "/destinations?by=program", "/sent", "/attempts", "/requests", "/requests?sort=-up", "/review?of=denied", "/health", "/help"}

func TestThePageOfALog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	plantedLog(t, dir)
	link := startPage(t, "--dir", dir)
	ctx := browser(t)
	complaints := listen(ctx)
	base := open(t, ctx, link)
	waitFor(t, ctx, "the attempts", base+"/attempts", `[...document.querySelectorAll(".story a")].some(e => e.textContent == "cdn-sync.example")`)
	for _, view := range pageViews {
		do(t, ctx, window(1360, 900, "light"), chromedp.Navigate(base+view), chromedp.WaitVisible("main", chromedp.ByQuery))
		seriousFindings(t, ctx, view)
		var wide bool
		do(t, ctx, window(360, 740, "dark"), chromedp.Evaluate(`document.documentElement.scrollWidth > innerWidth || [...document.querySelectorAll("main *")].some(e => e.scrollWidth > e.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(e).overflowX) && e.clientWidth > 0)`, &wide))
		if wide {
			t.Errorf("%s is wider than 360 px, or a part of it pans sideways", view)
		}
		seriousFindings(t, ctx, view+" narrow and dark")
	}
	t.Run("the figure on top of what left", func(t *testing.T) {
		waitFor(t, ctx, "the figure", base+"/sent", `document.querySelector(".big")?.textContent.includes("could not see the content")`)
		waitFor(t, ctx, "the treemap", "", `[...document.querySelectorAll(".treemap text")].some(e => e.textContent == "objects.cdn-sync.example")`)
	})
	t.Run("a drag chooses a span of time for the next view", func(t *testing.T) {
		do(t, ctx, window(1360, 900, "light"), chromedp.Navigate(base+"/timeline"), chromedp.WaitVisible(".bars", chromedp.ByQuery))
		var box struct{ X, Y, W, H float64 }
		do(t, ctx, chromedp.Evaluate(`(() => { const b = document.querySelector(".bars").getBoundingClientRect(); return {X: b.x, Y: b.y, W: b.width, H: b.height} })()`, &box))
		at := func(kind input.MouseType, part float64) chromedp.Action {
			return input.DispatchMouseEvent(kind, box.X+box.W*part, box.Y+box.H-4).WithButton(input.Left).WithClickCount(1)
		}
		do(t, ctx, at(input.MousePressed, 0.2), at(input.MouseMoved, 0.3), at(input.MouseMoved, 0.4), at(input.MouseReleased, 0.4))
		waitFor(t, ctx, "the span in the address", "", `location.search.includes("since%3A") && document.querySelector("#q").value.includes("until:")`)
		do(t, ctx, chromedp.Click(`nav a[href^="/destinations"]`, chromedp.ByQuery))
		waitFor(t, ctx, "the span in the next view", "", `location.pathname == "/destinations" && document.querySelector("#q").value.includes("since:")`)
	})
	t.Run("the keyboard reaches a story", func(t *testing.T) {
		do(t, ctx, chromedp.Navigate(base+"/"), chromedp.WaitVisible("#q", chromedp.ByQuery), chromedp.KeyEvent("/"))
		waitFor(t, ctx, "the filter has the focus", "", `document.activeElement.id == "q"`)
		do(t, ctx, chromedp.Evaluate(`document.querySelector("#q").select()`, nil), // the driver types the slash all the same
			chromedp.KeyEvent("host:paste.example.com"), chromedp.KeyEvent(kb.Enter))
		waitFor(t, ctx, "the filter", "", `location.search == "?q=host%3Apaste.example.com" && document.querySelectorAll("table.rows tbody tr").length == 1`)
		do(t, ctx, chromedp.Evaluate(`document.querySelector("table.rows a.id").focus()`, nil), chromedp.KeyEvent(kb.Enter))
		waitFor(t, ctx, "the story", "", `document.querySelector(".verdict-head.ask") && document.body.textContent.includes("uploads need a person")`)
	})
	if all := complaints(); len(all) > 0 {
		t.Errorf("the browser complains: %s", all)
	}
}

// listen collects what the console says: violations of the Content-Security-Policy and errors of scripts.
func listen(ctx context.Context) func() []string {
	var mu sync.Mutex
	var all []string
	note := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, text)
	}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == cdplog.LevelError {
				note(e.Entry.Text + " " + e.Entry.URL)
			}
		case *runtime.EventExceptionThrown:
			note(e.ExceptionDetails.Error())
		}
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// seriousFindings has axe-core look at the page. No violation is small enough.
func seriousFindings(t *testing.T, ctx context.Context, view string) {
	t.Helper()
	axe, err := os.ReadFile(world.Source("tools", "npm", "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	ask := `axe.run().then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.html.slice(0, 160) + " " + (n.any[0]?.message || "")).slice(0, 3).join(" | ")))`
	do(t, ctx, chromedp.Evaluate(string(axe)+"\n;0", nil), chromedp.Evaluate(ask, &found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	for _, text := range found {
		t.Errorf("%s: %s", view, text)
	}
}

// pictures takes pictures of each view.
func pictures(t *testing.T, ctx context.Context, base, folder string) {
	do(t, ctx, chromedp.Navigate(base+"/attempts"), chromedp.Sleep(2*time.Second))
	for _, look := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{"light", 1360, 900, "light"}, {"dark", 1360, 900, "dark"}, {"narrow", 360, 740, "light"}, {"wide", 2560, 1200, "light"}} {
		for _, view := range pageViews {
			var picture []byte
			do(t, ctx, window(look.width, look.height, look.scheme), chromedp.Navigate(base+view), chromedp.Sleep(300*time.Millisecond), chromedp.CaptureScreenshot(&picture))
			name := fmt.Sprintf("%s-%s.png", look.name, strings.Trim(strings.NewReplacer("/", "-", "?", "-", "=", "-").Replace(view), "-"))
			if err := os.WriteFile(filepath.Join(folder, name), picture, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestThePageOfADaemon answers a question while curl waits, makes a grant and takes it back, and looks at what the log
// has of both. Daemon, page and browser are in one network, in which a sandbox's proxy is, too.
func TestThePageOfADaemon(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "ask: [{host: allowed.test, id: place}]\n"))
	mark := d.LogMark(t)
	link, cmd := startPageOf(t, d)
	ctx := browserIn(t, d.World.Gateway)
	base := open(t, ctx, link)

	waits := beside(t, d, askCurl+"http://allowed.test/x")
	waitFor(t, ctx, "the question in a view that is open", "", `document.querySelector("nav .badge")?.textContent == "1"`)
	do(t, ctx, chromedp.Click(`.ask-bar a[href^="/questions"]`, chromedp.ByQuery), chromedp.WaitVisible(".question", chromedp.ByQuery))
	seriousFindings(t, ctx, "/questions")
	do(t, ctx, chromedp.Click(".question button.primary", chromedp.ByQuery))
	if got := <-waits; !strings.Contains(got, "GET /x") {
		t.Errorf("approved, curl printed %q", got)
	}
	waitFor(t, ctx, "the answer", "", `document.body.textContent.includes("approved once") && !document.querySelector(".question")`)

	do(t, ctx, chromedp.Navigate(base+"/policy"), chromedp.SetValue("#pattern", "granted.allowed.test", chromedp.ByQuery), chromedp.Click(`form[action="/grants"] button`, chromedp.ByQuery))
	waitFor(t, ctx, "the grant", "", `[...document.querySelectorAll("#grants td.dest")].some(e => e.textContent == "granted.allowed.test")`)
	seriousFindings(t, ctx, "/policy")
	if got := <-beside(t, d, askCurl+"http://granted.allowed.test/y"); !strings.Contains(got, "GET /y") {
		t.Errorf("granted, curl printed %q", got)
	}
	do(t, ctx, chromedp.Click(`#grants td form button`, chromedp.ByQuery))
	waitFor(t, ctx, "no grant", "", `!document.querySelector("#grants td.dest")`)
	if got := <-beside(t, d, askCurl+"http://granted.allowed.test/z"); !strings.Contains(got, "default-deny") {
		t.Errorf("taken back, curl printed %q", got)
	}
	waitFor(t, ctx, "how long a decision takes", base+"/health", `[...document.querySelectorAll(".facts > div")].some(e => /^a decision.*half of \d+ within [\d.]+ ms/.test(e.textContent))`)
	do(t, ctx, chromedp.Click(`form[action="/health/selftest"] button`, chromedp.ByQuery))
	waitFor(t, ctx, "the self-test", "", `[...document.querySelectorAll(".result.good")].some(e => /No escape of \d\d worked/.test(e.textContent))`)
	seriousFindings(t, ctx, "/health")
	waitFor(t, ctx, "an answer of the explain box", base+"/policy?request=https://nobody.test/", `document.querySelector(".result .verdict.deny")`)

	_, port, _ := strings.Cut(strings.TrimPrefix(base, "http://"), ":")
	if got := <-beside(t, d, askCurl+"http://127.0.0.1:"+port+"/"); !strings.Contains(got, `"class":"address-denied"`) {
		t.Errorf("a sandbox that knows the port got %q", got)
	}
	notes := []string{}
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Kind == record.KindAdmin {
			notes = append(notes, r.Note)
		}
	}
	for _, want := range []string{"a page at port " + port, "approve question", "grant", "revoke grant"} {
		if !slices.ContainsFunc(notes, func(n string) bool {
			return strings.Contains(n, want) && strings.Contains(n, fmt.Sprintf("pid %d", cmd.Process.Pid))
		}) {
			t.Errorf("the log has no %q of the page: %q", want, notes)
		}
	}
}
