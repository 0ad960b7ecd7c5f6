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
)

// learnedLog writes the log of a run that learned, in which names were also made up to carry data, and a policy beside
// it.
func learnedLog(t *testing.T) (dir, policy string) {
	t.Helper()
	dir = t.TempDir()
	var b strings.Builder
	seq := 0
	line := func(rest string) {
		fmt.Fprintf(&b, `{"v":1,"seq":%d,"time":"2026-11-20T09:00:%02d.000000Z",%s}`+"\n", seq, seq%60, rest)
		seq++
	}
	request := func(host, decision string, times int) {
		for range times {
			head := fmt.Sprintf(`"flow":"01KB%06d","sandbox":"default","via":"connect","dst":{"host":%q,"port":443,"addr":"192.0.2.1"},"process":{"pid":7,"exe":"/usr/bin/npm","argv":["npm"]}`, seq, host)
			line(`"kind":"open",` + head + `,"decision":` + decision)
			line(`"kind":"close",` + head + `,"bytes":{"up":100,"down":1000},"duration_ms":9`)
		}
	}
	const learned = `{"action":"allow","rule":"learn","layer":"user"}`
	const denied = `{"action":"deny","rule":"default","layer":"builtin","class":"default-deny"}`
	line(`"kind":"start","note":"started"`)
	request("registry.npmjs.org", learned, 3)
	request("attacker.github.io", learned, 1)
	request("10.0.0.8", learned, 1)
	request("ruled.test", learned, 1)
	request("refused.example.com", denied, 2)
	for i := range 60 {
		request(fmt.Sprintf("x%d.carried.example", i), learned, 1)
	}
	policy = filepath.Join(t.TempDir(), "egressd.yaml")
	for path, text := range map[string]string{filepath.Join(dir, "00000001.log"): b.String(), policy: "version: 1\n# kept\nallow:\n  - {host: ruled.test, id: mine} # why\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, policy
}

var digestField = regexp.MustCompile(`name="digest" value="([0-9a-f]{64})"`)

// TestAReviewIsSaved proposes rules, shows the change, and saves it.
func TestAReviewIsSaved(t *testing.T) {
	dir, policy := learnedLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy})
	_, text := p.ask("GET", "/review", nil)
	for _, want := range []string{`value="registry.npmjs.org:443"> `, `value="attacker.github.io:443"> `, "is a name that anyone can get", "60 names below carried.example", "is in the policy", "1 more requests went to destinations"} {
		if !strings.Contains(html.UnescapeString(text), want) {
			t.Errorf("the review does not hold %q", want)
		}
	}
	for _, bad := range []string{`value="10.0.0.8`, "carried.example:443", "refused.example.com", "checked"} {
		if strings.Contains(mainOf(text), bad) {
			t.Errorf("the review holds %q", bad)
		}
	}
	if _, text := p.ask("GET", "/review?of=denied", nil); !strings.Contains(text, `value="refused.example.com:443"`) || strings.Contains(text, "npmjs") {
		t.Error("the denials are not proposed")
	}

	form := url.Values{"csrf": {p.guard.csrf}, "pattern": {"registry.npmjs.org:443"}}
	answer, text := p.ask("POST", "/change", map[string]string{"body": form.Encode()})
	plain := html.UnescapeString(text)
	digest := digestField.FindStringSubmatch(text)
	if answer.StatusCode != 200 || digest == nil {
		t.Fatalf("%s: %.2000s", answer.Status, text)
	}
	for _, want := range []string{`<span class="add">+  - registry.npmjs.org:443`, "<dt>the same</dt><dd>65</dd>", "<dt>denied</dt><dd>0</dd>", "<dt>allowed</dt><dd>3</dd>"} {
		if !strings.Contains(plain, want) {
			t.Errorf("the change does not show %q: %.1500s", want, mainOf(plain))
		}
	}
	before, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(before), "npmjs") {
		t.Fatal("looking at a change wrote it")
	}
	form.Set("digest", strings.Repeat("0", 64))
	if answer, text := p.ask("POST", "/change/save", map[string]string{"body": form.Encode()}); answer.StatusCode != 409 || !strings.Contains(text, "has changed since this was shown") {
		t.Errorf("a change that nobody was shown: %s", answer.Status)
	}
	form.Set("digest", digest[1])
	form.Set("pattern", "attacker.github.io:443")
	if answer, _ := p.ask("POST", "/change/save", map[string]string{"body": form.Encode()}); answer.StatusCode != 409 {
		t.Errorf("another rule than was shown: %s", answer.Status)
	}
	form.Set("pattern", "registry.npmjs.org:443")
	if answer, text := p.ask("POST", "/change/save", map[string]string{"body": form.Encode()}); answer.StatusCode != 303 {
		t.Fatalf("%s: %.2000s", answer.Status, text)
	}
	after, err := os.ReadFile(policy)
	if err != nil || string(after) != string(before)+"  - registry.npmjs.org:443\n" {
		t.Errorf("the file is now %q, %v", after, err)
	}
	if _, text := p.ask("GET", "/policy", nil); !strings.Contains(text, "Saved to "+policy+": registry.npmjs.org:443") || !strings.Contains(text, "<td>registry.npmjs.org:443</td>") {
		t.Error("the policy does not show the rule that was saved")
	}
}

