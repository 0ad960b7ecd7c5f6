package admin

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/boottime"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A linkWorld is a server of links beside a gate that asks a person about everything.
type linkWorld struct {
	*world
	links *Links
	at    string
}

func newLinkWorld(t *testing.T, change func(*Links)) *linkWorld {
	t.Helper()
	w := &linkWorld{world: newWorld(t)}
	asks := opinion(func(*policy.Request) policy.Decision {
		return policy.Decision{Verdict: policy.Ask, Class: policy.AskRejected, Rule: "r", Layer: policy.User, Reason: "why"}
	})
	if err := w.Gate.SetPolicy(t.Context(), policy.New(asks), "test"); err != nil {
		t.Fatal(err)
	}
	w.Gate.Approvals.Open(true, 0)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.at = "http://" + l.Addr().String()
	w.links = &Links{Base: w.at, Asked: &Asked{Gate: w.Gate, Complain: func(err error) { t.Error(err) }}}
	if change != nil {
		change(w.links)
	}
	s := &Server{Gate: w.Gate, Log: w.Log, Links: w.links, OnError: func(err error) { t.Error(err) }}
	s.denied.delay = time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		s.Shutdown(ctx)
		if err := <-ended; err != http.ErrServerClosed {
			t.Errorf("Serve returned %v", err)
		}
	})
	return w
}

// question has a flow ask about a host, and returns its question.
func (w *linkWorld) question(t *testing.T, host string) *egress.Question {
	t.Helper()
	dst, err := policy.ParseDestination(host + ":443")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Gate.Open(t.Context(), sandbox.Peer{}, policy.Request{Via: policy.ViaConnect, Destination: dst}); err == nil {
		t.Fatal("it passes")
	}
	for _, q := range w.Gate.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
		if q.Host == host {
			return &q
		}
	}
	t.Fatalf("nothing is asked about %s", host)
	return nil
}

func (w *linkWorld) state(t *testing.T, q *egress.Question) string {
	t.Helper()
	id, _ := record.ParseID(q.ID)
	now, _ := w.Gate.Approvals.Question(id)
	return now.State
}

// send sends a request to a link. form is its body, or the query of a GET.
func (w *linkWorld) send(t *testing.T, method, link, kind, body string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, link, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	a, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(text)
}

const (
	formType = "application/x-www-form-urlencoded"
	jsonType = "application/json"
)

// previews are the programs that look at each link of a chat, by the names that they give in public.
var previews = []string{
	"Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)",
	"Mattermost-Bot/1.1",
	"Mozilla/5.0 (Windows NT 6.1; WOW64) SkypeUriPreview Preview/0.5 skype-url-preview@microsoft.com",
	"Mozilla/5.0 (compatible; Discordbot/2.0; +https://discordapp.com)",
	"TelegramBot (like TwitterBot)",
	"facebookexternalhit/1.1 (+http://www.facebook.com/externalhit_uatext.php)",
	"Synapse (bot; +https://github.com/matrix-org/synapse)",
}

func TestALinkAnswersOnce(t *testing.T) {
	for _, row := range []struct{ kind, body, state, said string }{
		{formType, "answer=yes&for=2h", "approved", "approve question"},
		{formType, "answer=no", "rejected", "reject question"},
		{jsonType, `{"user_id":"x","user_name":"ada","context":{"answer":"yes","for":"1h"}}`, "approved", `"ada"`},
	} {
		w := newLinkWorld(t, nil)
		q := w.question(t, "a.test")
		link, other := w.links.To("team", q), w.links.To("phone", q)
		for _, bot := range previews {
			for _, method := range []string{"GET", "HEAD"} {
				if status, _ := w.send(t, method, link, "", "", "User-Agent", bot); status != 200 || w.state(t, q) != "pending" {
					t.Fatalf("%s by %s: %d, and the question is %s", method, bot, status, w.state(t, q))
				}
			}
		}
		if _, page := w.send(t, "GET", link, "", ""); !strings.Contains(page, "a.test:443") || !strings.Contains(page, `method="post"`) {
			t.Errorf("the page is %s", page)
		}
		if status, text := w.send(t, "POST", link, row.kind, row.body); status != 200 || w.state(t, q) != row.state {
			t.Fatalf("%s: %d %s, and the question is %s", row.body, status, text, w.state(t, q))
		}
		if !slices.ContainsFunc(w.records(t, record.KindAdmin), func(r record.Record) bool {
			return strings.Contains(r.Note, row.said) && strings.Contains(r.Note, "the link that was sent to team, from 127.0.0.1:") && strings.Contains(r.Note, q.ID)
		}) {
			t.Errorf("no record says who answered by what: %+v", w.records(t, record.KindAdmin))
		}
		before := len(w.records(t, record.KindAdmin))
		for _, again := range []string{link, other} {
			if status, _ := w.send(t, "POST", again, formType, "answer=yes&for=24h"); status != http.StatusConflict || w.state(t, q) != row.state {
				t.Errorf("a second time: %d, and the question is %s", status, w.state(t, q))
			}
			w.send(t, "POST", again, formType, "answer=no")
			if w.state(t, q) != row.state {
				t.Errorf("an answer was changed to %s", w.state(t, q))
			}
		}
		if after := len(w.records(t, record.KindAdmin)); after != before {
			t.Errorf("%d records of answers that did not count", after-before)
		}
	}
}

