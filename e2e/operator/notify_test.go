package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

const answersAt = "127.0.0.1:9463"

// A chatRoom is what people have their messages from: a webhook on the gateway's loopback, and a client that reaches answersAt.
type chatRoom struct {
	d    *world.Daemon
	kind string
	mu   sync.Mutex
	got  []map[string]any
}

// newChatRoom starts egressd with a receiver of a kind.
func newChatRoom(t *testing.T, kind, more string) *chatRoom {
	t.Helper()
	d := world.NewDaemon(t, chatPolicy(kind, more))
	r := &chatRoom{d: d, kind: kind}
	l, err := d.World.Gateway.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var m map[string]any
		if err := json.NewDecoder(q.Body).Decode(&m); err == nil {
			r.mu.Lock()
			r.got = append(r.got, m)
			r.mu.Unlock()
		}
	})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	d.PutFile(t, "chat.url", "http://"+l.Addr().String()+"/hook\n")
	world.Must(t, os.Chmod(filepath.Join(d.Dir, "chat.url"), 0o600))
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	return r
}

func chatPolicy(kind, more string) string {
	return world.WithAdmin(world.AdminSocket, fmt.Sprintf("notify: {answers: %q, to: [{name: team, type: %s, url_file: chat.url}]}\n", answersAt, kind)+more)
}

// message waits for the message about a host.
func (r *chatRoom) message(t *testing.T, host string) (found map[string]any) {
	t.Helper()
	there := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, m := range r.got {
			if text, _ := json.Marshal(m); strings.Contains(string(text), host) {
				found = m
				return true
			}
		}
		return false
	}
	if !world.Eventually(world.Settling, there) {
		t.Fatalf("no message about %s: %v", host, r.got)
	}
	return found
}

var aLink = regexp.MustCompile(`http://` + regexp.QuoteMeta(answersAt) + `/q/[A-Za-z0-9/_-]+`)

// linkIn returns the link of a message.
func linkIn(t *testing.T, m map[string]any) string {
	t.Helper()
	text, _ := json.Marshal(m)
	link := aLink.FindString(string(text))
	if link == "" {
		t.Fatalf("no link in %s", text)
	}
	return link
}

// post is what a person's browser, app or chat server sends.
func (r *chatRoom) post(t *testing.T, link, kind, body string) (int, string) {
	t.Helper()
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
		return r.d.World.Gateway.Dial(network, address)
	}}}
	a, err := client.Post(link, kind, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, _ := io.ReadAll(a.Body)
	return a.StatusCode, string(text)
}

// answers presses the button of a message as the program does that shows it, and returns the steps that a person took.
func (r *chatRoom) allows(t *testing.T, m map[string]any) (steps int) {
	t.Helper()
	const form = "application/x-www-form-urlencoded"
	status, text := 0, ""
	switch r.kind {
	case "slack": // the link, then a button of the page
		steps = 2
		status, text = r.post(t, linkIn(t, m), form, "answer=yes&for=1h")
	case "mattermost":
		steps = 1
		var button map[string]any
		for _, one := range m["attachments"].([]any)[0].(map[string]any)["actions"].([]any) {
			if a := one.(map[string]any); a["id"] == "allow" {
				button = a["integration"].(map[string]any)
			}
		}
		pressed, _ := json.Marshal(map[string]any{"user_id": "u", "user_name": "ada", "post_id": "p", "context": button["context"]})
		status, text = r.post(t, button["url"].(string), "application/json", string(pressed))
	case "ntfy":
		steps = 1
		a := m["actions"].([]any)[0].(map[string]any)
		if a["method"] != "POST" {
			t.Fatalf("the button sends %v", a)
		}
		status, text = r.post(t, a["url"].(string), a["headers"].(map[string]any)["Content-Type"].(string), a["body"].(string))
	}
	if status != 200 || strings.Contains(text, "does not count") {
		t.Fatalf("%d %s", status, text)
	}
	return steps
}

