package notify

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// hostile is a question whose every free text tries to be more than text in a chat.
var hostile = egress.Question{
	ID: "01KB6ZQ4SZ", Sandbox: "sbx-a`*_", Host: "evil.test", Port: 443, Method: "GET", Rule: "access-request", Pattern: "evil.test:443",
	Path:  "/a`b](https://evil.test/x)<!channel>@here![](https://evil.test/i.png)",
	Words: "@channel <!everyone> <https://evil.test/|Allow> [Allow](https://evil.test/)\n`code` **bold** \x1b[2J",
}

const link = "https://answers.test/q/team/01KB6ZQ4SZ/99/abc-_"

func payloadOf(t *testing.T, kind, link string) (text string, parsed map[string]any) {
	t.Helper()
	m := chatMessage{q: &hostile, link: link, command: " --config /etc/egressd/egressd.yaml"}
	body, err := m.payload(kind, "https://ntfy.test/t0pic")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &parsed); err != nil {
		t.Fatal(err)
	}
	return string(body), parsed
}

// outsideCode returns a text without what stands between backquotes, in which a chat reads markup.
func outsideCode(t *testing.T, text string) string {
	t.Helper()
	parts := strings.Split(text, "`")
	if len(parts)%2 == 0 {
		t.Fatalf("a backquote has no other: %s", text)
	}
	out := ""
	for i := 0; i < len(parts); i += 2 {
		out += parts[i] + " "
	}
	return out
}

func TestSlackTakesTheMessage(t *testing.T) {
	_, p := payloadOf(t, "slack", link)
	if p["unfurl_links"] != false || p["unfurl_media"] != false {
		t.Errorf("Slack looks at the link: %v", p)
	}
	section := p["blocks"].([]any)[0].(map[string]any)
	text := section["text"].(map[string]any)
	said := text["text"].(string)
	if section["type"] != "section" || text["type"] != "mrkdwn" || text["verbatim"] != true || len(said) > 3000 {
		t.Errorf("%v", section)
	}
	if !strings.Contains(said, "<"+link+"|") || strings.Count(said, "<") != 1 || strings.Count(said, ">") != 1 {
		t.Errorf("there is more than the one link in\n%s", said)
	}
	for _, no := range []string{"evil", "channel", "everyone", "Allow]", "**"} {
		if strings.Contains(outsideCode(t, said), no) {
			t.Errorf("%q of the sandbox is markup in\n%s", no, said)
		}
	}
	if fallback := p["text"].(string); strings.ContainsAny(fallback, "<>\n") {
		t.Errorf("the text of the notification is %q", fallback)
	}
}

func TestMattermostTakesTheMessage(t *testing.T) {
	_, p := payloadOf(t, "mattermost", link)
	a := p["attachments"].([]any)[0].(map[string]any)
	said := outsideCode(t, a["text"].(string))
	for _, no := range []string{"evil", "channel", "everyone", "![", "here"} {
		if strings.Contains(said, no) {
			t.Errorf("%q of the sandbox is markup in\n%s", no, a["text"])
		}
	}
	if !strings.Contains(said, "]("+link+")") {
		t.Errorf("no link in\n%s", said)
	}
	actions := a["actions"].([]any)
	if len(actions) != 2 {
		t.Fatalf("%v", actions)
	}
	for _, one := range actions {
		b := one.(map[string]any)
		to := b["integration"].(map[string]any)
		id := b["id"].(string)
		if b["type"] != "button" || to["url"] != link || to["context"].(map[string]any)["answer"] == nil || strings.ContainsAny(id, "_-. ") {
			t.Errorf("%v", b)
		}
	}
}

// TestMattermostHasAButtonForEachScope that the question can have.
func TestMattermostHasAButtonForEachScope(t *testing.T) {
	for _, row := range []struct {
		q    egress.Question
		want string
	}{
		{egress.Question{}, "yes 1h, no"},
		{egress.Question{Runs: 1}, "yes 1h, yes run, no"},
		{egress.Question{Waiting: 1}, "yes 5m once, yes 1h, no"},
		{egress.Question{Waiting: 1, Pattern: "a.test:80", Runs: 2}, "yes 1h, yes run, no"},
	} {
		m := chatMessage{q: &row.q, link: link}
		body, err := m.payload("mattermost", "")
		var p struct {
			Attachments []struct {
				Actions []struct {
					Integration struct{ Context map[string]string }
				}
			}
		}
		if err != nil || json.Unmarshal(body, &p) != nil {
			t.Fatalf("%v in %s", err, body)
		}
		var got []string
		for _, a := range p.Attachments[0].Actions {
			c := a.Integration.Context
			words := []string{c["answer"], c["for"]}
			if c["once"] == "true" {
				words = append(words, "once")
			}
			if c["this_run"] == "true" {
				words = append(words, "run")
			}
			got = append(got, strings.Join(strings.Fields(strings.Join(words, " ")), " "))
		}
		if text := strings.Join(got, ", "); text != row.want {
			t.Errorf("%+v has %q, want %q", row.q, text, row.want)
		}
	}
}

