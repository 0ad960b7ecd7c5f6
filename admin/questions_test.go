package admin

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// TestQuestionsAreAnswered over TCP: each answer is in the log with who gave it, and what is no
// answer changes nothing.
func TestQuestionsAreAnswered(t *testing.T) {
	w := newWorld(t)
	asks := opinion(func(*policy.Request) policy.Decision {
		return policy.Decision{Verdict: policy.Ask, Class: policy.AskRejected, Rule: "r", Layer: policy.User, Reason: "why"}
	})
	if err := w.Gate.SetPolicy(t.Context(), policy.New(asks), "test"); err != nil {
		t.Fatal(err)
	}
	w.Gate.Approvals.Open(true, 0)
	w.listen(t)
	list := func(query string) (a egress.Questions) {
		status, text := w.ask(t, http.MethodGet, "/v1/questions"+query, "", nil)
		if err := json.Unmarshal([]byte(text), &a); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		return a
	}
	before := list("")
	followed := make(chan egress.Questions, 1)
	go func() { followed <- list("?after=" + jsonText(before.Version)) }()
	dst, _ := policy.ParseDestination("93.184.216.34:443")
	if _, err := w.Gate.Open(t.Context(), sandbox.Peer{}, policy.Request{Via: policy.ViaConnect, Destination: dst}); err == nil {
		t.Fatal("it passes")
	}
	select {
	case a := <-followed:
		if len(a.Questions) != 1 || !a.Open || a.Questions[0].Host != "93.184.216.34" || a.Questions[0].State != "pending" {
			t.Fatalf("who follows is told %+v", a)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("who follows is told nothing")
	}
	id := list("").Questions[0].ID
	for path, want := range map[string]int{
		"/v1/questions/" + id + "/approve?for=25h":          http.StatusBadRequest,
		"/v1/questions/" + id + "/approve?for=-1s":          http.StatusBadRequest,
		"/v1/questions/" + id + "/approve?once=maybe":       http.StatusBadRequest,
		"/v1/questions/" + id + "/reject?once=true":         http.StatusBadRequest,
		"/v1/questions/" + id + "/approve?for=1m;once=true": http.StatusBadRequest, // net/url passes over both
		"/v1/questions/" + id + "/approve?once=tr%ue":       http.StatusBadRequest,
		"/v1/questions/" + id + "/approve?ones=true":        http.StatusBadRequest,
		"/v1/questions/" + id + "/approve?once=&once=true":  http.StatusBadRequest,
		"/v1/questions/" + id + "/delete":                   http.StatusBadRequest,
		"/v1/questions/0000000000/approve":                  http.StatusNotFound,
		"/v1/questions/" + id + "/approve?once=true&for=1m": http.StatusConflict,
	} {
		if status, text := w.ask(t, http.MethodPost, path, "", nil); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if q := list("").Questions[0]; q.State != "pending" {
		t.Errorf("it is %s", q.State)
	}
	if status, text := w.ask(t, http.MethodPost, "/v1/questions/"+id+"/approve", "for=5m&once=true", nil); status != http.StatusBadRequest || !strings.Contains(text, "no body") {
		t.Errorf("with a body: %d %s", status, text)
	}
	if status, _ := w.ask(t, http.MethodPost, "/v1/questions/"+id+"/approve", "", func(r *http.Request) { r.Header.Del("Authorization") }); status != http.StatusUnauthorized {
		t.Errorf("without the token it is answered %d", status)
	}
	for _, row := range [][2]string{{"approve?for=2h&first=true", "approved"}, {"reject?first=true", ""}, {"approve?once=true&first=true", ""}, {"reject", "rejected"}} {
		was := list("").Questions[0]
		if row[1] == "" { // the second of two who answer
			status, text := w.ask(t, http.MethodPost, "/v1/questions/"+id+"/"+row[0], "", nil)
			if now := list("").Questions[0]; status != http.StatusConflict || !strings.Contains(text, approvals.ErrAnswered.Error()+": approved until ") || now.State != "approved" || now.Until != was.Until {
				t.Errorf("%s after another answer: %d %s, and it is %s", row[0], status, text, now.State)
			}
			continue
		}
		status, text := w.ask(t, http.MethodPost, "/v1/questions/"+id+"/"+row[0], "", nil)
		if status != http.StatusOK || !strings.Contains(text, `"state":"`+row[1]+`"`) || !strings.Contains(text, `"was":"`+was.State+`"`) || list("").Questions[0].State != row[1] {
			t.Errorf("%s: %d %s", row[0], status, text)
		}
	}
	var notes, failed []string
	for _, r := range w.records(t, record.KindAdmin) {
		if strings.Contains(r.Note, "did not count") {
			failed = append(failed, r.Note)
		} else if r.Kind == record.KindAdmin && strings.Contains(r.Note, " question ") && !strings.Contains(r.Note, "for the flows that wait now") {
			notes = append(notes, r.Note)
		}
	}
	if want := "approve question " + id + " did not count: " + approvals.ErrNobodyWaits.Error(); len(failed) != 3 || !strings.HasPrefix(failed[0], want) || !strings.Contains(failed[1], approvals.ErrAnswered.Error()) {
		t.Errorf("of what did not count the log has %q", failed)
	}
	notes = slices.DeleteFunc(notes, func(n string) bool { return strings.Contains(n, "reject") && !strings.Contains(n, "for 10m") })
	if len(notes) != 3 || !strings.HasPrefix(notes[0], "approve question "+id+", for 2h0m0s: sandbox default, 93.184.216.34:443, rule r (user), asked by the token") || !strings.HasPrefix(notes[1], "reject question "+id) {
		t.Errorf("the log has %q", notes)
	}
}

// TestAPathIsNoName: a path that says who answered is behind who did, and quoted.
func TestAPathIsNoName(t *testing.T) {
	who := Operator{Addr: netip.MustParseAddrPort("127.0.0.1:7")}
	q := egress.Question{ID: "Q", Sandbox: "s", Host: "a.test", Port: 80, Rule: "r", Layer: "user", Method: "POST", Path: `/", asked by uid 0, pid 1`}
	note := who.answerNote(approvals.Answer{Yes: true, Lasts: time.Hour}, &q, "").Note
	if want := `approve question Q, for 1h0m0s: sandbox s, a.test:80, rule r (user), asked by the token, from 127.0.0.1:7, to "POST" "/\", asked by uid 0, pid 1"`; note != want {
		t.Errorf("it is recorded as %q, not %q", note, want)
	}
}

func jsonText(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