// agent is a program without a model and without a manual.
const agent = `
said=$(curl -sS http://a.allowed.test/x)
ask=$(printf %s "$said" | sed -n 's/.*"ask":"\([^"]*\)".*/\1/p')
id=$(curl -sS -H 'Accept: application/json' "${ask}requests" -d '{"host":"a.allowed.test:80","method":"GET","path":"/x","reason":"the build needs /x"}' | sed -n 's/.*"id":"\([^"]*\)".*/\1/p')
curl -sS --max-time 70 -H 'Accept: application/json' "${ask}requests/$id?wait=60" | sed -n 's/.*"state":"\([^"]*\)".*/\1/p'
curl -sS -o /dev/null -w '%{http_code}\n' http://a.allowed.test/x
curl -sS -o /dev/null -w '%{http_code}\n' http://a.allowed.test/y
`

// TestAnAgentIsAnsweredFromAChat is denied, finds the address in the denial, asks, waits, is approved without anybody at a
// terminal, and goes on with exactly that.
func TestAnAgentIsAnsweredFromAChat(t *testing.T) {
	for _, kind := range []string{"slack", "mattermost", "ntfy"} {
		t.Run(kind, func(t *testing.T) {
			r := newChatRoom(t, kind, "allow: [allowed.test]\n")
			began := time.Now()
			done := make(chan string, 1)
			go func() {
				out, err := r.d.Shell(t.TempDir(), "", agent)
				done <- fmt.Sprint(out, err)
			}()
			steps := r.allows(t, r.message(t, "a.allowed.test"))
			if out := <-done; out != "approved\n200\n403\n<nil>" {
				t.Fatalf("the agent got %q", out)
			}
			took := time.Since(began)
			if took > 30*time.Second {
				t.Errorf("from the denial to the next request it took %s", took)
			}
			t.Logf("%s: %s from the denial to the request that passes, %d steps of a person", kind, took.Round(10*time.Millisecond), steps)
			if !r.d.HasSaid(t, "approve question") {
				t.Error("the answer is not recorded")
			}
			all, err := r.d.Log.Since(0)
			world.Must(t, err)
			by := ""
			for _, one := range all {
				if one.Kind == record.KindAdmin && strings.HasPrefix(one.Note, "approve question") {
					by = one.Note
				}
			}
			if !strings.Contains(by, "the link that was sent to team, from 127.0.0.1:") || strings.Contains(by, `"ada"`) != (kind == "mattermost") {
				t.Errorf("the record says %q", by)
			}
			said := ""
			if !world.Eventually(world.Settling, func() bool { // one message asks, and one says that it was answered
				said = r.d.RunCommand(t, nil, "status", "--json", "--config", r.d.Config).Out
				return strings.Contains(said, `"notified":[{"name":"team","type":"`+kind+`","sent":2,"failed":0`)
			}) {
				t.Errorf("status says %s", said)
			}
		})
	}
}

