package daemon

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// soon is a moment that a policy file can name, between one second and two from now.
func soon() time.Time { return time.Now().Add(2 * time.Second).Truncate(time.Second) }

// TestWhatIsObservedIsCutAtTheEnd: the goroutine that reloads, which is the test, does nothing meanwhile.
func TestWhatIsObservedIsCutAtTheEnd(t *testing.T) {
	until := soon()
	w := newGrantsWorld(t, "mode: observe\nuntil: "+until.Format(time.RFC3339)+"\n")
	if text := w.talk.String(); !strings.Contains(text, "warning: "+w.Path+":6:7: mode: observe") {
		t.Errorf("the start says %s", text)
	}
	port := silent(t)
	c, refused := w.tunnel(t, "a.test:"+port)
	if c == nil {
		t.Fatal(refused)
	}
	defer c.Close()
	if r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindOpen && r.Dst.Host == "a.test" }); r.Decision.Rule != policy.LearnRule || r.Decision.Action != "allow" {
		t.Errorf("the record says %+v", r.Decision)
	}
	if o := w.Gate.Observing(); len(o) != 1 || !o[0].Until.Equal(until) {
		t.Errorf("it observes %+v", o)
	}
	if !isCut(t, c) || time.Now().Before(until) || time.Since(until) > time.Second {
		t.Errorf("cut %s after the end", time.Since(until))
	}
	if c, refused := w.tunnel(t, "a.test:"+port); c != nil || !strings.HasSuffix(refused, "403") {
		t.Errorf("afterwards: %q", refused)
	}
	if len(w.Gate.Observing()) > 0 {
		t.Error("it still observes")
	}
}

// TestTheEndOfAnObservationIsRecorded: nothing but the time changes.
func TestTheEndOfAnObservationIsRecorded(t *testing.T) {
	w := serveRego(t, "mode: observe\nuntil: "+soon().Format(time.RFC3339)+"\n", nil)
	who := &policy.Sandbox{Name: "default"}
	if all := w.allowed.to(who); len(all) != 2 || all[1].Rule != policy.LearnRule {
		t.Errorf("a sandbox is told %+v", all)
	}
	w.hear(t, "observing everybody until")
	if r := w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindPolicy && strings.Contains(r.Note, "has ended")
	}); r.Decision == nil || r.Decision.Policy != w.Gate.Digest() {
		t.Errorf("the record of the end is %+v", r)
	}
	if all := w.allowed.to(who); len(all) != 1 {
		t.Errorf("afterwards a sandbox is told %+v", all)
	}
	port := upstream(t)
	if status, text := w.connect(t, "a.test:"+port); status != http.StatusForbidden || !strings.Contains(text, string(policy.DefaultDeny)) {
		t.Errorf("%d %s", status, text)
	}
	w.write(t, "egressd.yaml", strings.Replace(string(w.Config.Text), "mode: observe\nuntil:", "mode: observe # forever\n#", 1))
	w.hear(t, "warning: "+w.Path)
	if status, text := w.connect(t, "a.test:"+port); status != http.StatusOK {
		t.Errorf("without an end: %d %s", status, text)
	}
	if r := w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindPolicy && strings.HasPrefix(r.Note, "warning: ")
	}); !strings.Contains(r.Note, "has no end") {
		t.Errorf("the reload notes %q", r.Note)
	}
}

// TestAnObservationThatHadEndedIsNoNews: a file whose time is over is enforced, and read as before.
func TestAnObservationThatHadEndedIsNoNews(t *testing.T) {
	w := newGrantsWorld(t, "mode: observe\nuntil: 2020-01-01T00:00:00Z\nallow: [\"a.test:*\"]\n")
	w.observing.expire(t.Context())
	if r := w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindPolicy && strings.Contains(r.Note, "has ended")
	}); r.Note != "" {
		t.Errorf("it is recorded: %q", r.Note)
	}
	if c, refused := w.tunnel(t, "b.test:"+silent(t)); c != nil || !strings.HasSuffix(refused, "403") {
		t.Errorf("%q", refused)
	}
	if !strings.Contains(w.talk.String(), "take the line out") {
		t.Errorf("the start says %s", w.talk.String())
	}
}
