package operator

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestTheKeyboardReachesEverything presses Tab in each view until it comes to the end. Everything that the pointer can use has
// had the focus then, with an outline.
func TestTheKeyboardReachesEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	plantedLog(t, dir)
	ctx := browser(t)
	base := open(t, ctx, startPage(t, "--dir", dir))
	waitFor(t, ctx, "the attempts", base+"/attempts", `document.querySelector(".story") && !document.querySelector("[data-reading]")`)
	views := append([]string{"/destinations?by=program", "/request/01KB040001"}, pageViews...)
	for _, view := range views {
		do(t, ctx, chromedp.Navigate(base+view), chromedp.WaitVisible("main", chromedp.ByQuery), chromedp.Evaluate(`
			window.wanted = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")].filter(e => !e.disabled && e.type != "hidden" && e.tabIndex >= 0 && e.checkVisibility());
			window.seen = new Set(); window.plain = []; 0`, nil))
		for range 400 {
			var more bool
			do(t, ctx, chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`(e => { if (e === document.body || seen.has(e)) return false; seen.add(e); if (getComputedStyle(e).outlineStyle == "none") plain.push(e.outerHTML.slice(0, 120)); return true })(document.activeElement)`, &more))
			if !more {
				break
			}
		}
		var missed, plain []string
		var wanted int
		do(t, ctx, chromedp.Evaluate(`wanted.filter(e => !seen.has(e)).map(e => e.outerHTML.slice(0, 120))`, &missed), chromedp.Evaluate(`plain`, &plain), chromedp.Evaluate(`wanted.length`, &wanted))
		if len(missed) > 0 || wanted < 8 {
			t.Errorf("%s: of %d elements Tab misses %d: %.400q", view, wanted, len(missed), missed)
		}
		if len(plain) > 0 {
			t.Errorf("%s: without an outline: %.400q", view, plain)
		}
	}
}

// TestTheStreamHoldsWhileItIsRead has a record come while the pointer is on the stream, and then takes the pointer away.
func TestTheStreamHoldsWhileItIsRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	plantedLog(t, dir)
	ctx := browser(t)
	base := open(t, ctx, startPage(t, "--dir", dir))
	const newRow = `[...document.querySelectorAll("td.dest")].some(e => e.textContent == "%s.example:443")`
	do(t, ctx, window(1280, 900, "light"), chromedp.Navigate(base+"/"), chromedp.WaitVisible("[data-live=stream] td.dest", chromedp.ByQuery))
	var at struct{ X, Y float64 }
	do(t, ctx, chromedp.Evaluate(`(b => ({X: b.x + 40, Y: b.y + 60}))(document.querySelector("[data-live=stream]").getBoundingClientRect())`, &at))
	move := func(x, y float64) { do(t, ctx, input.DispatchMouseEvent(input.MouseMoved, x, y)) }

	move(at.X, at.Y)
	appendDenial(t, dir, "held")
	waitFor(t, ctx, "the word that rows wait", "", `document.querySelector("[data-newer]")?.checkVisibility()`)
	waitFor(t, ctx, "the same rows", "", "!("+fmt.Sprintf(newRow, "held")+")")
	move(1, 1)
	waitFor(t, ctx, "the new row", "", fmt.Sprintf(newRow, "held")+` && !document.querySelector("[data-newer]").checkVisibility()`)

	do(t, ctx, chromedp.Click("[data-pause]", chromedp.ByQuery))
	move(1, 1)
	appendDenial(t, dir, "paused")
	waitFor(t, ctx, "the figure that goes on", "", `document.querySelector(".figure.deny strong").textContent == "200"`)
	waitFor(t, ctx, "no row while it is paused", "", "!("+fmt.Sprintf(newRow, "paused")+")")
	do(t, ctx, chromedp.Click("[data-pause]", chromedp.ByQuery))
	move(1, 1)
	waitFor(t, ctx, "the row after the pause", "", fmt.Sprintf(newRow, "paused"))
}

// appendDenial writes a record behind a planted log.
func appendDenial(t *testing.T, dir, host string) {
	t.Helper()
	path := filepath.Join(dir, "00000001.log")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seq := bytes.Count(text, []byte("\n"))
	if _, err := fmt.Fprintf(f, `{"v":1,"seq":%d,"time":"2030-01-01T00:00:00.000000Z","kind":"open","flow":"01KE%06X","sandbox":"docs","via":"connect","dst":{"host":"%s.example","port":443},`+sceneDenied+"}\n", seq, seq, host, "/usr/bin/curl", "curl"); err != nil {
		t.Fatal(err)
	}
}

const sceneDenied = `"process":{"pid":71,"exe":"%s","argv":["%s"]},"decision":{"action":"deny","rule":"default","layer":"builtin","reason":"no rule allows it","class":"default-deny",` + scenePolicy + `}`
