package daemon

import (
	"encoding/json"
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

// TestDenialsHaveTheWordsOfWhoeverWroteTheRule: the organisation's for its denials, else those of the policy file, and none for
// what nobody could allow. They follow the files.
func TestDenialsHaveTheWordsOfWhoeverWroteTheRule(t *testing.T) {
	w := serveRego(t, "allow: [\"down.test:*\"]\ndeny_message: Ask Ada, https://wiki.test/a?b=1&c\n", nil)
	said := func(to string) string {
		_, body := w.connect(t, to)
		var p struct {
			Message string `json:"deny_message"`
		}
		if err := json.Unmarshal([]byte(body), &p); err != nil {
			t.Fatalf("%s: %v in %s", to, err, body)
		}
		return p.Message
	}
	const user, organisation = "Ask Ada, https://wiki.test/a?b=1&c", "Ask the network team"
	expect := func(when string, rows map[string]string) {
		t.Helper()
		for to, want := range rows {
			if got := said(to); got != want {
				t.Errorf("%s, %s: %q, want %q", when, to, got, want)
			}
		}
	}
	expect("with a message of the user", map[string]string{"a.test:443": user, "169.254.169.254:80": user, "down.test:1": "", "a..test:443": ""})
	w.write(t, "above/organisation.yaml", "version: 1\ndeny: [never.test]\ndeny_message: "+organisation+"\n")
	w.hear(t, "policy reloaded")
	expect("with both", map[string]string{"a.test:443": user, "never.test:443": organisation})
	w.write(t, "egressd.yaml", strings.Replace(string(w.Config.Text), "deny_message: ", "# ", 1))
	w.hear(t, "policy reloaded")
	expect("with that of the organisation", map[string]string{"a.test:443": organisation, "never.test:443": organisation})
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
