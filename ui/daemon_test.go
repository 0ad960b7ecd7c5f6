package ui

import (
	"context"
	"encoding/json"
	"errors"
	"html"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/hint"
)

// daemonFake notes what it is asked, and answers as egressd serve does.
type daemonFake struct {
	mu        sync.Mutex
	asked     []string
	questions string
	err       error
}

func (f *daemonFake) Send(ctx context.Context, method, path string, body, v any, _ ...int) (int, error) {
	if strings.HasPrefix(path, "/v1/questions?after=") {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	if method != "GET" {
		f.asked = append(f.asked, method+" "+path+" "+string(text))
	}
	if f.err != nil {
		return 0, f.err
	}
	answer := `{}`
	switch {
	case strings.HasPrefix(path, "/v1/questions") && method == "GET":
		answer = f.questions
	case path == "/v1/grants" && method == "GET":
		answer = `{"grants":[{"id":"GAAAAAA","verdict":"allow","pattern":"granted.test","from":"01KB000002","by":"uid 0","until":"2026-11-20T10:00:00Z","seconds":90}]}`
	case path == "/v1/grants" && method == "POST":
		answer = `{"grants":[{"id":"GAAAAAA","verdict":"allow","pattern":"granted.test","until":"2026-11-20T10:00:00Z"}],"opens":"opens GET of one host"}`
	case path == "/v1/policy":
		answer = `{"policy":"sha256:1","since":"2026-11-20T09:00:00Z","rejected":{"time":"2026-11-20T09:30:00Z","reason":"the file is <broken>"},"failed":{"count":2},"bundles":[{"source":"https://bundles.example/a","stale":"too old","error":"the server <says> no"}]}`
	case path == "/readyz":
		answer = `{"ready":false,"why":["the disk is <full>"]}`
	case path == "/v1/latency":
		answer = `{"decided":{"count":9876,"half_ms":0.01,"most_95_ms":0.025,"most_99_ms":0.05},"connected":{"count":4321,"half_ms":2.5,"most_95_ms":25,"most_99_ms":50}}`
	case strings.HasPrefix(path, "/v1/flows"):
		answer = `{"open":3,"flows":[]}`
	case path == "/v1/explain":
		answer = `{"verdict":"deny","rule":"default","reason":"no rule allows it","allowed_if":["a rule allows <b>"]}`
	}
	return 200, json.Unmarshal([]byte(answer), v)
}

func (f *daemonFake) changes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, one := range f.asked {
		if !strings.HasPrefix(one, "PUT /v1/pages/") {
			all = append(all, one)
		}
	}
	return all
}

// ask changes the questions that it has.
func (f *daemonFake) ask(questions string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.questions = questions
}

const oneQuestion = `{"version":3,"open":true,"questions":[{"id":"01KB6ZQ4SZ","state":"pending","sandbox":"ci","host":"evil.test","port":443,"method":"POST","path":"/<b>","rule":"uploads","layer":"user","via":"connect","process":{"pid":7,"exe":"/usr/bin/curl","argv":["curl","approve\u202e me"]},"asked":2,"waiting":1,"began":"2026-11-20T09:00:00Z","last":"2026-11-20T09:00:00Z","until":"2026-11-20T10:00:00Z"}]}`

func withDaemon(t *testing.T) (*page, *daemonFake) {
	f := &daemonFake{questions: oneQuestion}
	p := opened(t, Options{Dir: logOf(t), Dial: func() (Daemon, error) { return f, nil }, HasPolicy: true, Config: "testdata/egressd.yaml"})
	return p, f
}

// TestThePortIsKeptBeforeItIsOpen looks at what the daemon was asked first.
func TestThePortIsKeptBeforeItIsOpen(t *testing.T) {
	p, f := withDaemon(t)
	_, port, _ := strings.Cut(p.guard.host, ":")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 || f.asked[len(f.asked)-1] != "PUT /v1/pages/"+port+" null" {
		t.Errorf("it was asked %v, the page is at %s", f.asked, port)
	}
	s := New(Options{Dir: p.options.Dir, Dial: func() (Daemon, error) { return nil, errors.New("nobody answers") }})
	if l, err := s.Listen(); err == nil {
		l.Close()
		t.Error("the page listens, and the daemon does not know")
	}
}

