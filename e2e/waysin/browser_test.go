package waysin

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// aPage says, by its own script, by which protocol it came.
const aPage = `<!doctype html><meta charset=utf-8><title>page</title><h1>a page</h1>
<script>document.write("<p>it came over " + performance.getEntriesByType("navigation")[0].nextHopProtocol + "</p>")</script>`

// chromium prints a page as it stands when its scripts have run. What the
// browser asks for on its own account is switched off where that can be.
const chromium = `HOME=$PWD timeout 120 chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run ` +
	`--disable-background-networking --disable-component-update --disable-sync --disable-default-apps --disable-breakpad ` +
	`--user-data-dir=$PWD/profile --proxy-server=http://$LAB_PROXY --dump-dom `

// TestBrowser has Chromium, which was told of egressd's authority and of no
// other, load pages through inspection.
func TestBrowser(t *testing.T) {
	d := world.Start(t, `version: 1
allow: [{host: page.allowed.test, methods: [GET], paths: ["/public/**"]}]
tls: {ca_dir: ca, extra_roots: [lab.pem]}
`)
	d.World.Origin.Sites.Store("page.allowed.test", http.HandlerFunc(servePage))
	home := t.TempDir()
	trustInNSS(t, home, d.AuthorityFile())
	for _, row := range []struct {
		says, url string
		wants     []string
		asked     *world.LoggedRequest
	}{
		{"a page over HTTP/2", "https://page.allowed.test/public/page", []string{"<h1>a page</h1>", "<p>it came over h2</p>"}, &world.LoggedRequest{Method: "GET", Path: "/public/page", Status: 200}},
		{"a path that is denied", "https://page.allowed.test/private", []string{"<h1>Blocked by egressd: page.allowed.test:443 path-denied", "path matches /public/**"}, &world.LoggedRequest{Method: "GET", Path: "/private", Class: policy.PathDenied}},
		{"a host that is denied", "https://evil.test/", []string{"<h1>Blocked by egressd: evil.test:443 default-deny", "This is a policy decision"}, nil},
		{"a host that is denied, in clear", "http://evil.test/", []string{"<h1>Blocked by egressd: evil.test:80 default-deny", "This is a policy decision"}, nil},
	} {
		t.Run(row.says, func(t *testing.T) {
			mark := d.LogMark(t)
			out, err := d.Shell(home, d.AuthorityFile(), chromium+row.url+" 2>errors")
			for _, want := range row.wants {
				if err != nil || !strings.Contains(out, want) {
					t.Errorf("%v, the page is %q, want %q in it", err, out, want)
				}
			}
			if row.asked != nil {
				d.ExpectRequest(t, mark, *row.asked)
			}
		})
	}
}

func servePage(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/public/page" {
		http.Error(w, fmt.Sprintf("origin was asked for %s", r.URL.Path), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(w, aPage)
}

// trustInNSS puts a certificate into the store that Chromium reads in home.
func trustInNSS(t *testing.T, home, certificate string) {
	t.Helper()
	store := filepath.Join(home, ".pki", "nssdb")
	if err := os.MkdirAll(store, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-N", "--empty-password"}, {"-A", "-n", "egressd", "-t", "C,,", "-i", certificate}} {
		if out, err := exec.Command("certutil", append([]string{"-d", "sql:" + store}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("certutil %s: %v: %s", args[0], err, out)
		}
	}
}