// TestWhatIsNoLinkAnswersNothing, and does not tell whether there is such a question.
func TestWhatIsNoLinkAnswersNothing(t *testing.T) {
	w := newLinkWorld(t, nil)
	q, other := w.question(t, "a.test"), w.question(t, "b.test")
	link, elsewhere := w.links.To("team", q), w.links.To("team", other)
	part, of := strings.Split(link, "/"), strings.Split(elsewhere, "/")
	stranger := &Links{Base: w.at, Asked: w.links.Asked}
	changed := *q
	changed.Host = "c.test"
	past := int64(boottime.Now()/time.Second) - 1
	flipped := []byte(link)
	flipped[len(flipped)-10] ^= 1
	with := func(i int, text string) string {
		p := slices.Clone(part)
		p[i] = text
		return strings.Join(p, "/")
	}
	for says, bad := range map[string]string{
		"nothing":                    w.at + "/",
		"another path":               w.at + "/v1/policy",
		"the operator's API":         w.at + "/v1/questions/" + q.ID + "/approve",
		"another receiver":           with(4, "phone"),
		"another question":           with(5, other.ID),
		"a question that is none":    with(5, "0000000001"),
		"a later end":                with(6, "99999999999"),
		"an end that is no number":   with(6, "1e9"),
		"the signature of another":   with(7, of[7]),
		"no signature":               with(7, ""),
		"half a signature":           with(7, part[7][:20]),
		"a flipped bit":              string(flipped),
		"padding behind it":          link + "=",
		"a path behind it":           link + "/x",
		"another key":                stranger.To("team", q),
		"other terms":                w.links.To("team", &changed),
		"an hour ago":                w.linkAt(q, past),
		"a query":                    link + "?answer=yes",
		"an id in small letters":     with(5, strings.ToLower(q.ID)),
		"a receiver that is encoded": strings.Replace(link, "/team/", "/te%61m/", 1),
	} {
		for _, method := range []string{"GET", "POST"} {
			status, text := w.send(t, method, bad, formType, "answer=yes")
			if status != http.StatusNotFound || strings.Contains(text, "test") {
				t.Errorf("%s by %s: %d %s", says, method, status, text)
			}
		}
		if w.state(t, q) != "pending" || w.state(t, other) != "pending" {
			t.Fatalf("%s answers", says)
		}
	}
	if n := w.links.Refused.Load(); n != 40 {
		t.Errorf("%d are counted", n)
	}
}

func (w *linkWorld) linkAt(q *egress.Question, end int64) string {
	return w.links.linkAt("team", q, end)
}

func TestWhatIsNoAnswerChangesNothing(t *testing.T) {
	w := newLinkWorld(t, nil)
	q := w.question(t, "a.test")
	link := w.links.To("team", q)
	for _, row := range []struct {
		says, method, kind, body string
		header                   []string
		status                   int
	}{
		{"another method", "PUT", formType, "answer=yes", nil, 405},
		{"no type", "POST", "", "answer=yes", nil, 400},
		{"text", "POST", "text/plain", "answer=yes", nil, 400},
		{"another word", "POST", formType, "answer=maybe", nil, 400},
		{"two words", "POST", formType, "answer=yes&answer=no", nil, 400},
		{"a key of no use", "POST", formType, "answer=yes&host=evil.test", nil, 400},
		{"longer than a day", "POST", formType, "answer=yes&for=25h", nil, 400},
		{"no time", "POST", formType, "answer=yes&for=0s", nil, 400},
		{"nobody waits", "POST", formType, "answer=yes&once=true", nil, 409},
		{"a large body", "POST", formType, "answer=yes&for=" + strings.Repeat("1", 9<<10), nil, 400},
		{"a page of another site", "POST", formType, "answer=yes", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"no JSON", "POST", jsonType, "answer=yes", nil, 200},
		{"JSON without an answer", "POST", jsonType, `{"context":{}}`, nil, 200},
	} {
		if status, text := w.send(t, row.method, link, row.kind, row.body, row.header...); status != row.status || w.state(t, q) != "pending" {
			t.Errorf("%s: %d, and the question is %s: %s", row.says, status, w.state(t, q), text)
		}
	}
}