// TestAQuestionShowsTheWordsOfTheProgram has what a program asks for itself, in its own words.
func TestAQuestionShowsTheWordsOfTheProgram(t *testing.T) {
	p, f := withDaemon(t)
	f.ask(strings.Replace(oneQuestion, `"rule":"uploads"`, `"rule":"access-request","pattern":"evil.test:443","words":"<script>\u202e \u001b[2Jplease"`, 1))
	_, text := p.ask("GET", "/questions", nil)
	plain := html.UnescapeString(text)
	if !strings.Contains(plain, `<script>\u{202e} \x1b[2Jplease`) || strings.Contains(text, "<script>\\u") || strings.Contains(text, "Approve once") {
		t.Errorf("the view is %s", text[strings.Index(text, "<article"):strings.Index(text, "</article>")])
	}
}

// TestAQuestionIsInEveryView: with the time when the request gives up and the forms that answer it, also where no link leads.
func TestAQuestionIsInEveryView(t *testing.T) {
	p, f := withDaemon(t)
	f.ask(strings.NewReplacer(`"waiting":1`, `"waiting":1,"gives_up":"2026-11-20T09:01:30Z"`, `"version":3`, `"version":4`).Replace(oneQuestion))
	for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
		if all, _, _ := p.live.state(); all.Version == 4 {
			break
		}
	}
	look := func(view, text string) {
		t.Helper()
		if !strings.Contains(text, `value="01KB6ZQ4SZ"`) || !strings.Contains(text, `<time datetime="2026-11-20T09:01:30Z" data-until>`) || !strings.Contains(text, `name="first" value="true"`) {
			t.Errorf("%s does not have the question", view)
		}
		if strings.Contains(text, "/<b>") {
			t.Errorf("%s: the path is not escaped", view)
		}
	}
	for _, view := range []string{"/", "/timeline", "/requests", "/destinations", "/sent", "/attempts", "/review", "/questions", "/policy", "/health", "/help", "/state", "/request/01KB000001", "/act?verdict=deny&id=01KB000061"} {
		_, text := p.ask("GET", view, nil)
		look(view, text)
		if view != "/questions" && !strings.Contains(text, `name="back" value="`+html.EscapeString(view)+`"`) {
			t.Errorf("an answer in %s does not lead back there", view)
		}
	}
	_, text := p.ask("POST", "/change", map[string]string{"body": "pattern=a.test&csrf=" + p.guard.csrf})
	look("POST /change", text)
	if !strings.Contains(text, `data-fresh="/state"`) {
		t.Error("what a form was answered with is not kept up to date")
	}
	for back, want := range map[string]string{"/sent?q=a": "/sent?q=a", "//evil.test": "/questions", "https://evil.test": "/questions", `/\evil.test`: "/questions", "": "/questions"} {
		v := url.Values{"csrf": {p.guard.csrf}, "id": {"01KB6ZQ4SZ"}, "answer": {"reject"}, "for": {"10m"}, "first": {"true"}, "back": {back}}
		answer, _ := p.ask("POST", "/questions", map[string]string{"body": v.Encode()})
		if got := answer.Header.Get("Location"); got != want {
			t.Errorf("back to %q leads to %q", back, got)
		}
	}
	if all := f.changes(); all[len(all)-1] != "POST /v1/questions/01KB6ZQ4SZ/reject?first=true&for=10m0s null" {
		t.Errorf("the daemon was asked %v", all)
	}
}

