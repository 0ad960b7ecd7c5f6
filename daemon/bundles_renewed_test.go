package daemon

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
)

// TestARenewedBundleReadsNothingElseAgain changes everything that the policy names before its
// bundle is renewed: a program under run may have done that.
func TestARenewedBundleReadsNothingElseAgain(t *testing.T) {
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("egressd.yaml", fmt.Sprintf(`version: 1
listen: {proxy: ["127.0.0.1:0"]}
audit: {dir: audit}
tls: {ca_dir: ca, extra_roots: [roots.pem]}
canaries: [{name: bait, file: canary}]
upstream: {dns: ["127.0.0.1:9"]}
allow:
  - {host: api.test, id: key, inject: {header: X-Key, command: [/bin/sh, -c, "echo x >>%[1]s/started; echo a-long-key"]}}
  - {host: other.test, id: file, inject: {header: X-Key, file: credential}}
rego:
  - own.rego
  - {bundle: %[2]q, key: key.pem, refresh: 1h}
`, dir, s.URL+"/b.tar.gz"))
	write("key.pem", string(key.public))
	made, err := certs.Create(filepath.Join(t.TempDir(), "far"))
	if err != nil {
		t.Fatal(err)
	}
	write("roots.pem", string(made.PEM()))
	write("canary", "a-text-to-be-found-0123")
	write("credential", "the-credential")
	write("own.rego", "package egress\n\ndeny contains {\"rule\": \"own\"} if input.destination.host == \"one.test\"\n")
	d, err := New(io.Discard, filepath.Join(dir, "egressd.yaml"), Tailoring{Unread: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p, err := d.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"roots.pem", "canary", "credential", "own.rego"} {
		write(name, "what the program wrote")
	}
	s.set(answering(key.sign(t, packed(t, "two", "two.test"), 0)))
	feed := d.Config.Feeds[0]
	a := fetched{feed: feed, taken: make(chan bool, 1)}
	a.Update, a.err = feed.Fetch(t.Context())
	d.bundles.arrive(t.Context(), a)
	if !<-a.taken || d.policy.Digest() == p.Digest() {
		t.Fatalf("the bundle was not renewed: %s", feed.Reported)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "started")); err != nil || string(text) != "x\n" {
		t.Errorf("the command was started %d times (%v)", strings.Count(string(text), "x"), err)
	}
	for rule, dst := range map[string]string{"key": "api.test:443", "file": "other.test:443"} {
		if d.keys.sent(rule, d.policy.Digest(), destination(t, dst)) == "" {
			t.Errorf("the credential of rule %s is gone", rule)
		}
	}
	r, err := file.ParseCheck("https://one.test/")
	if err != nil {
		t.Fatal(err)
	}
	if judged, _ := d.policy.Judge(t.Context(), r); judged.Verdict != policy.Deny || judged.Rule != "own" {
		t.Errorf("one.test is %+v", judged)
	}
}
