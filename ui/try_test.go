package ui

import (
	"html"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"go.yaml.in/yaml/v3"
)

// TestARequestAsATest reads the lines back as a policy file does. What no test can say gives no line.
func TestARequestAsATest(t *testing.T) {
	at := func(host string, port uint16) *record.Destination {
		return &record.Destination{Host: host, Port: port}
	}
	for _, row := range []struct {
		is   record.Record
		want string
	}{
		{record.Record{Dst: at("example.com", 443)}, "deny example.com:443"},
		{record.Record{Dst: at("2001:db8::1", 22)}, "deny [2001:db8::1]:22"},
		{record.Record{Dst: at("example.com", 443), HTTP: &record.HTTP{Method: "POST", Path: "/a/b"}}, "deny POST https://example.com:443/a/b"},
		{record.Record{Dst: at("example.com", 80), Via: string(policy.ViaHTTP), HTTP: &record.HTTP{Method: "GET", Path: "/a: #x"}}, ""},
		{record.Record{Dst: at("example.com", 80), Via: string(policy.ViaHTTP), HTTP: &record.HTTP{Method: "GET", Path: "/a:%20%23x"}}, "deny GET http://example.com:80/a:%20%23x"},
		{record.Record{Dst: at("example.com", 80), Via: string(policy.ViaHTTP), HTTP: &record.HTTP{Method: "GET", Path: "/a:"}}, "deny GET http://example.com:80/a:"},
		{record.Record{Dst: at("<script>", 443)}, ""},
		{record.Record{Dst: at("example.com", 53), DNS: &record.DNS{Name: "example.com"}}, ""},
		{record.Record{}, ""},
	} {
		row.is.Flow, row.is.Decision = "01KB000001", &record.Decision{Action: "deny"}
		line, rego := testsOf(&row.is)
		if (line == "") != (row.want == "") || (rego == "") != (row.want == "") {
			t.Errorf("%v: %q, %q", row.is.Dst, line, rego)
			continue
		}
		var all []string
		if err := yaml.Unmarshal([]byte(line), &all); err != nil || row.want != "" && (len(all) != 1 || all[0] != row.want) {
			t.Errorf("%q reads %q, %v", line, all, err)
		}
		if row.want == "" {
			continue
		}
		if _, err := file.Parse("it", []byte("version: 1\ntests:\n  "+line+"\n")); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if !strings.Contains(rego, "test_01kb000001 if {\n    count(egress.allow) == 0 with input as {") {
			t.Errorf("%s", rego)
		}
	}
}

// TestARequestUnderAnEditedPolicy sends the text of a policy. The file stays as it is.
func TestARequestUnderAnEditedPolicy(t *testing.T) {
	dir, path := learnedLog(t)
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: path})
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const flow = "/request/01KB000001" // of registry.npmjs.org
	_, text := p.ask("GET", flow, nil)
	for _, want := range []string{"<code>- allow registry.npmjs.org:443</code>", "version: 1\n# kept\n", `"destination":{"host":"registry.npmjs.org","port":443}`} {
		if !strings.Contains(html.UnescapeString(text), want) {
			t.Errorf("the request does not hold %q", want)
		}
	}
	for edited, want := range map[string]string{
		"version: 1\r\nallow: [registry.npmjs.org]\r\n":                      "<dt>the same</dt><dd>64</dd></div><div><dt>denied</dt><dd>1</dd></div><div><dt>asked</dt><dd>0</dd></div><div><dt>looked into</dt><dd>0</dd></div><div><dt>allowed</dt><dd>3</dd>",
		"version: 1\ndeny: [{host: registry.npmjs.org, reason: by <b>me}]\n": "deny[0]: by <b>me",
		"version: 2\n": "egressd.yaml:1",
		"version: 1\nallow: [</textarea><script>]\n": "</textarea><script>",
	} {
		form := url.Values{"csrf": {p.guard.csrf}, "policy": {edited}}
		answer, text := p.ask("POST", flow, map[string]string{"body": form.Encode()})
		main := mainOf(text)
		if answer.StatusCode != 200 || !strings.Contains(html.UnescapeString(main), want) || strings.Contains(main, "<script>") || strings.Contains(main, "<b>me") {
			t.Errorf("%q: %s, no %q in %.3000s", edited, answer.Status, want, main[strings.Index(main, `id="try"`):])
		}
	}
	if answer, _ := p.ask("POST", flow, map[string]string{"body": "policy=version:+1"}); answer.StatusCode != 403 {
		t.Errorf("without the token: %s", answer.Status)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the file is now %q, %v", after, err)
	}
}

// TestWhatAShadowPolicyWouldDo groups the decisions of a shadow policy.
func TestWhatAShadowPolicyWouldDo(t *testing.T) {
	dir, path := learnedLog(t)
	f, err := os.OpenFile(filepath.Join(dir, "00000001.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const head = `,"time":"2026-11-20T09:01:00.000000Z","kind":"open","flow":"01KB900000","count":7,"sandbox":"ci","via":"connect","dst":{"host":"shadowed.example","port":443},"decision":{"action":"deny","rule":"default","layer":"builtin","class":"default-deny"},"shadow":{"action":"allow","rule":"next","layer":"user","policy":"sha256:2"}}`
	if _, err := f.WriteString(`{"v":1,"seq":137` + head + "\n"); err != nil {
		t.Fatal(err)
	}
	p := opened(t, Options{Dir: dir, HasPolicy: true, Config: path})
	_, text := p.ask("GET", "/policy", nil)
	_, text, _ = strings.Cut(text, "The shadow policy would decide otherwise")
	if !strings.Contains(text, `<td class="n">7</td><td class="dest">shadowed.example:443</td>`) || !strings.Contains(text, "✓ allow</td><td>next</td>") {
		t.Errorf("%.900s", text)
	}
}

// TestTheHealthOfADaemon shows what the daemon says of itself.
func TestTheHealthOfADaemon(t *testing.T) {
	p, _ := withDaemon(t)
	_, text := p.ask("GET", "/health", nil)
	for _, want := range []string{"Not ready", "the disk is <full>", "3 flows", "the file is <broken>", "https://bundles.example/a", "too old", "the server <says> no", "flows within 2.5 ms, 99 % within 50 ms", "within 0.01 ms, 99 % within 0.05 ms"} {
		if !strings.Contains(html.UnescapeString(text), want) || strings.Contains(text, "<full>") {
			t.Errorf("the view does not hold %q: %.900s", want, text[strings.Index(text, "egressd serve</h2>"):])
		}
	}
}