func TestNtfyTakesTheMessage(t *testing.T) {
	text, p := payloadOf(t, "ntfy", link)
	if p["topic"] != "t0pic" || p["click"] != link || strings.Contains(text, "\x1b") || strings.Contains(p["message"].(string), "\x1b") || len(p["message"].(string)) > 4096 {
		t.Errorf("%s", text)
	}
	actions := p["actions"].([]any)
	if len(actions) != 3 { // more are refused
		t.Fatalf("%v", actions)
	}
	for i, want := range []string{"answer=yes&for=1h", "answer=no"} {
		a := actions[i].(map[string]any)
		if a["action"] != "http" || a["method"] != "POST" || a["url"] != link || a["body"] != want || a["headers"].(map[string]any)["Content-Type"] != "application/x-www-form-urlencoded" {
			t.Errorf("%v", a)
		}
	}
	if strings.Contains(strings.ReplaceAll(p["message"].(string), "/a`b](https://evil.test/x)<!channel>@here![](https://evil.test/i.png)", ""), "://evil") {
		t.Errorf("the sandbox's words have a link:\n%s", p["message"])
	}
	if p["markdown"] != nil {
		t.Error("ntfy reads markup")
	}
}

func TestWithoutALinkTheCommandIsThere(t *testing.T) {
	for _, kind := range []string{"slack", "mattermost", "ntfy"} {
		text, p := payloadOf(t, kind, "")
		if strings.Contains(text, "answers.test") || p["actions"] != nil || p["click"] != nil || strings.Contains(text, `"integration"`) {
			t.Errorf("%s: %s", kind, text)
		}
		if !strings.Contains(text, "answer 01KB6ZQ4SZ yes --config /etc/egressd/egressd.yaml") {
			t.Errorf("%s has no command: %s", kind, text)
		}
	}
}

// A chat is a receiver of messages.
type chat struct {
	*httptest.Server
	mu     sync.Mutex
	got    []string
	status int
	header http.Header
}

func newChat(t *testing.T) *chat {
	c := &chat{status: 200}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.header = r.Header
		if c.status == 200 {
			c.got = append(c.got, string(body))
		}
		w.Header().Set("Location", c.URL+"/elsewhere")
		w.WriteHeader(c.status)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *chat) messages() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.got...)
}

func (c *chat) answers(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

// asks is a gate that asks a person about everything.
func asks(t *testing.T, known ...sandbox.Entry) *egress.Gate {
	t.Helper()
	log, err := audit.Create(filepath.Join(t.TempDir(), "audit"), audit.Options{Durability: audit.Process})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	everybody, err := sandbox.NewDirectory(known)
	if err != nil {
		t.Fatal(err)
	}
	g := egress.New(egress.Config{Log: log, Sandboxes: everybody})
	if err := g.SetPolicy(t.Context(), policy.New(asking{}), "test"); err != nil {
		t.Fatal(err)
	}
	g.Approvals.Open(true, 0)
	return g
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for late := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("never: " + what)
		}
	}
}

func ask(t *testing.T, g *egress.Gate, host string) { askFrom(t, g, sandbox.Peer{}, host) }

func askFrom(t *testing.T, g *egress.Gate, from sandbox.Peer, host string) {
	t.Helper()
	dst, err := policy.ParseDestination(host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Open(t.Context(), from, policy.Request{Via: policy.ViaConnect, Destination: dst}); err == nil {
		t.Fatal("it passes")
	}
}

// TestAQuestionIsToldOnceAndAgainUntilItIsTaken, without another message for each connection, and never past an answer.
func TestAQuestionIsToldOnceAndAgainUntilItIsTaken(t *testing.T) {
	g, c := asks(t), newChat(t)
	c.answers(503)
	n := &Notifier{Gate: g, Link: func(receiver string, q *egress.Question) string {
		return "https://answers.test/" + receiver + "/" + q.ID
	}}
	to := Receiver{Name: "team", Type: "slack", URL: c.URL + "/services/s3cret", Headers: http.Header{"Authorization": {"Bearer hidden"}}}
	n.Apply(t.Context(), []Receiver{to})
	defer n.Stop()
	for range 5 {
		ask(t, g, "a.test:443")
	}
	until(t, "a failure is shown", func() bool { return n.States()[0].Failed > 0 })
	if s := n.States()[0]; s.Sent != 0 || s.Error == "" || strings.Contains(s.Error, "s3cret") || strings.Contains(s.Error, "hidden") || strings.Contains(s.Error, "127.0.0.1") {
		t.Errorf("%+v", s)
	}
	for _, q := range g.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
		if q.State != "pending" {
			t.Errorf("a failure answers: %s", q.State)
		}
	}
	c.answers(302)
	failed := n.States()[0].Failed
	until(t, "a redirect is a failure", func() bool { return n.States()[0].Failed > failed })
	c.answers(200)
	until(t, "it is taken", func() bool { return len(c.messages()) == 1 })
	if c.header.Get("Authorization") != "Bearer hidden" || !strings.Contains(c.messages()[0], "https://answers.test/team/") {
		t.Errorf("%v %s", c.header, c.messages()[0])
	}
	n.Apply(t.Context(), []Receiver{to}) // a reload
	ask(t, g, "b.test:443")
	until(t, "another is told", func() bool { return len(c.messages()) >= 2 })
	if all := c.messages(); len(all) != 2 || strings.Contains(all[1], "a.test") {
		t.Errorf("%d messages, the last %s", len(all), all[len(all)-1])
	}
	until(t, "both are counted", func() bool { return n.States()[0].Sent == 2 })
	if s := n.States()[0]; s.Error != "" || time.Since(s.Last) > time.Minute || s.Name != "team" {
		t.Errorf("%+v", s)
	}
}

