package operator

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// hostilePage is a page of another origin. It tries to read the page of egressd, to change something there, and
// to make its answers into scripts and styles. attack tells what it got.
const hostilePage = `<!doctype html><title>hostile</title><body><script>
const page = %q;
const within = (p, ms) => Promise.race([p, new Promise(r => setTimeout(() => r("nothing in time"), ms))]);
const element = (name, set) => new Promise(r => { const e = document.createElement(name); e.onload = () => r("LOADED"); e.onerror = () => r("refused"); set(e); document.body.append(e); });
const get = (path, o) => fetch(page + path, {credentials: "include", ...o}).then(async a => a.type === "opaque" ? "opaque" : "READ " + await a.text(), () => "refused");
async function attack() {
  const got = {};
  got.fetch = await get("/v1/records");
  got.opaque = await get("/v1/records", {mode: "no-cors"});
  got.post = await get("/health/verify", {method: "POST", mode: "no-cors", body: new URLSearchParams({csrf: "x"})});
  got.image = await within(element("img", e => e.src = page + "/"), 4000);
  got.script = await within(element("script", e => e.src = page + "/v1/records"), 4000);
  got.style = await within(element("link", e => { e.rel = "stylesheet"; e.href = page + "/"; }), 4000);
  got.events = await within(new Promise(r => { const s = new EventSource(page + "/v1/events", {withCredentials: true}); s.onopen = () => r("OPEN"); s.onmessage = () => r("READ"); s.onerror = () => r("refused"); }), 4000);
  const other = window.open(page + "/", "_blank");
  const look = () => { try { return other.location.href === "about:blank" ? "nothing in time" : "READ " + other.document.title; } catch { return "refused"; } };
  got.window = other ? "nothing in time" : "no window";
  for (let i = 0; i < 50 && got.window === "nothing in time"; i++) {
    await new Promise(r => setTimeout(r, 100));
    got.window = look();
  }
  return got;
}
</script><p id=f>`

// TestAnotherOriginGetsNothing opens the page in Chromium, and then a hostile page in the same browser: at another
// site, at another port of the same name, and at a name below the page's own.
func TestAnotherOriginGetsNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	plantedLog(t, dir)
	link := startPage(t, "--dir", dir)
	page, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 100)
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, hostilePage, "http://"+page.Host)
			asked <- r.Header.Get("Cookie")
		}
	}))
	t.Cleanup(hostile.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(hostile.URL, "http://"), ":")
	ctx := browser(t, chromedp.Flag("host-resolver-rules", "MAP *.evil.test 127.0.0.1"), chromedp.Flag("disable-popup-blocking", true))
	base := open(t, ctx, link)
	for _, from := range []string{"http://site.evil.test:" + port, "http://" + page.Hostname() + ":" + port, "http://x." + page.Hostname() + ":" + port} {
		do(t, ctx, chromedp.Navigate(from+"/"), chromedp.WaitReady("#f", chromedp.ByQuery))
		if cookie := <-asked; cookie != "" && from != "http://"+page.Hostname()+":"+port {
			t.Errorf("%s is sent the cookie", from)
		}
		got := map[string]string{}
		do(t, ctx, chromedp.Evaluate(`attack()`, &got, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
		t.Logf("%s: %v", from, got)
		for what, answer := range got {
			if answer != "refused" && answer != "opaque" && answer != "nothing in time" && answer != "no window" {
				t.Errorf("%s: %s: %.200s", from, what, answer)
			}
		}
		if len(got) != 8 {
			t.Errorf("%s: only %v was tried", from, got)
		}
	}
	t.Run("a name that is rebound to this machine", func(t *testing.T) {
		var text string
		do(t, ctx, chromedp.Navigate("http://rebound.evil.test:"+page.Port()+"/"), chromedp.Text("body", &text, chromedp.ByQuery))
		if !strings.Contains(text, "This is not the address of the page") {
			t.Errorf("it shows %.300s", text)
		}
	})
	t.Run("the link again, in the same browser", func(t *testing.T) {
		var text string
		do(t, ctx, chromedp.Navigate(link), chromedp.Text("body", &text, chromedp.ByQuery))
		if !strings.Contains(text, "This link was used already") {
			t.Errorf("it shows %.300s", text)
		}
	})
	waitFor(t, ctx, "the page itself", base+"/", `document.querySelector("nav")`)
}