// TestAQuestionIsAnswered sends the forms of the view.
func TestAQuestionIsAnswered(t *testing.T) {
	p, f := withDaemon(t)
	_, text := p.ask("GET", "/questions", nil)
	plain := html.UnescapeString(text)
	for _, want := range []string{"POST /<b> to evil.test:443", "curl approve\\u{202e} me", "42 decisions", "sandbox ci, evil.test:443, rule uploads, POST /<b>"} {
		if !strings.Contains(plain, want) {
			t.Errorf("the view does not hold %q", want)
		}
	}
	if strings.Contains(text, "/<b>") {
		t.Error("the path is not escaped")
	}
	form := func(pairs ...string) map[string]string {
		v := url.Values{"csrf": {p.guard.csrf}}
		for i := 0; i < len(pairs); i += 2 {
			v.Set(pairs[i], pairs[i+1])
		}
		return map[string]string{"body": v.Encode()}
	}
	for _, row := range []struct {
		change map[string]string
		status int
		want   string
	}{
		{form("id", "01KB6ZQ4SZ", "answer", "approve", "once", "true", "for", "5m"), 303, "POST /v1/questions/01KB6ZQ4SZ/approve?for=5m0s&once=true null"},
		{form("id", "01KB6ZQ4SZ", "answer", "approve", "for", "1h"), 303, "POST /v1/questions/01KB6ZQ4SZ/approve?for=1h0m0s null"},
		{form("id", "01KB6ZQ4SZ", "answer", "reject", "once", "true", "for", "10m"), 303, "POST /v1/questions/01KB6ZQ4SZ/reject?for=10m0s null"},
		{form("id", "../../reload", "answer", "approve", "for", "1h"), 400, ""},
		{form("id", "01KB6ZQ4SZ", "answer", "cut", "for", "1h"), 400, ""},
		{form("id", "01KB6ZQ4SZ", "answer", "approve", "for", "ever"), 400, ""},
		{form("id", "01KB6ZQ4SZ", "answer", "approve", "for", "run", "terms", "t1"), 303, "POST /v1/questions/01KB6ZQ4SZ/approve?terms=t1&this_run=true null"},
		{form("id", "01KB6ZQ4SZ", "answer", "approve", "save", "d1", "terms", "t1", "first", "true"), 303, "POST /v1/questions/01KB6ZQ4SZ/approve?first=true&save=d1&terms=t1 null"},
		{form("id", "01KB6ZQ4SZ", "answer", "reject", "save", "d1"), 400, ""},
		{map[string]string{"body": "id=01KB6ZQ4SZ&answer=approve&for=1h"}, 403, ""},
	} {
		before := len(f.changes())
		answer, _ := p.ask("POST", "/questions", row.change)
		after := f.changes()[before:]
		if answer.StatusCode != row.status || row.want == "" && len(after) > 0 || row.want != "" && (len(after) != 1 || after[0] != row.want) {
			t.Errorf("%v: %d, the daemon was asked %v", row.change, answer.StatusCode, after)
		}
	}
	if _, text := p.ask("GET", "/", nil); !strings.Contains(text, `<span class="badge">1</span>`) {
		t.Error("the list of views does not tell of the question")
	}
}

// TestMarkedQuestionsAreAnsweredAtOnce in the terms in which they were shown, and no others.
func TestMarkedQuestionsAreAnsweredAtOnce(t *testing.T) {
	p, f := withDaemon(t)
	for _, row := range []struct {
		pick   []string
		more   []string
		status int
		want   []string
	}{
		{[]string{"01KB6ZQ4SZ:t1", "01KB6ZQ4T0:t2"}, []string{"answer", "approve", "for", "once"}, 200, []string{
			"POST /v1/questions/01KB6ZQ4SZ/approve?first=true&for=5m0s&once=true&terms=t1 null", "POST /v1/questions/01KB6ZQ4T0/approve?first=true&for=5m0s&once=true&terms=t2 null"}},
		{[]string{"01KB6ZQ4SZ:t1"}, []string{"answer", "reject", "for", "1h"}, 200, []string{"POST /v1/questions/01KB6ZQ4SZ/reject?first=true&for=1h0m0s&terms=t1 null"}},
		{[]string{"01KB6ZQ4SZ", "01KB6ZQ4T0:", "../x:t"}, []string{"answer", "approve", "for", "1h"}, 409, nil}, // not in the terms that were shown
		{[]string{"01KB6ZQ4SZ:t1"}, []string{"answer", "approve", "save", "d1"}, 400, nil},
		{nil, []string{"answer", "approve", "for", "1h"}, 400, nil},
	} {
		v := url.Values{"csrf": {p.guard.csrf}, "pick": row.pick}
		for i := 0; i < len(row.more); i += 2 {
			v.Set(row.more[i], row.more[i+1])
		}
		before := len(f.changes())
		answer, _ := p.ask("POST", "/questions/all", map[string]string{"body": v.Encode()})
		if got := f.changes()[before:]; answer.StatusCode != row.status || !slices.Equal(got, row.want) {
			t.Errorf("%v %v: %d, the daemon was asked %q", row.pick, row.more, answer.StatusCode, got)
		}
	}
}

