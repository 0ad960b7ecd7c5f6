package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

func TestAnOrganisationsFileIsReadAgain(t *testing.T) {
	w := serveRego(t, "allow: [\"a.test:*\"]\n", nil)
	port := upstream(t)
	if status, _ := w.connect(t, "a.test:"+port); status != 200 {
		t.Fatalf("without an organisation: %d", status)
	}
	before := w.Gate.Digest()
	w.write(t, "above/organisation.yaml", "version: 1\nceiling: []\n")
	w.hear(t, "policy reloaded")
	if status, text := w.connect(t, "a.test:"+port); status != 403 || !strings.Contains(text, `"rule":"ceiling"`) || !strings.Contains(text, `"layer":"organisation"`) {
		t.Errorf("%d %s", status, text)
	}
	if r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindOpen }); r.Decision.Layer != "organisation" || r.Decision.Rule != "ceiling" || r.Decision.Class != "rule-deny" {
		t.Errorf("the record is %+v", r.Decision)
	}
	digest := w.Gate.Digest()
	w.write(t, "above/organisation.yaml", "version: 1\nceiling: [\n")
	w.hear(t, "policy not reloaded")
	w.hear(t, "organisation.yaml") // what to correct
	if w.Gate.Digest() != digest || digest == before {
		t.Error("the digest does not follow the organisation's file")
	}
	w.write(t, "above/organisation.yaml", "version: 1\nceiling: [\"a.test:*\", \"127.0.0.1:*\"]\n")
	w.hear(t, "policy reloaded")
	if status, text := w.connect(t, "a.test:"+port); status != 200 {
		t.Errorf("inside the ceiling: %d %s", status, text)
	}
	if err := os.Remove(filepath.Join(w.dir, "above", "organisation.yaml")); err != nil {
		t.Fatal(err)
	}
	w.hear(t, "policy reloaded")
	if w.Gate.Digest() != before {
		t.Error("a file that is gone still counts")
	}
}

// TestABundleOfTheOrganisationIsRenewed keeps what stands beside it.
func TestABundleOfTheOrganisationIsRenewed(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	key := newBundleSigner(t)
	s := serveBundle(t, answering(key.sign(t, packed(t, "one", "one.test"), 0)))
	w := serveRego(t, "allow: [\"never.test:*\", \"user.test:*\", \"out.test:*\"]\n", map[string]string{
		"above/key.pem":           string(key.public),
		"above/organisation.yaml": "version: 1\ndeny: [\"never.test:*\"]\nceiling: [\"user.test:*\", \"127.0.0.1:*\"]\n" + fetchedLine(s),
	})
	port := upstream(t)
	for _, revision := range []string{"one", "two"} {
		if revision == "two" {
			s.set(answering(key.sign(t, packed(t, "two", "two.test"), 0)))
			w.look(t)
		}
		for host, want := range map[string]int{revision + ".test": 200, "user.test": 200, "never.test": 403, "out.test": 403} {
			if status, text := w.connect(t, host+":"+port); status != want {
				t.Errorf("with %s, %s: %d %s", revision, host, status, text)
			}
		}
		r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindOpen && r.Dst.Host == revision+".test" })
		if r.Decision.Layer != "organisation" || r.Decision.Rule != revision {
			t.Errorf("the record says %+v", r.Decision)
		}
	}
}
