package operator

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/egressd/egressd/audit"
)

// A signedScene writes a log through the real audit log, so that each record is numbered, dated and signed.
type signedScene struct {
	t     *testing.T
	log   *audit.Log
	flows int
}

func (s *signedScene) write(format string, a ...any) {
	s.t.Helper()
	if _, err := s.log.Append(fmt.Appendf(nil, "{"+format+"}", a...)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *signedScene) flow() string { s.flows++; return fmt.Sprintf("01KC%06X", s.flows) }

// request writes an allowed request and its end.
func (s *signedScene) request(exe, host, rule, method, path string, up, down int) {
	head := fmt.Sprintf(`"flow":"%s","sandbox":"ci","via":"connect","src":"10.4.0.2:31000","dst":{"host":"%s","port":443},"tls":{"sni":"%s"},"http":{"method":"%s","path":"%s"},"process":{"pid":70,"exe":"%s","argv":["%s"]},"decision":{"action":"allow","rule":"%s","layer":"user",%s}`,
		s.flow(), host, host, method, path, exe, filepath.Base(exe), rule, scenePolicy)
	s.write(`"kind":"request",%s`, head)
	s.write(`"kind":"close",%s,"bytes":{"up":%d,"down":%d},"duration_ms":20,"outcome":"closed"`, head, up, down)
}

const sceneDenied = `"process":{"pid":71,"exe":"%s","argv":["%s"]},"decision":{"action":"deny","rule":"default","layer":"builtin","reason":"no rule allows it","class":"default-deny",` + scenePolicy + `}`

func (s *signedScene) denied(exe, host string) {
	s.write(`"kind":"open","flow":"%s","sandbox":"ci","via":"connect","src":"10.4.0.2:31001","dst":{"host":"%s","port":443},`+sceneDenied, s.flow(), host, exe, filepath.Base(exe))
}

func (s *signedScene) lookup(exe, name string) {
	s.write(`"kind":"dns","flow":"%s","sandbox":"ci","via":"dns","src":"10.4.0.2:31002","dns":{"name":"%s","type":"TXT"},`+sceneDenied, s.flow(), name, exe, filepath.Base(exe))
}

// signedLog writes a signed log in which one program posts 24 chunks of 64 KiB to a paste site, and then asks for
// names that carry data. It returns the key that verifies the log.
func signedLog(t *testing.T, dir string) (key string) {
	t.Helper()
	l, err := audit.Create(dir, audit.Options{Keys: filepath.Join(t.TempDir(), "keys")})
	if err != nil {
		t.Fatal(err)
	}
	s := &signedScene{t: t, log: l}
	s.write(`"kind":"start","note":"egressd started"`)
	for i := range 120 {
		s.request("/usr/bin/pip", "files.pythonhosted.org", "preset:pypi", "GET", fmt.Sprintf("/packages/%02x/wheel", i), 500, 600_000)
		s.request("/usr/bin/git", "github.com", "gh-read", "GET", "/acme/shop/info/refs", 900, 45_000)
		if i%2 == 0 {
			s.denied("/usr/bin/curl", "telemetry.vendor.test")
		}
		if i%10 == 0 {
			s.denied("/usr/bin/node", "stats.other.test")
		}
		if i >= 60 && i < 84 {
			s.request("/usr/bin/python3", "drop.paste.test", "paste-sites", "POST", "/new", 64<<10, 40)
		}
		if i >= 90 {
			s.lookup("/usr/bin/python3", fmt.Sprintf("%032x.%032x.t.tunnel.test", i*7919, i*104729))
		}
	}
	_, key = l.Origin()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return key
}

// TestAnAuditorFindsWhatLeft asks a signed log, with the page alone, what was denied most, what left to where and how much,
// which program sent it, which rule let it pass, and whether the log is whole. Then it changes a byte.
func TestAnAuditorFindsWhatLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	key := signedLog(t, dir)
	ctx := browser(t)
	base := open(t, ctx, startPage(t, "--dir", dir, "--key", key))
	for _, q := range []struct{ what, view, condition string }{
		{"denied most", "/destinations?q=verdict%3Adeny", `(r => r.includes("vendor.test") && r.includes("✗ 60"))(document.querySelector(".tree .node")?.textContent ?? "")`},
		{"what left, where to and how much", "/sent", sentRowHolds("drop.paste.test", "1.6 MB", "24")},
		{"which program", "/sent", sentRowHolds("drop.paste.test", "ci/python3")},
		{"which rule", "/sent", sentRowHolds("drop.paste.test", "paste-sites")},
		{"the tunnel among the attempts", "/attempts", `[...document.querySelectorAll(".story h2")].some(e => e.textContent.includes("tunnel.test"))`},
		{"the log is whole", "/health", `document.querySelector(".result.good")?.textContent.includes("No record was changed or removed")`},
	} {
		t.Run(q.what, func(t *testing.T) { waitFor(t, ctx, q.what, base+q.view, q.condition) })
	}
	changeAByte(t, dir)
	do(t, ctx, chromedp.Navigate(base+"/health"), chromedp.Click(`form[action="/health/verify"] button`, chromedp.ByQuery))
	waitFor(t, ctx, "the log is not whole", "", `document.querySelector(".result.bad") && !document.querySelector(".result.good")`)
	waitFor(t, ctx, "each view says so", base+"/sent", `document.querySelector('.notice.bad a[href="/health"]') !== null`)
}

// sentRowHolds is the condition that the first row of What left holds the texts.
func sentRowHolds(texts ...string) string {
	return fmt.Sprintf(`(row => %q.split("|").every(text => row.includes(text)))(document.querySelector("table.rows tbody tr")?.textContent ?? "")`, strings.Join(texts, "|"))
}

// changeAByte changes the size of one upload in the log.
func changeAByte(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "00000001.log")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(text, []byte(`"up":65536`), []byte(`"up":15536`), 1)
	if bytes.Equal(text, changed) {
		t.Fatal("the log holds no upload")
	}
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
}
