package waysin

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

const templateText = `
allow: [allowed.test, "*.allowed.test"]
rego: [ids.rego]
sandboxes:
  - {name: "e2b-{id}", user: "sbx-{id}", token_file: web.token, deny: [b.allowed.test]}
  - {name: ci, token_file: ci.token}
`

// TestSandboxesFromATemplate connects with users that have an id in them, by each way in. Each id is a sandbox in the
// log and in Rego, and all have the lists of their template.
func TestSandboxesFromATemplate(t *testing.T) {
	d := world.NewDaemon(t, world.WithAdmin(world.AdminSocket, templateText))
	d.PutFile(t, "ids.rego", `package egress

deny contains {"rule": "one-id", "reason": "this id is denied"} if input.sandbox.name == "e2b-denied"
`)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	ca, dir := d.World.Origin.Ca.File(t), t.TempDir()
	ways := map[string]string{
		"connect": "curl -sS -m20 --cacert $LAB_CA -x http://$LAB_PROXY --proxy-user %s https://%s/x",
		"http":    "curl -sS -m20 -x http://$LAB_PROXY --proxy-user %s http://%s/x",
		"socks5":  "curl -sS -m20 --cacert $LAB_CA --socks5-hostname $LAB_PROXY --proxy-user %s https://%s/x",
	}
	const token, other = "another-secret", "open-sesame"
	denied := ""
	for way, command := range ways {
		for _, row := range []struct {
			says, user, host string
			sandbox, class   string // of the record; empty: it is allowed
		}{
			{"an id", "sbx-7f3a:" + token, "a.allowed.test", "e2b-7f3a", ""},
			{"another", "sbx-Ab_9:" + token, "a.allowed.test", "e2b-Ab_9", ""},
			{"a host that the template denies", "sbx-7f3a:" + token, "b.allowed.test", "e2b-7f3a", "rule-deny"},
			{"an id that Rego denies", "sbx-denied:" + token, "a.allowed.test", "e2b-denied", "rule-deny"},
			{"a sandbox beside", "ci:" + other, "b.allowed.test", "ci", ""},
			{"another's token", "sbx-7f3a:" + other, "a.allowed.test", "", "unknown-sandbox"},
			{"more than an id", "sbx-a.b:" + token, "a.allowed.test", "", "unknown-sandbox"},
		} {
			t.Run(way+" "+row.says, func(t *testing.T) {
				mark := d.LogMark(t)
				line := strings.Replace(strings.Replace(command, "%s", row.user, 1), "%s", row.host, 1)
				out, _ := d.Shell(dir, ca, line)
				if worked := strings.Contains(out, "GET /x"); worked != (row.class == "") {
					t.Errorf("printed %q", out)
				}
				var last record.Record
				decided := func() bool {
					all, _ := d.Log.Since(mark)
					for _, r := range all {
						if r.Decision != nil && r.Kind != record.KindDNS {
							last = r
						}
					}
					return last.Decision != nil
				}
				if !world.Eventually(world.Settling, decided) || last.Sandbox != row.sandbox || last.Decision.Class != row.class {
					t.Errorf("recorded sandbox %q, %+v, want %q, class %q", last.Sandbox, last.Decision, row.sandbox, row.class)
				}
				if row.class == "rule-deny" && row.host == "b.allowed.test" {
					denied = last.Flow
				}
			})
		}
	}

	dial := dialer(d.Dial)
	head, c := dial.ask(t, world.Authorization("sbx-open", token))
	if !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Fatal(head)
	}
	command := func(want string, words ...string) {
		t.Helper()
		if r := d.RunCommand(t, nil, append(words, "--config", d.Config)...); !strings.Contains(r.Out+r.Talk, want) {
			t.Errorf("egressd %s printed\n%s%s", strings.Join(words, " "), r.Out, r.Talk)
		}
	}
	command("e2b-open", "status", "--connections")
	command("e2b-7f3a", "why", denied)
	command("b.allowed.test", "log", "sandbox:e2b-7f3a")
	command("deny", "check", "--sandbox", "e2b-any", "https://b.allowed.test/")
	command("this id is denied", "check", "--sandbox", "e2b-denied", "https://a.allowed.test/")
	command("http://sbx-x1:"+token+"@", "env", "--sandbox", "e2b-x1")
	command("is a template, which names many sandboxes", "env", "--sandbox", "e2b-{id}")
	command("is allowed to sandbox e2b-open", "allow", "c.allowed.test:8443", "--sandbox", "e2b-open", "--for", "1h")

	d.Edit(t, world.WithAdmin(world.AdminSocket, strings.Replace(templateText, "b.allowed.test", "c.allowed.test", 1)))
	d.ExpectPolicy(t, func(r record.Record) bool { return strings.Contains(r.Note, "reloaded") })
	command("e2b-open", "status", "--connections")
	d.Edit(t, world.WithAdmin(world.AdminSocket, strings.Replace(templateText, "e2b-{id}", "new-{id}", 1)))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection of a sandbox whose template is gone stays open")
	}
}
