package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"github.com/egressd/egressd/rego/bundle"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/policystatus"
	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/rego"
)

// A bundleSigner signs bundles, and is known by its public key.
type bundleSigner struct{ private, public []byte }

func newBundleSigner(t *testing.T) bundleSigner {
	t.Helper()
	private, public := testpki.KeyPair(t)
	return bundleSigner{private, public}
}

// packed returns a bundle that allows host.
func packed(t *testing.T, revision, host string) []byte {
	t.Helper()
	module := fmt.Sprintf("package egress\n\nallow contains {\"rule\": %q} if host.matches(input.destination.host, %q)\n", revision, host)
	tarball, err := bundle.Build([]rego.Source{{Name: "egress.rego", Text: []byte(module)}}, bundle.BuildOptions{Revision: revision})
	if err != nil {
		t.Fatal(err)
	}
	return tarball
}

func (s bundleSigner) sign(t *testing.T, tarball []byte, valid time.Duration) []byte {
	t.Helper()
	signed, err := bundle.Sign(tarball, bundle.SignOptions{KeyPEM: s.private, Now: time.Now(), Valid: valid})
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// A bundleServer has one bundle, or another answer.
type bundleServer struct {
	*httptest.Server
	has   atomic.Pointer[http.HandlerFunc]
	asked atomic.Int64
}

func serveBundle(t *testing.T, answer http.HandlerFunc) *bundleServer {
	t.Helper()
	s := new(bundleServer)
	s.set(answer)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		(*s.has.Load())(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *bundleServer) set(answer http.HandlerFunc) { s.has.Store(&answer) }

func answering(tarball []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.Write(tarball) }
}

// serveFetched starts a daemon whose policy is what the server has, signed by key.
func serveFetched(t *testing.T, s *bundleServer, key bundleSigner) *regoWorld {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	return serveRego(t, fetchedLine(s), map[string]string{"key.pem": string(key.public)})
}

func fetchedLine(s *bundleServer) string {
	return fmt.Sprintf("rego: [{bundle: %q, key: key.pem, refresh: 1h}]\n", s.URL+"/policy.tar.gz?sig=hidden")
}

// look has the daemon fetch its bundle now.
func (w *regoWorld) look(t *testing.T) {
	t.Helper()
	a := fetched{feed: w.Config.Feeds[0], taken: make(chan bool, 1)}
	a.Update, a.err = a.feed.Fetch(t.Context())
	w.bundles.fetches <- a
	<-a.taken
	if a.feed.Pending != nil {
		t.Error("what was offered is neither taken nor refused")
	}
}

func (w *regoWorld) policyStatus(t *testing.T) *policystatus.Status {
	t.Helper()
	s, err := policystatus.Read(filepath.Join(w.dir, "egressd.yaml"), "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTheStatusOfAnotherFileIsSaid: two files with one log, of which one is in force.
func TestTheStatusOfAnotherFileIsSaid(t *testing.T) {
	key := newBundleSigner(t)
	w := serveFetched(t, serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0))), key)
	own := filepath.Join(w.dir, "egressd.yaml")
	text, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	other, link := filepath.Join(w.dir, "other.yaml"), filepath.Join(w.dir, "link.yaml")
	if err := errors.Join(os.WriteFile(other, text, 0o600), os.Symlink(own, link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{own: "", link: "", other: own} {
		if s, err := policystatus.Read(path, ""); err != nil || !s.Running || s.Other != want || s.OK != (want == "") {
			t.Errorf("%s: %+v, %v", path, s, err)
		}
	}
}

func TestABundleIsFetchedAndRenewed(t *testing.T) {
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	w := serveFetched(t, s, key)
	port := upstream(t)
	first := w.Gate.Digest()
	if status, text := w.connect(t, "one.test:"+port); status != 200 || text != "hello" {
		t.Errorf("one.test: %d %s", status, text)
	}
	s.set(answering(key.sign(t, packed(t, "two", "two.test"), 0)))
	w.look(t)
	for host, want := range map[string]int{"one.test": 403, "two.test": 200} {
		if status, text := w.connect(t, host+":"+port); status != want {
			t.Errorf("%s: %d %s", host, status, text)
		}
	}
	if w.Gate.Digest() == first {
		t.Error("another bundle is the same policy")
	}
	got := w.policyStatus(t)
	if !got.OK || !got.Running || got.Policy != w.Gate.Digest() || !strings.HasPrefix(got.Source, "renewed ") || len(got.Bundles) != 1 ||
		got.Bundles[0].Revision != "two" || !got.Bundles[0].Signed || got.Bundles[0].Heard.IsZero() || got.Bundles[0].Error != "" {
		t.Errorf("%+v", got)
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "audit", "00000001.log"))
	if err != nil || bytes.Contains(text, []byte("hidden")) {
		t.Errorf("the log holds the query of the URL, %v", err)
	}
}

// TestARenewedBundleKeepsTheRestOfTheConfiguration sets what egressd run adds to its file.
func TestARenewedBundleKeepsTheRestOfTheConfiguration(t *testing.T) {
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	w := serveFetched(t, s, key)
	w.Config.Learn = true
	w.tailor.Change = func(*config.Config) error { return nil }
	w.Config.AdminListeners = func() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:7")} }
	s.set(answering(key.sign(t, packed(t, "two", "two.test"), 0)))
	w.look(t)
	w.hear(t, `revision "two"`)
	if !w.Config.Learn {
		t.Error("a run that learns refuses what no rule speaks of, once a bundle is renewed")
	}
	if w.Config.AdminListeners == nil {
		t.Error("the operator's listener is reachable, once a bundle is renewed")
	}
}

// TestABundleIsPolled has the daemon find a new bundle by itself.
func TestABundleIsPolled(t *testing.T) {
	key := newBundleSigner(t)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	w := serveRego(t, strings.Replace(fetchedLine(s), "1h", "1s", 1), map[string]string{"key.pem": string(key.public)})
	s.set(answering(key.sign(t, packed(t, "two", "two.test"), 0)))
	w.hear(t, `policy.tar.gz, revision "two"`)
}

// TestWhatComesAndIsNoGoodPolicyChangesNothing has one server answer badly in each
// way. What was in force stays, and that is said once in the log and by status.
func TestWhatComesAndIsNoGoodPolicyChangesNothing(t *testing.T) {
	key, other := newBundleSigner(t), newBundleSigner(t)
	evil := packed(t, "two", "evil.test")
	broken := func(module string) http.HandlerFunc {
		tarball, err := bundle.Build([]rego.Source{{Name: "egress.rego", Text: []byte(module)}}, bundle.BuildOptions{Revision: "broken"})
		if err != nil {
			t.Fatal(err)
		}
		return answering(key.sign(t, tarball, 0))
	}
	half := key.sign(t, evil, 0)
	elsewhere := serveBundle(t, answering(half))
	good := key.sign(t, packed(t, "one", "one.test"), 0)
	s := serveBundle(t, answering(good))
	w := serveFetched(t, s, key)
	port := upstream(t)
	before := w.Gate.Digest()
	for _, row := range []struct {
		says   string
		answer http.HandlerFunc
	}{
		{"not signed with this key", answering(other.sign(t, evil, 0))},
		{"is not signed", answering(evil)},
		{"what is no bundle", answering([]byte("<html>Sign in</html>"))},
		{"unexpected EOF", answering(half[:len(half)/2])},
		{"redirects to another server", http.RedirectHandler(elsewhere.URL, http.StatusFound).ServeHTTP},
		{"status 500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }},
		{"no file has a rule for allow, ask or deny in package egress", broken("package egress.other\n\nx := 1\n")},
		{"undefined ref: input.destination.hots", broken("package egress\n\nallow contains {\"rule\": \"r\"} if input.destination.hots == \"evil.test\"\n")},
	} {
		s.set(row.answer)
		w.look(t)
		if status, text := w.connect(t, "one.test:"+port); status != 200 {
			t.Errorf("%s: one.test: %d %s", row.says, status, text)
		}
		if status, _ := w.connect(t, "evil.test:"+port); status != 403 || w.Gate.Digest() != before {
			t.Errorf("%s: something changed", row.says)
		}
		r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindPolicy })
		if !strings.Contains(r.Note, row.says) || r.Decision.Policy != before {
			t.Errorf("%s: the record is %+v", row.says, r)
		}
		got := w.policyStatus(t)
		if got.OK || !strings.Contains(got.Bundles[0].Error, row.says) || got.Bundles[0].Revision != "one" || got.Bundles[0].Stale != "" {
			t.Errorf("%s: %+v", row.says, got)
		}
	}
	s.set(answering(good))
	w.look(t)
	w.hear(t, "fetched again")
	if elsewhere.asked.Load() > 0 {
		t.Error("the redirect was followed")
	}
	if got := w.policyStatus(t); !got.OK {
		t.Errorf("at the end: %+v", got)
	}
}

