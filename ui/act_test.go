package ui

import (
	"fmt"
	"html"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/logs/story"
)

// actsLog writes a log of requests of all kinds that a person may want to do something about, and a policy beside it.
func actsLog(t *testing.T) (dir, policy string, flows map[string]string) {
	t.Helper()
	dir, flows = t.TempDir(), map[string]string{}
	var b strings.Builder
	b.WriteString(`{"v":1,"seq":0,"time":"2026-11-20T09:00:00.000000Z","kind":"start","note":"started"}` + "\n")
	for i, one := range []struct{ name, dst, http, decision, more string }{
		{"unknown host", `{"host":"pkgs.corp.example","port":443}`, "", `{"action":"deny","rule":"default","layer":"builtin","class":"default-deny"}`, ""},
		{"plain request", `{"host":"pkgs.corp.example","port":80}`, `,"http":{"method":"GET","path":"/simple/left-pad/"}`, `{"action":"deny","rule":"default","layer":"builtin","class":"default-deny"}`, ""},
		{"other method", `{"host":"api.example.com","port":443}`, `,"http":{"method":"POST","path":"/upload"}`, `{"action":"deny","rule":"allow[0]","layer":"user","class":"method-denied"}`, ""},
		{"private address", `{"host":"10.0.0.5","port":8443,"class":"private"}`, "", `{"action":"deny","rule":"baseline","layer":"builtin","class":"address-denied"}`, ""},
		{"denied on purpose", `{"host":"paste.example","port":443}`, "", `{"action":"deny","rule":"deny[0]","layer":"user","class":"rule-deny"}`, ""},
		{"several at once", `{"host":"flood.example","port":443}`, "", `{"action":"deny","rule":"default","layer":"builtin","class":"default-deny"}`, `,"shared":true`},
		{"allowed", `{"host":"ruled.test","port":443}`, "", `{"action":"allow","rule":"ruled","layer":"user"}`, ""},
	} {
		id := fmt.Sprintf("01KB%06d", i+1)
		flows[one.name] = id
		fmt.Fprintf(&b, `{"v":1,"seq":%d,"time":"2026-11-20T09:00:%02d.000000Z","kind":"open","flow":"%s","sandbox":"default","via":"http","dst":%s%s,"process":{"pid":7,"exe":"/usr/bin/curl","argv":["curl"]},"decision":%s%s}`+"\n", i+1, i+1, id, one.dst, one.http, one.decision, one.more)
	}
	policy = filepath.Join(t.TempDir(), "egressd.yaml")
	for path, text := range map[string]string{
		filepath.Join(dir, "00000001.log"): b.String(),
		policy:                             "version: 1\n# kept\nallow:\n  - {host: api.example.com, methods: [GET]}\n  - {host: ruled.test, id: ruled} # why\ndeny:\n  - paste.example\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, policy, flows
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`)

// form returns the fields of the form of a view that says how.
func form(t *testing.T, text, how string) url.Values {
	t.Helper()
	for _, one := range strings.Split(text, "<form")[1:] {
		one, _, _ = strings.Cut(one, "</form>")
		v := url.Values{}
		for _, found := range hiddenField.FindAllStringSubmatch(one, -1) {
			v.Set(found[1], html.UnescapeString(found[2]))
		}
		if v.Get("how") == how {
			return v
		}
	}
	t.Fatalf("no form does %s: %.1500s", how, mainOf(text))
	return nil
}

func (p *page) post(target string, v url.Values) (status int, text string) {
	answer, text := p.ask("POST", target, map[string]string{"body": v.Encode()})
	return answer.StatusCode, text
}

// TestARowIsActedOn writes a rule about a request from its row, sees what the file says then, and undoes it.
func TestARowIsActedOn(t *testing.T) {
	dir, policy, flows := actsLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy})
	before, _ := os.ReadFile(policy)
	for _, row := range []struct{ name, verdict, line string }{
		{"unknown host", "allow", "  - pkgs.corp.example:443\n"},
		{"plain request", "allow", "  - {host: pkgs.corp.example:80, methods: [GET], paths: [/simple/left-pad/]}\n"},
		{"unknown host", "ask", "ask:\n  - pkgs.corp.example:443\n"},
		{"allowed", "deny", "  - ruled.test:443\n"},
	} {
		id := flows[row.name]
		link := actURL(id, row.verdict)
		for _, view := range []string{"/", "/requests", "/request/" + id, "/destinations"} {
			if _, text := p.ask("GET", view, nil); !strings.Contains(text, html.EscapeString(link)) && (view != "/destinations" || row.name != "plain request") {
				t.Errorf("%s, %s: %s has no link to it", row.name, row.verdict, view)
			}
		}
		_, text := p.ask("GET", link, nil)
		if !strings.Contains(html.UnescapeString(text), `<span class="add">+`+strings.TrimSuffix(row.line[strings.Index(row.line, "  -"):], "\n")) || !strings.Contains(text, "As it is now") {
			t.Errorf("%s, %s: the rule is not shown: %.1500s", row.name, row.verdict, mainOf(text))
		}
		if now, _ := os.ReadFile(policy); string(now) != string(before) {
			t.Fatalf("%s: looking wrote %q", row.name, now)
		}
		save := form(t, text, "save")
		wrong := url.Values{}
		for k, v := range save {
			wrong[k] = v
		}
		wrong.Set("digest", strings.Repeat("0", 64))
		if status, _ := p.post("/act", wrong); status != 409 {
			t.Errorf("%s: a change that nobody was shown: %d", row.name, status)
		}
		if status, text := p.post("/act", save); status != 303 {
			t.Fatalf("%s: %d %.1500s", row.name, status, mainOf(text))
		}
		after, _ := os.ReadFile(policy)
		if !strings.Contains(string(after), row.line) || !strings.Contains(string(after), "# kept") {
			t.Errorf("%s, %s: the file is %q", row.name, row.verdict, after)
		}
		_, text = p.ask("GET", "/request/"+id, nil)
		if plain := html.UnescapeString(text); !strings.Contains(plain, "Written to "+policy) || !strings.Contains(plain, "the next one would "+map[string]string{"allow": "allow it", "deny": "deny it", "ask": "ask a person"}[row.verdict]) {
			t.Errorf("%s, %s: it is not told what came of it: %.800s", row.name, row.verdict, mainOf(plain))
		}
		_, text = p.ask("GET", actURL(id, "undo"), nil)
		if status, text := p.post("/act", form(t, text, "out")); status != 303 && row.verdict != "deny" {
			t.Errorf("%s: undo: %d %.1500s", row.name, status, mainOf(text))
		}
		if err := os.WriteFile(policy, before, 0o600); row.verdict == "deny" && err != nil { // the line that it took the place of
			t.Fatal(err)
		}
		if now, _ := os.ReadFile(policy); string(now) != string(before) && row.verdict == "allow" {
			t.Errorf("%s: undone, the file is %q", row.name, now)
		}
		_ = os.WriteFile(policy, before, 0o600)
	}
}

// TestThePageRefusesAsTheCommandDoes asks for rules about requests that egressd allow --from refuses, and compares the words.
func TestThePageRefusesAsTheCommandDoes(t *testing.T) {
	dir, policy, flows := actsLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy})
	before, _ := os.ReadFile(policy)
	_, list := p.ask("GET", "/requests", nil)
	for name, id := range flows {
		_, log, err := story.FindAnywhere(&source.Source{Dir: dir}, id)
		if err != nil {
			t.Fatal(err)
		}
		found, err := story.Find(log, id)
		if err != nil {
			t.Fatal(err)
		}
		log.Close()
		_, refused := found.Allowing(nil, "", policy)
		if (refused == nil) != (name == "unknown host" || name == "plain request") {
			t.Errorf("%s: the command says %v", name, refused)
		}
		if refused == nil {
			continue
		}
		answer, text := p.ask("GET", actURL(id, "allow"), nil)
		if answer.StatusCode != 409 || !strings.Contains(html.UnescapeString(text), refused.Error()) || strings.Contains(text, `value="save"`) {
			t.Errorf("%s: %s, and the command says %v: %.800s", name, answer.Status, refused, mainOf(text))
		}
		if name != "several at once" && strings.Contains(list, html.EscapeString(actURL(id, "allow"))) {
			t.Errorf("%s: its row offers to allow it", name)
		}
		for _, how := range []string{"save", "while"} {
			if status, _ := p.post("/act", url.Values{"csrf": {p.guard.csrf}, "id": {id}, "verdict": {"allow"}, "how": {how}, "for": {"1h"}, "digest": {strings.Repeat("0", 64)}}); status != 409 {
				t.Errorf("%s: a form that says %s: %d", name, how, status)
			}
		}
	}
	if now, _ := os.ReadFile(policy); string(now) != string(before) {
		t.Errorf("the file is %q", now)
	}
	for _, target := range []string{"/act?id=01KB000001&verdict=inspect", "/act?id=nothing&verdict=allow", "/act?id=01KB999999&verdict=allow"} {
		if answer, _ := p.ask("GET", target, nil); answer.StatusCode != 404 {
			t.Errorf("%s: %s", target, answer.Status)
		}
	}
	alone := opened(t, Options{Dir: dir})
	if _, text := alone.ask("GET", "/requests", nil); strings.Contains(text, "/act?") {
		t.Error("the log of an unknown policy offers rules")
	}
}

// TestARowIsActedOnBesideADaemon grants for a while what a row says, after a look at what that opens, and takes it back.
func TestARowIsActedOnBesideADaemon(t *testing.T) {
	dir, policy, flows := actsLog(t)
	f := &daemonFake{questions: `{"questions":[]}`}
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy, Dial: func() (Daemon, error) { return f, nil }})
	const asked = `{"verdict":"allow","patterns":["pkgs.corp.example:80"],"method":"GET","path":"/simple/left-pad/","seconds":3600,"sandbox":"default","from":"01KB000002"`
	_, text := p.ask("GET", actURL(flows["plain request"], "allow"), nil)
	if all := strings.Join(f.changes(), "\n"); !strings.Contains(all, "POST /v1/grants "+asked+`,"dry_run":true}`) || !strings.Contains(all, `"http://pkgs.corp.example:80/simple/left-pad/"`) {
		t.Errorf("the daemon was asked %s", all)
	}
	if !strings.Contains(text, "opens GET of one host") {
		t.Errorf("what it opens is not shown: %.800s", mainOf(text))
	}
	v := form(t, text, "while")
	v.Set("for", "1h")
	if status, text := p.post("/act", v); status != 303 || !strings.Contains(strings.Join(f.changes(), "\n"), "POST /v1/grants "+asked+"}") {
		t.Errorf("%d, the daemon was asked %v: %.800s", status, f.changes(), mainOf(text))
	}
	if _, text = p.ask("GET", "/request/"+flows["plain request"], nil); !strings.Contains(text, "Not in force: egressd serve would deny it") || !strings.Contains(text, "Undo…") {
		t.Errorf("a rule that does not count is not said: %.800s", mainOf(text))
	}
	_, text = p.ask("GET", actURL(flows["plain request"], "undo"), nil)
	if status, _ := p.post("/act", form(t, text, "back")); status != 303 || !strings.Contains(strings.Join(f.changes(), "\n"), "DELETE /v1/grants/GAAAAAA") {
		t.Errorf("%d: it is not taken back: %v", status, f.changes())
	}
}