// TestAnAnswerInAChatHasNoMarkup: the path is the sandbox's, and Mattermost shows the reply in the place of its message.
func TestAnAnswerInAChatHasNoMarkup(t *testing.T) {
	w := newLinkWorld(t, nil)
	asks := opinion(func(r *policy.Request) policy.Decision {
		if r.HTTP == nil {
			return policy.Decision{Verdict: policy.Allow}
		}
		return policy.Decision{Verdict: policy.Ask, Class: policy.AskRejected, Rule: "r", Layer: policy.User}
	})
	if err := w.Gate.SetPolicy(t.Context(), policy.New(asks), "test"); err != nil {
		t.Fatal(err)
	}
	const path = "/@channel/[Allow](evil.test)/`x`/![](evil.test/i.png)"
	r := policy.Request{Via: policy.ViaHTTP, Destination: policy.Destination{Host: "a.test", Port: 80}, HTTP: &policy.HTTPRequest{Method: "GET", Path: path}}
	if _, err := w.Gate.Open(t.Context(), sandbox.Peer{}, r); err == nil {
		t.Fatal("it passes")
	}
	q := w.Gate.Approvals.Questions(t.Context(), ^uint64(0)).Questions[0]
	for _, answer := range []string{`{"context":{"answer":"no"}}`, `{"context":{"answer":"yes"}}`} { // counts, and comes too late
		_, text := w.send(t, "POST", w.links.To("team", &q), jsonType, answer)
		var said struct {
			Text   string `json:"ephemeral_text"`
			Update struct{ Message string }
		}
		if err := json.Unmarshal([]byte(text), &said); err != nil || !strings.Contains(said.Update.Message, "@channel") {
			t.Fatalf("%v in %s", err, text)
		}
		for _, one := range []string{said.Text, said.Update.Message} {
			if len(one) < 2 || strings.Trim(one, "`") != one[1:len(one)-1] || strings.Count(one, "`") != 2 {
				t.Errorf("not all is between backquotes: %s", one)
			}
		}
	}
}

func TestALinkFromASandboxAnswersNothing(t *testing.T) {
	inside := netip.MustParseAddr("127.0.0.1")
	w := newLinkWorld(t, func(l *Links) { l.FromSandbox = func(at netip.AddrPort) bool { return at.Addr() == inside } })
	q := w.question(t, "a.test")
	for _, method := range []string{"GET", "POST"} {
		if status, text := w.send(t, method, w.links.To("team", q), formType, "answer=yes"); status != http.StatusForbidden || w.state(t, q) != "pending" || strings.Contains(text, "a.test") {
			t.Errorf("%s: %d %s", method, status, text)
		}
	}
}

// TestOneAnswerCounts has answers by links race with each other and with those of operators.
func TestOneAnswerCounts(t *testing.T) {
	w := newLinkWorld(t, nil)
	q := w.question(t, "a.test")
	link := w.links.To("team", q)
	var racing sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for i := range 40 {
		answer := []string{"yes", "no"}[i%2]
		racing.Go(func() {
			if status, _ := w.send(t, "POST", link, formType, "answer="+answer); status == 200 {
				mu.Lock()
				won[answer]++
				mu.Unlock()
			}
		})
	}
	racing.Wait()
	want := map[string]string{"approved": "yes", "rejected": "no"}[w.state(t, q)]
	if len(won) != 1 || won[want] != 1 {
		t.Errorf("%v won, and the question is %s", won, w.state(t, q))
	}
}

// TestALinkIsBoundToAllTerms of its question: a field that is new is signed, or is one that changes while nobody answers.
func TestALinkIsBoundToAllTerms(t *testing.T) {
	changes := []string{"State", "Via", "Process", "Container", "Asked", "Waiting", "Once", "ThisRun", "Saved", "Runs", "Terms", "Last", "Until", "GivesUp"}
	var l Links
	q := egress.Question{ID: "1", Began: time.Unix(1, 0)}
	before := l.sign("team", &q, 1)
	for i := range reflect.TypeFor[egress.Question]().NumField() {
		name := reflect.TypeFor[egress.Question]().Field(i).Name
		other := q
		switch f := reflect.ValueOf(&other).Elem().Field(i); v := f.Addr().Interface().(type) {
		case *string:
			*v += "x"
		case *uint16:
			*v++
		case *time.Time:
			*v = v.Add(time.Nanosecond)
		default:
			if !slices.Contains(changes, name) {
				t.Errorf("%s: this test does not know how to change it", name)
			}
			continue
		}
		if same := string(l.sign("team", &other, 1)) == string(before); same != slices.Contains(changes, name) {
			t.Errorf("%s: the signature is the same: %t", name, same)
		}
	}
	moved := egress.Question{ID: "1", Began: q.Began, Method: "ab", Path: "c"}
	again := egress.Question{ID: "1", Began: q.Began, Method: "a", Path: "bc"}
	if string(l.sign("team", &moved, 1)) == string(l.sign("team", &again, 1)) {
		t.Error("two questions have one signature")
	}
}