// TestNothingIsGainedByLies has programs in the sandbox guess and forge answers, replay one, and change the terms while a person
// looks at them. All of it leaves the questions as they were.
func TestNothingIsGainedByLies(t *testing.T) {
	r := newChatRoom(t, "slack", "default: allow\nunsafe_allow: [\"127.0.0.0/8:*\"]\nask: [\"a.allowed.test:80\", \"b.allowed.test:80\"]\nlimits: {ask_wait: 1s}\n")
	d := r.d
	shell := func(line string) string {
		out, _ := d.Shell(t.TempDir(), "", line)
		return out
	}
	shell("curl -sS -o /dev/null http://a.allowed.test/")
	link := linkIn(t, r.message(t, "a.allowed.test"))
	path := strings.TrimPrefix(link, "http://"+answersAt)
	for _, line := range []string{ // with the very link, which no sandbox has
		"curl -sS -m 10 -w '%{http_code}' -d answer=yes " + link,
		"curl -sS -m 10 -w '%{http_code}' -p -d answer=yes " + link,
		"curl -sS -m 10 -w '%{http_code}' -x socks5h://$LAB_PROXY -d answer=yes " + link,
		"curl -sS -m 10 -w '%{http_code}' -p -d answer=yes http://127.1:9463" + path,
		"curl -sS -m 10 -w '%{http_code}' -p -d answer=yes http://localhost:9463" + path,
		"curl -sS -m 10 -w '%{http_code}' -p -d answer=yes http://home.allowed.test:9463" + path,
		"curl -sS -m 10 -w '%{http_code}' --noproxy '*' -d answer=yes http://${LAB_PROXY%:*}:9463" + path,
		"curl -sS -m 10 -w '%{http_code}' -d answer=yes http://egressd.internal" + path,
	} {
		if out := shell(line); strings.HasSuffix(out, "200") {
			t.Errorf("%s got %s", line, out)
		}
	}
	if q := isAsked(t, d, 0, "a.allowed.test", ""); q.State != "pending" {
		t.Fatalf("it is %s", q.State)
	}
	if d.ConnectStatus(t, "127.0.0.1:8080") != http.StatusOK {
		t.Error("loopback is not open, so that this shows nothing")
	}
	// A person answers; the link is spent, and is no answer to another question.
	const form = "application/x-www-form-urlencoded"
	if status, _ := r.post(t, link, form, "answer=no&for=1s"); status != 200 {
		t.Fatalf("%d", status)
	}
	shell("sleep 1.2; curl -sS -o /dev/null http://a.allowed.test/; curl -sS -o /dev/null http://b.allowed.test/")
	isAsked(t, d, 0, "a.allowed.test", "") // anew, with another id
	isAsked(t, d, 0, "b.allowed.test", "")
	if status, _ := r.post(t, link, form, "answer=yes"); status == 200 {
		t.Error("an answer was replayed")
	}
	for _, q := range questions(t, d) {
		if q.State != "pending" {
			t.Errorf("%s is %s", q.Host, q.State)
		}
	}
}

// TestALinkDoesNotOverruleANewPolicy: between the question and the answer, the operator denies what is asked for.
func TestALinkDoesNotOverruleANewPolicy(t *testing.T) {
	r := newChatRoom(t, "slack", "allow: [allowed.test]\n")
	d := r.d
	ask := func(path string) {
		if out, err := d.Shell(t.TempDir(), "", `curl -sS http://egressd.internal/requests -d '{"host":"a.allowed.test:80","method":"GET","path":"`+path+`","reason":"x"}'`); err != nil {
			t.Fatal(out, err)
		}
	}
	ask("/x")
	link := linkIn(t, r.message(t, "a.allowed.test"))
	ask("/other") // other terms are another question, and its answer
	d.Edit(t, chatPolicy("slack", "allow: [allowed.test]\ndeny: [a.allowed.test]\n"))
	d.ExpectPolicy(t, func(p record.Record) bool { return strings.HasPrefix(p.Note, "reloaded") })
	status, text := r.post(t, link, "application/x-www-form-urlencoded", "answer=yes")
	if status == 200 {
		t.Errorf("%d %s", status, text)
	}
	if out, _ := d.Shell(t.TempDir(), "", "curl -sS -o /dev/null -w '%{http_code}' http://a.allowed.test/x"); out != "403" {
		t.Errorf("what the policy denies gets %s", out)
	}
	d.Edit(t, chatPolicy("slack", "allow: [allowed.test]\n"))
	d.ExpectPolicy(t, func(p record.Record) bool { return strings.HasPrefix(p.Note, "reloaded") && p.Seq > 0 })
	if !world.Eventually(world.Settling, func() bool {
		status, text = r.post(t, link, "application/x-www-form-urlencoded", "answer=yes")
		return status == 200
	}) {
		t.Fatalf("the answer that did not count keeps a person from another one: %d %s", status, text)
	}
	for path, want := range map[string]string{"/x": "200", "/other": "403"} {
		if out, _ := d.Shell(t.TempDir(), "", "curl -sS -o /dev/null -w '%{http_code}' http://a.allowed.test"+path); out != want {
			t.Errorf("%s: %s, want %s", path, out, want)
		}
	}
}
