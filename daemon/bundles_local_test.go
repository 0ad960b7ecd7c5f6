package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestABundleThatIsAFile is replaced by good ones and bad ones, and is a folder
// too.
func TestABundleThatIsAFile(t *testing.T) {
	key := newBundleSigner(t)
	signed := key.sign(t, packed(t, "one", "one.test"), 0)
	w := serveRego(t, "rego: [{bundle: policy.tar.gz, key: key.pem}]\n", map[string]string{"key.pem": string(key.public), "policy.tar.gz": string(signed)})
	first := w.Gate.Digest()
	for says, text := range map[string][]byte{
		"is not signed":            packed(t, "two", "two.test"),
		"not signed with this key": newBundleSigner(t).sign(t, packed(t, "two", "two.test"), 0),
		"unexpected EOF":           signed[:len(signed)/2],
	} {
		w.write(t, "policy.tar.gz", string(text))
		w.hear(t, says)
		if w.Gate.Digest() != first {
			t.Errorf("%s: the policy changed", says)
		}
		if got := w.policyStatus(t); got.OK || !strings.Contains(got.Bundles[0].Error, says) {
			t.Errorf("%s: %+v", says, got)
		}
	}
	w.write(t, "policy.tar.gz", string(key.sign(t, packed(t, "two", "two.test"), 0)))
	w.hear(t, "policy reloaded")
	if got := w.policyStatus(t); !got.OK || w.Gate.Digest() == first || got.Bundles[0].Revision != "two" || !got.Bundles[0].Signed {
		t.Errorf("%+v", got)
	}
}

func TestABundleThatIsAFolder(t *testing.T) {
	files := map[string]string{
		"b/.manifest":        `{"revision": "one", "roots": ["egress", "acme"], "rego_version": 1}`,
		"b/egress/e.rego":    "package egress\n\nallow contains {\"rule\": \"listed\"} if host.any(input.destination.host, data.acme.hosts)\n",
		"b/acme/data.json":   `{"hosts": ["listed.test"]}`,
		"b/README.md":        "what this is",
		"b/.git/config.json": "not a bundle's",
	}
	w := serveRego(t, "rego: [{bundle: b}]\n", files)
	port := upstream(t)
	if status, text := w.connect(t, "listed.test:"+port); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	w.write(t, "b/acme/data.json", `{"hosts": ["other.test"]}`)
	w.hear(t, "policy reloaded")
	if status, _ := w.connect(t, "listed.test:"+port); status != 403 {
		t.Errorf("after it was taken off the list: %d", status)
	}
	if err := os.Symlink(filepath.Join(w.dir, "b", "acme"), filepath.Join(w.dir, "b", "more")); err != nil {
		t.Fatal(err)
	}
	w.hear(t, "is a link to a folder")
	if got := w.policyStatus(t); got.OK || got.Rejected == nil {
		t.Errorf("%+v", got)
	}
}
