package operator

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/quantity"
)

// auditedVariable names a folder in which the log of the day stays, for a person who tries the page.
const auditedVariable = "EGRESSD_E2E_AUDITED"

// A day is a signed log of what five sandboxes did yesterday. One program sends data out through a rule that was made for
// the uploads of another.
type day struct {
	dir, key string

	uploads  int   // of the data that was sent out
	uploaded int64 // bytes
	denials  int   // of the host that was denied most
}

// The data of the day goes to leakHost. The rule leakRule was made for artifactHost.
const (
	artifactHost = "artifacts.storage.example"
	leakHost     = "u7.storage.example"
	leakRule     = "build-artifacts"
	leakProgram  = "/home/agent/.cache/pip/wheelsync"
	deniedMost   = "telemetry.framework.example"
)

// writeDay writes the log of a day through the audit log of egressd, so that each record is numbered, dated and signed. Its
// clock is that of a bubble, in which the day passes at once.
func writeDay(t *testing.T, dir string) *day {
	t.Helper()
	d := &day{dir: dir}
	today, keys := time.Now(), filepath.Join(t.TempDir(), "keys")
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(today.Year(), today.Month(), today.Day()-1, 0, 0, 0, 0, time.Local)))
		l, err := audit.Create(dir, audit.Options{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		w := &dayScene{t: t, log: l, day: d, random: rand.New(rand.NewPCG(21, 4))}
		w.write(`"kind":"start","note":"egressd started"`)
		w.write(`"kind":"policy","decision":{` + scenePolicy + `},"note":"loaded, 13 rules"`)
		for minute := range 24 * 60 {
			start := time.Now()
			w.minute(minute)
			time.Sleep(time.Until(start.Add(time.Minute)))
		}
		_, d.key = l.Origin()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
	return d
}

type dayScene struct {
	t      *testing.T
	log    *audit.Log
	day    *day
	random *rand.Rand
	flows  int
}

func (w *dayScene) write(format string, a ...any) {
	w.t.Helper()
	if _, err := w.log.Append(fmt.Appendf(nil, "{"+format+"}", a...)); err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(time.Duration(20+w.random.IntN(900)) * time.Millisecond)
}

func (w *dayScene) flow() string { w.flows++; return fmt.Sprintf("01KC%06X", 0x1000+7*w.flows) }

// between returns a random number.
func (w *dayScene) between(least, most int) int { return least + w.random.IntN(most-least+1) }

// often reports true n of 100 times.
func (w *dayScene) often(n int) bool { return w.random.IntN(100) < n }

// head is the beginning of the records of a flow.
func (w *dayScene) head(sandbox, exe, host string) string {
	return fmt.Sprintf(`"flow":"%s","sandbox":"%s","via":"connect","src":"10.4.0.%d:%d","dst":{"host":"%s","port":443%%s},%%s"process":{"pid":%d,"exe":"%s","argv":["%s"]}`,
		w.flow(), sandbox, 2+len(sandbox)%5, w.between(31000, 60000), host, w.between(40, 900), exe, filepath.Base(exe))
}

// passes writes an allowed tunnel, or an allowed request if what is "GET /path" or the like, and its end.
func (w *dayScene) passes(sandbox, exe, host, rule, what string, up, down int) {
	kind, claimed := "open", fmt.Sprintf(`"tls":{"sni":"%s"},`, host)
	if method, path, isRequest := strings.Cut(what, " "); isRequest {
		kind, claimed = "request", claimed+fmt.Sprintf(`"http":{"method":"%s","path":"%s"},`, method, path)
	}
	address := fmt.Sprintf("203.0.113.%d", 10+len(host))
	head := fmt.Sprintf(w.head(sandbox, exe, host), fmt.Sprintf(`,"addrs":["%s"],"addr":"%s"`, address, address), claimed) + fmt.Sprintf(`,"decision":{"action":"allow","rule":"%s","layer":"user",%s}`, rule, scenePolicy)
	w.write(`"kind":"%s",%s`, kind, head)
	w.write(`"kind":"close",%s,"bytes":{"up":%d,"down":%d},"duration_ms":%d,"outcome":"closed"`, head, up, down, w.between(30, 2500))
}

// refused writes a request that no rule allows.
func (w *dayScene) refused(sandbox, exe, host string) {
	w.write(`"kind":"open",` + fmt.Sprintf(w.head(sandbox, exe, host), "", "") + fmt.Sprintf(`,"decision":{"action":"deny","rule":"default","layer":"builtin","reason":"no rule allows %s:443","class":"default-deny","allowed_if":["a rule allows %s"],%s}`, host, host, scenePolicy))
	if host == deniedMost {
		w.day.denials++
	}
}

// minute writes what happens in one minute: ordinary work, more of it by day, and the leak.
func (w *dayScene) minute(n int) {
	const node, git, python, uploader = "/usr/local/bin/node", "/usr/bin/git", "/usr/bin/python3.12", "/usr/local/bin/artifact-upload"
	work := 12
	if hour := n / 60; hour >= 8 && hour < 19 {
		work = 60
	}
	for _, sandbox := range []string{"shop-web", "shop-api", "docs"} { // agents
		for range w.random.IntN(3) {
			if w.often(work) {
				w.passes(sandbox, node, "api.anthropic.com", "model-api", "", w.between(4_000, 70_000), w.between(2_000, 40_000))
			}
		}
		if w.often(work / 3) {
			w.passes(sandbox, git, "github.com", "gh-read", "GET /acme/"+sandbox+"/info/refs", w.between(700, 1_100), w.between(8_000, 90_000))
		}
	}
	if w.often(work / 4) {
		for range w.between(2, 9) {
			w.passes("shop-web", node, "registry.npmjs.org", "preset:npm", "", w.between(600, 1_500), w.between(9_000, 900_000))
		}
		w.refused("shop-web", node, deniedMost)
	}
	if w.often(work / 8) {
		w.passes("data-jobs", python, "files.pythonhosted.org", "preset:pypi", fmt.Sprintf("GET /packages/%02x/%02x/wheel", w.random.IntN(256), w.random.IntN(256)), 480, w.between(40_000, 9_000_000))
	}
	if w.often(work / 10) {
		w.passes("ci", "/usr/local/go/bin/go", "proxy.golang.org", "preset:go", "GET /golang.org/x/net/@v/list", w.between(300, 700), w.between(2_000, 700_000))
	}
	switch {
	case n%180 == 95:
		w.passes("ci", "/usr/bin/buildkitd", "registry.corp.example", "push-images", "", w.between(9_000_000, 22_000_000), w.between(3_000, 9_000))
	case n%120 == 40:
		w.passes("ci", uploader, artifactHost, leakRule, "", w.between(300_000, 1_900_000), w.between(300, 900))
	case w.often(4):
		w.refused("docs", git, "gitlab.com")
	case w.often(3):
		w.refused("shop-api", "/usr/bin/curl", "errors.tracker.example")
	}
	w.leak(n)
}

// leak writes what the program does that sends data out: it looks for a way, finds a rule that is too wide, and uploads.
func (w *dayScene) leak(n int) {
	const sandbox, began = "data-jobs", 14*60 + 7
	switch {
	case n >= began && n < began+6:
		w.refused(sandbox, leakProgram, []string{"paste.example", "transfer.example", "hooks.chat.example", "files.share.example", "bin.example", "relay.example"}[n-began])
	case n == began+7:
		w.write(`"kind":"open",` + fmt.Sprintf(w.head(sandbox, leakProgram, "169.254.169.254"), `,"class":"link-local"`, "") + `,"decision":{"action":"deny","rule":"baseline","layer":"builtin","reason":"169.254.169.254 is link-local","class":"address-denied",` + scenePolicy + `}`)
	case n > began+8 && n < began+20:
		w.write(`"kind":"dns","flow":"%s","sandbox":"%s","via":"dns","src":"10.4.0.6:40112","dns":{"name":"%016x%016x.%016x.t.relay.example","type":"TXT"},"process":{"pid":871,"exe":"%s","argv":["wheelsync"]},"decision":{"action":"deny","rule":"default","layer":"builtin","reason":"no rule allows it","class":"default-deny",%s}`,
			w.flow(), sandbox, w.random.Uint64(), w.random.Uint64(), w.random.Uint64(), leakProgram, scenePolicy)
	case n >= began+31 && n < began+31+3*14 && (n-began-31)%3 == 0:
		up := w.between(2_300_000, 3_400_000)
		w.day.uploads, w.day.uploaded = w.day.uploads+1, w.day.uploaded+int64(up)
		w.passes(sandbox, leakProgram, leakHost, leakRule, "", up, w.between(250, 420))
	}
}

// TestAnAuditorFindsWhatLeft asks the log of a day, with the page alone, what was denied most, what left to where and how
// much, which program sent it, which rule let it pass, and whether the log is whole. Then it changes a byte of a copy.
func TestAnAuditorFindsWhatLeft(t *testing.T) {
	folder := os.Getenv(auditedVariable)
	if folder == "" {
		folder = t.TempDir()
	}
	d := writeDay(t, filepath.Join(folder, "audit"))
	changed := filepath.Join(folder, "changed")
	if err := os.CopyFS(changed, os.DirFS(d.dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "key"), []byte(d.key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := browser(t)
	base := open(t, ctx, startPageIn(t, folder, "--dir", "audit", "--key", d.key))
	row := func(texts ...string) string { return rowHolds("table.rows tbody tr", leakHost, texts...) }
	for _, q := range []struct{ what, view, condition string }{
		{"denied most", "/destinations?q=verdict%3Adeny", fmt.Sprintf(`[...document.querySelectorAll(".tree > details > summary .node [data-is=denied]")].map(e => Number(e.textContent.replace(/\D/g, ""))).sort((a, b) => b - a)[0] == %d`, d.denials)},
		{"by which host", "/destinations?q=verdict%3Adeny", rowHolds(".tree > details", deniedMost, fmt.Sprint("✗ ", d.denials))},
		{"the leak among the attempts, and no other program", "/attempts", rowHolds(".story.strong", "storage.example", "wheelsync in sandbox data-jobs", "14 flows") + ` && [...document.querySelectorAll(".story.strong")].every(e => e.textContent.includes("wheelsync"))`},
		{"what left, where to and how much", "/sent", row(quantity.Bytes(d.uploaded), fmt.Sprint(d.uploads))},
		{"which program", "/sent", row("data-jobs/wheelsync")},
		{"which rule", "/sent", row(leakRule)},
		{"the log is whole", "/health", `document.querySelector(".result.good")?.textContent.includes("No record was changed or removed")`},
	} {
		t.Run(q.what, func(t *testing.T) { waitFor(t, ctx, q.what, base+q.view, q.condition) })
	}
	if shots := os.Getenv(shotsVariable); shots != "" {
		pictures(t, ctx, base, shots)
	}

	base = open(t, ctx, startPage(t, "--dir", changed, "--key", d.key))
	waitFor(t, ctx, "the copy is whole", base+"/health", `document.querySelector(".result.good")`)
	changeAByte(t, changed)
	do(t, ctx, chromedp.Click(`form[action="/health/verify"] button`, chromedp.ByQuery))
	waitFor(t, ctx, "the copy is not whole", "", `document.querySelector(".result.bad") && !document.querySelector(".result.good")`)
	waitFor(t, ctx, "each view says so", base+"/sent", `document.querySelector('.notice.bad a[href="/health"]') !== null`)
}

// rowHolds is the condition that one of the elements that a selector finds holds all of the texts.
func rowHolds(selector, first string, more ...string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(%q)].some(e => %q.split("|").every(text => e.textContent.includes(text)))`, selector, strings.Join(append([]string{first}, more...), "|"))
}

// changeAByte changes a digit of the size of one upload of the leak.
func changeAByte(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "00000001.log")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	upload := regexp.MustCompile(`"kind":"close".*` + regexp.QuoteMeta(leakHost) + `.*"up":\d`).FindIndex(text)
	if upload == nil {
		t.Fatal("the log holds no upload")
	}
	text[upload[1]-1] ^= 1 // another digit
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