// TestOneFailureIsOneRecord lets the same failure happen several times.
func TestOneFailureIsOneRecord(t *testing.T) {
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	w := serveFetched(t, s, key)
	s.set(http.NotFound)
	for range 3 {
		w.look(t)
	}
	n := 0
	w.record(t, func(r *record.Record) bool {
		if strings.Contains(r.Note, "status 404") {
			n++
		}
		return false
	})
	if n != 1 {
		t.Errorf("%d records", n)
	}
}

// TestTheStartNeedsABundleOnce: without a last good one the server has to be there,
// with one it need not.
func TestTheStartNeedsABundleOnce(t *testing.T) {
	key := newBundleSigner(t)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	s := serveBundle(t, http.NotFound)
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	for name, text := range map[string]string{
		"key.pem":      string(key.public),
		"egressd.yaml": "version: 1\nlisten: {proxy: [\"127.0.0.1:0\"]}\naudit: {dir: audit}\nupstream: {dns: [\"127.0.0.1:9\"]}\n" + fetchedLine(s),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	begin := func() (digest string, err error) {
		d, err := New(io.Discard, path, Tailoring{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := d.start(t.Context()); err != nil {
			return "", err
		}
		digest = d.Gate.Digest()
		return digest, d.stop(0)
	}
	if _, err := begin(); err == nil || !strings.Contains(err.Error(), "status 404") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("started without a bundle: %v", err)
	}
	if w := (&regoWorld{dir: dir}); true {
		if got := w.policyStatus(t); got.OK || got.Running || !strings.Contains(got.Bundles[0].Error, "status 404") || got.Bundles[0].Stale == "" {
			t.Errorf("%+v", got)
		}
	}
	s.set(answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	first, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if again, err := begin(); err != nil || again != first {
		t.Errorf("without the server: %s, %v", again, err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := c.Compile(); err != nil || p.Digest() == "" {
		t.Errorf("check without the server: %v", err)
	}
}

// TestAReloadThatNeedsABundleKeepsThePolicy names a bundle in the file that cannot
// be had.
func TestAReloadThatNeedsABundleKeepsThePolicy(t *testing.T) {
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	gone := serveBundle(t, http.NotFound)
	w := serveFetched(t, s, key)
	before := w.Gate.Digest()
	text, err := os.ReadFile(filepath.Join(w.dir, "egressd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.write(t, "egressd.yaml", strings.Replace(string(text), s.URL, gone.URL, 1))
	w.hear(t, "policy not reloaded, the one before stays in force: ")
	if w.Gate.Digest() != before {
		t.Error("the policy changed")
	}
	if got := w.policyStatus(t); got.OK || got.Rejected == nil || !got.Rejected.Current || !strings.Contains(got.Rejected.Reason, "status 404") {
		t.Errorf("%+v", got)
	}
	s.set(answering(key.sign(t, packed(t, "two", "two.test"), 0)))
	w.look(t)
	w.hear(t, `revision "two"`) // the file is no better; the bundle in force goes on
	if got := w.policyStatus(t); got.Rejected == nil || !got.Rejected.Current {
		t.Errorf("a bundle that was renewed hides the rejected file: %+v", got)
	}
	w.write(t, "egressd.yaml", string(text))
	w.hear(t, "policy reloaded")
	if got := w.policyStatus(t); !got.OK || got.Rejected.Current {
		t.Errorf("%+v", got)
	}
}

// TestAStaleBundleDeniesAndCuts has a bundle expire while a tunnel is open, and be
// replaced by one that counts.
func TestAStaleBundleDeniesAndCuts(t *testing.T) {
	key := newBundleSigner(t)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for says, lines := range map[string]func(t *testing.T, w *regoWorld, tarball []byte) string{
		"fetched": func(t *testing.T, _ *regoWorld, tarball []byte) string {
			return fetchedLine(serveBundle(t, answering(tarball)))
		},
		"a file": func(t *testing.T, w *regoWorld, tarball []byte) string {
			return "rego: [{bundle: policy.tar.gz, key: key.pem}]\n"
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			far := silent(t)
			var w *regoWorld
			var c net.Conn
			for life := 5 * time.Second; c == nil; life *= 4 { // a machine that is busy may not be in time
				tarball := key.sign(t, packed(t, "one", "one.test"), life)
				w = serveRego(t, lines(t, nil, tarball), map[string]string{"key.pem": string(key.public), "policy.tar.gz": string(tarball)})
				var answer string
				if c, answer = w.tunnel(t, "one.test:"+far); c == nil && life > time.Minute {
					t.Fatalf("no tunnel: %q", answer)
				}
			}
			defer c.Close()
			w.hear(t, "is stale, and everything is denied")
			io.Copy(io.Discard, c) // returns when it is cut
			if status, text := w.connect(t, "one.test:"+far); status != 403 || !strings.Contains(text, `"class":"policy-error"`) {
				t.Errorf("%d %s", status, text)
			}
			if r := w.record(t, func(r *record.Record) bool {
				return r.Kind == record.KindPolicy && strings.Contains(r.Note, "is stale")
			}); r.Kind == "" {
				t.Error("no record says so")
			}
			r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindOpen })
			if r.Decision == nil || !strings.HasPrefix(r.Decision.Reason, "the policy's bundle is stale: it expired at ") {
				t.Errorf("the record of the denial is %+v", r.Decision)
			}
			if got := w.policyStatus(t); got.OK || got.Bundles[0].Stale == "" && got.Bundles[0].Error == "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// tunnel opens one, or says what was answered instead.
func (w *regoWorld) tunnel(t *testing.T, to string) (net.Conn, string) {
	t.Helper()
	c, err := net.Dial("tcp", w.proxy)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", to)
	head := make([]byte, 12)
	if n, _ := io.ReadFull(c, head); string(head[:n]) != "HTTP/1.1 200" {
		c.Close()
		return nil, string(head[:n])
	}
	return c, ""
}

// TestABundleInShadowDecidesNothing, stale or not.
func TestABundleInShadowDecidesNothing(t *testing.T) {
	key := newBundleSigner(t)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "other.test"), 8*time.Second)))
	w := serveRego(t, fmt.Sprintf("rego: [policy, {bundle: %q, key: key.pem, refresh: 1h, mode: shadow}]\n", s.URL+"/b.tar.gz"),
		map[string]string{"key.pem": string(key.public), "policy/egress.rego": someRego})
	port := upstream(t)
	f := w.Config.Feeds[0]
	if status, text := w.connect(t, "allowed.test:"+port); status != 200 || f.Stale() != "" {
		t.Errorf("before: %d %s, stale %q", status, text, f.Stale())
	}
	<-time.After(time.Until(f.Lapse()))
	if status, text := w.connect(t, "allowed.test:"+port); status != 200 {
		t.Errorf("after it expired: %d %s", status, text)
	}
	if got := w.policyStatus(t); got.OK || !got.Bundles[0].Shadow || got.Bundles[0].Stale == "" {
		t.Errorf("%+v", got)
	}
}

// silent accepts connections and keeps them open.
func silent(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}