// TestAChatHearsOfTheAnswer, once, whoever gave it; and nothing of a question that it was not told of.
func TestAChatHearsOfTheAnswer(t *testing.T) {
	for _, kind := range []string{"slack", "mattermost", "ntfy"} {
		g, c := asks(t), newChat(t)
		n := &Notifier{Gate: g, Link: func(receiver string, q *egress.Question) string { return "https://answers.test/" + q.ID }}
		to := c.URL + "/hook"
		n.Apply(t.Context(), []Receiver{{Name: "team", Type: kind, URL: to}})
		for _, host := range []string{"yes", "no", "gone"} {
			ask(t, g, host+".test:443")
		}
		until(t, "all are told", func() bool { return len(c.messages()) == 3 })
		for _, q := range g.Approvals.Questions(t.Context(), ^uint64(0)).Questions {
			id, _ := record.ParseID(q.ID)
			if q.Host == "gone.test" {
				g.Approvals.Remove(id)
				continue
			}
			if err := g.Approvals.Answer(id, approvals.Answer{Yes: q.Host == "yes.test", Lasts: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "all answers are told", func() bool { return len(c.messages()) == 6 })
		for _, said := range c.messages()[3:] {
			if strings.Contains(said, "https://answers.test/") || strings.Contains(said, "egressd answer ") {
				t.Errorf("%s: it can be answered still: %s", kind, said)
			}
			if strings.Contains(said, "yes.test") == strings.Contains(said, "may not reach") && !strings.Contains(said, "gone.test") {
				t.Errorf("%s: %s", kind, said)
			}
		}
		ask(t, g, "next.test:443")
		until(t, "another is told", func() bool { return len(c.messages()) >= 7 })
		if all := c.messages(); len(all) != 7 || !strings.Contains(all[6], "next.test") {
			t.Errorf("%s: %q", kind, all)
		}
		n.Stop()
	}
}

// TestAFloodOfOneSandboxIsNoFloodOfMessages, nor is that of one token which invents a sandbox for each question. The next sandbox is told of at once.
func TestAFloodOfOneSandboxIsNoFloodOfMessages(t *testing.T) {
	one := sandbox.Entry{Name: "one", Token: "own"}
	for _, template := range []bool{false, true} {
		g, c := asks(t, sandbox.Entry{Name: "sbx-{id}", Token: "shared"}, one), newChat(t)
		n := &Notifier{Gate: g}
		n.Apply(t.Context(), []Receiver{{Name: "team", Type: "mattermost", URL: c.URL}})
		for _, host := range strings.Split("abcdefghijklmnop", "") {
			from := sandbox.Peer{User: "sbx-a", Password: "shared", HasCredentials: true}
			if template {
				from.User = "sbx-" + host
			}
			askFrom(t, g, from, host+".test:443")
		}
		askFrom(t, g, sandbox.Peer{User: "one", Password: "own", HasCredentials: true}, "last.test:443")
		until(t, "the last is told", func() bool { return strings.Contains(strings.Join(c.messages(), ""), "last.test") })
		if got := len(c.messages()); got < burst || got > burst+2 { // one more each six seconds
			t.Errorf("template %t: %d messages", template, got)
		}
		n.Stop()
	}
}

// asking asks a person about everything.
type asking struct{}

func (asking) Evaluate(context.Context, *policy.Request) (policy.Decision, error) {
	return policy.Decision{Verdict: policy.Ask, Class: policy.AskRejected, Rule: "r", Layer: policy.User, Reason: "why"}, nil
}