// TestAReviewOpensRequestsAlone: where egressd saw the requests, a proposal opens these and not the whole host.
func TestAReviewOpensRequestsAlone(t *testing.T) {
	dir, policy, _ := actsLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy})
	_, text := p.ask("GET", "/review?of=denied", nil)
	_, value, found := strings.Cut(text, `name="pattern" value="[{`)
	value, _, _ = strings.Cut(value, `"`)
	if !found || !strings.Contains(text, "GET /simple/left-pad/ of pkgs.corp.example:80") {
		t.Fatalf("the requests are not proposed: %.1500s", mainOf(text))
	}
	v := url.Values{"csrf": {p.guard.csrf}, "verdict": {"allow"}, "pattern": {html.UnescapeString("[{" + value), "[{\"pattern\":\"pkgs.corp.example:443\"}]"}}
	status, text := p.post("/change", v)
	if status != 200 || !strings.Contains(html.UnescapeString(text), "{host: pkgs.corp.example:80, methods: [GET], paths: [/simple/left-pad/]}") || !strings.Contains(text, "+  - pkgs.corp.example:443") && !strings.Contains(text, "&#43;  - pkgs.corp.example:443") {
		t.Errorf("%d: %.1500s", status, mainOf(text))
	}
	save := url.Values{"csrf": {p.guard.csrf}, "verdict": {"allow"}, "digest": {digestField.FindStringSubmatch(text)[1]}}
	for _, found := range hiddenField.FindAllStringSubmatch(text, -1) {
		if found[1] == "pattern" {
			save.Add("pattern", html.UnescapeString(found[2]))
		}
	}
	if status, text := p.post("/change/save", save); status != 303 {
		t.Errorf("%d: %.1500s", status, mainOf(text))
	}
	v.Set("pattern", `[{"pattern":"a.test","method":"get"}]`)
	if status, _ := p.post("/change", v); status != 400 {
		t.Errorf("a method that no rule has: %d", status)
	}
}

// TestAChangeIsRefused asks for rules that no command writes, and for changes of a log whose policy is unknown.
func TestAChangeIsRefused(t *testing.T) {
	dir, policy := learnedLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: policy})
	many := url.Values{}
	for i := range patternsMost + 1 {
		many.Add("pattern", fmt.Sprintf("h%d.test", i))
	}
	for _, form := range []string{"", "pattern=*.com", "pattern=*", "pattern=a%20b", "pattern=169.254.169.254:80", "verdict=inspect&pattern=a.test", many.Encode()} {
		answer, text := p.ask("POST", "/change", map[string]string{"body": "csrf=" + p.guard.csrf + "&" + form})
		if answer.StatusCode != 400 || digestField.MatchString(text) {
			t.Errorf("%.80s: %s", form, answer.Status)
		}
	}
	if answer, _ := p.ask("POST", "/change/save", map[string]string{"body": "pattern=a.test"}); answer.StatusCode != 403 {
		t.Errorf("a form without the token: %s", answer.Status)
	}
	if answer, _ := p.ask("GET", "/change/save?pattern=a.test&csrf="+p.guard.csrf, nil); answer.StatusCode != 404 {
		t.Errorf("a link that saves: %s", answer.Status)
	}
	alone := opened(t, Options{Dir: dir})
	for _, target := range []string{"/change", "/change/save"} {
		if answer, _ := alone.ask("POST", target, map[string]string{"body": "csrf=" + alone.guard.csrf + "&pattern=a.test"}); answer.StatusCode != 404 {
			t.Errorf("%s of a log alone: %s", target, answer.Status)
		}
	}
	if _, text := alone.ask("GET", "/review", nil); strings.Contains(mainOf(text), "checkbox") || !strings.Contains(text, "registry.npmjs.org:443") {
		t.Error("the review of a log alone")
	}
}

// mainOf returns the text of a page without its frame.
func mainOf(text string) string {
	_, text, _ = strings.Cut(text, "<main")
	text, _, _ = strings.Cut(text, "<footer")
	return text
}