// TestAGrantIsMadeAndTakenBack sends the forms of the view Policy.
func TestAGrantIsMadeAndTakenBack(t *testing.T) {
	p, f := withDaemon(t)
	_, text := p.ask("GET", "/policy?request=https://x.test/&method=PUT", nil)
	plain := html.UnescapeString(text)
	for _, want := range []string{"granted.test", "1m30s", "no rule allows it", "a rule allows <b>", "ruled.test", "baseline"} {
		if !strings.Contains(plain, want) {
			t.Errorf("the view does not hold %q: %.300s", want, text)
		}
	}
	token := "csrf=" + p.guard.csrf
	for target, row := range map[string]struct{ body, want string }{
		"/grants":         {token + "&verdict=allow&pattern=a.test+b.test&for=1h&sandbox=ci", `POST /v1/grants {"verdict":"allow","patterns":["a.test","b.test"],"seconds":3600,"sandbox":"ci"}`},
		"/grants/revoke":  {token + "&id=G%2F..%2FA", `DELETE /v1/grants/G%2F..%2FA null`},
		"/grants?again":   {"verdict=allow&pattern=a.test&for=1h", ""},
		"/grants?forever": {token + "&verdict=allow&pattern=a.test&for=0s", ""},
	} {
		before := len(f.changes())
		p.ask("POST", target, map[string]string{"body": row.body})
		if after := f.changes()[before:]; row.want == "" && len(after) > 0 || row.want != "" && (len(after) != 1 || after[0] != row.want) {
			t.Errorf("%s: the daemon was asked %v", target, after)
		}
	}
	f.mu.Lock()
	f.err = hint.Failed(errors.New("the ceiling says <no>"), "egressd status")
	f.mu.Unlock()
	answer, text := p.ask("POST", "/grants", map[string]string{"body": token + "&verdict=allow&pattern=a.test&for=1h"})
	if answer.StatusCode != 409 || !strings.Contains(text, "the ceiling says &lt;no&gt;") {
		t.Errorf("a grant that is refused: %s", answer.Status)
	}
}

// TestALogAloneChangesNothing looks for the addresses that change something.
func TestALogAloneChangesNothing(t *testing.T) {
	p := opened(t, Options{Dir: logOf(t)})
	for _, target := range []string{"/questions", "/grants", "/grants/revoke"} {
		if answer, _ := p.ask("POST", target, map[string]string{"body": "csrf=" + p.guard.csrf + "&id=01KB6ZQ4SZ&answer=approve&for=1h"}); answer.StatusCode != 404 {
			t.Errorf("%s: %s", target, answer.Status)
		}
	}
}

// TestAPageLearnsOfAQuestion reads the event stream while a question comes.
func TestAPageLearnsOfAQuestion(t *testing.T) {
	p, f := withDaemon(t)
	_, changed, _ := p.live.state()
	f.ask(strings.Replace(oneQuestion, `"version":3`, `"version":4`, 1))
	for range 2 { // the first list may come meanwhile
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatal("nobody was told")
		}
		all, next, _ := p.live.state()
		if all.Version == 4 {
			return
		}
		changed = next
	}
	t.Error("the new list was not kept")
}
