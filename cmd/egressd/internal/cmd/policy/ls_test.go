package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/configtest"
	"github.com/egressd/egressd/logs/source"
)

const listedFile = `version: 1
audit: {dir: audit}
allow:
  - "*.a.test"
  - {host: b.test, methods: [GET], id: reads}
presets: [npm]
rego: [policy]
sandboxes:
  - {name: ci, listen: "127.0.0.1:1", allow: ["*.a.test"]}
  - {name: web, listen: "127.0.0.1:2", deny: [c.a.test]}
`

const listedRego = `package egress

deny contains {"rule": "no-upload"} if input.destination.port == 21

deny contains r if some r in data.list
`

// listedWorld is a policy with a log in which the lines of records stand; {P} in them is
// the policy's digest.
func listedWorld(t *testing.T, records ...string) *config.Config {
	t.Helper()
	c := configtest.In(t, map[string]string{"egressd.yaml": listedFile, "policy/egress.rego": listedRego, "policy/data.json": `{"list": []}`})
	p, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(c.Path), "audit")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for i, r := range records {
		fmt.Fprintf(&text, `{"v":1,"seq":%d,"time":"2026-11-20T09:%02d:00.000000Z",%s}`+"\n", i, i, strings.ReplaceAll(r, "{P}", p.Digest()))
	}
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

func decidedBy(kind, flow, action, rule, layer, digest, more string) string {
	return fmt.Sprintf(`"kind":%q,"flow":%q,"sandbox":"ci","via":"connect","dst":{"host":"x.test","port":443},"decision":{"action":%q,"rule":%q,"layer":%q,"policy":%q}%s`, kind, flow, action, rule, layer, digest, more)
}

var someDecisions = []string{
	decidedBy("open", "A", "allow", "allow[0]", "user", "{P}", ""),
	decidedBy("close", "A", "allow", "allow[0]", "user", "{P}", ""),                    // of the same flow
	decidedBy("open", "B", "allow", "allow[0]", "user", "sha256:other", ""),            // another line, then
	decidedBy("open", "C", "allow", "reads", "user", "sha256:other", ""),               // has an id
	decidedBy("request", "C", "deny", "reads", "user", "{P}", ""),                      //
	decidedBy("dns", "D", "allow", "reads", "user", "{P}", `,"dns":{"name":"x.test"}`), // a lookup of a flow's own
	decidedBy("close", "E", "deny", "no-upload", "organisation", "{P}", ""),            // refused after it was opened
	decidedBy("open", "F", "deny", "default", "sandbox", "{P}", ""),
	decidedBy("open", "G", "deny", "default", "builtin", "{P}", ""),
	decidedBy("open", "H", "allow", "preset:npm", "user", "{P}", ""),
	decidedBy("open", "I", "deny", "baseline", "builtin", "{P}", ""),
	`"kind":"policy","decision":{"policy":"{P}"}`,
}

var columns = regexp.MustCompile(`  +`)

// hitsOf runs ls and returns "hits rule" of each line.
func hitsOf(t *testing.T, o listOptions) (lines []string) {
	t.Helper()
	var out, talk strings.Builder
	if err := o.run(&out, &talk); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if f := columns.Split(line, -1); f[0] != "HITS" {
			lines = append(lines, f[0]+" "+f[3]+" "+f[4])
		}
	}
	return lines
}

func TestRulesAreListedWithTheirHits(t *testing.T) {
	c := listedWorld(t, someDecisions...)
	got := strings.Join(hitsOf(t, listOptions{Source: source.Source{Config: c.Path}}), "\n")
	want := `1 builtin baseline
1 user allow[0]
2 user reads
0 sandbox/ci sandboxes[0].allow[0]
0 sandbox/web sandboxes[1].deny[0]
1 user preset:npm
1 organisation no-upload
? organisation –
1 sandbox/ci default
1 builtin default`
	if got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestRulesThatWereNotUsed(t *testing.T) {
	c := listedWorld(t, someDecisions...)
	source := source.Source{Config: c.Path}
	got := strings.Join(hitsOf(t, listOptions{Source: source, unused: true}), "\n")
	if want := "0 sandbox/ci sandboxes[0].allow[0]\n0 sandbox/web sandboxes[1].deny[0]"; got != want {
		t.Errorf("unused:\n%s", got)
	}
	got = strings.Join(hitsOf(t, listOptions{Source: source, since: "2026-11-20T09:09:00Z"}), "\n")
	if !strings.HasPrefix(got, "1 builtin baseline\n0 user allow[0]\n0 user reads") {
		t.Errorf("since:\n%s", got)
	}
}

func TestRulesForAScript(t *testing.T) {
	c := listedWorld(t, someDecisions...)
	o := listOptions{Source: source.Source{Config: c.Path}, json: true}
	var out, talk strings.Builder
	if err := o.run(&out, &talk); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"rule":"allow[0]","layer":"user","effect":"allow","what":"*.a.test","file":"` + c.Path + `","line":4,"hits":1,"last":"2026-11-20T09:00:00Z","counted":"policy"}`,
		`"rule":"reads","layer":"user","effect":"allow","what":"b.test, if method is GET or HEAD","file":"` + c.Path + `","line":5,"hits":2,"last":"2026-11-20T09:04:00Z","counted":"rule"}`,
		`{"rule":"","layer":"organisation","effect":"deny","what":"deny contains r if some r in data.list","file":"` + filepath.Join(filepath.Dir(c.Path), "policy", "egress.rego") + `","line":5}`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %s in\n%s", want, out.String())
		}
	}
}

func TestRulesWithoutALog(t *testing.T) {
	c := listedWorld(t)
	if err := os.RemoveAll(filepath.Join(filepath.Dir(c.Path), "audit")); err != nil {
		t.Fatal(err)
	}
	var out, talk strings.Builder
	o := listOptions{Source: source.Source{Config: c.Path}}
	if err := o.run(&out, &talk); err != nil || !strings.Contains(talk.String(), "no decisions were counted") || !strings.Contains(out.String(), "?     –     allow") {
		t.Errorf("%v, %s\n%s", err, talk.String(), out.String())
	}
	o.unused = true
	if err := o.run(&out, &talk); err == nil {
		t.Error("without a log, rules were said to be unused")
	}
	for _, wrong := range []listOptions{{since: "never"}, {Source: source.Source{Config: c.Path, Dir: "nowhere"}}} {
		if err := wrong.run(&out, &talk); err == nil {
			t.Errorf("%+v: no error", wrong)
		}
	}
}
