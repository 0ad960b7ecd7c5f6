package waysin

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestAllowSaveForASandboxOfATemplate denies hosts to sandboxes of templates, and answers with egressd allow --save. A template with a list
// of its own gets the line there, else its also_allow does. The line never has the name of one sandbox, and the warning says for whom it is.
func TestAllowSaveForASandboxOfATemplate(t *testing.T) {
	const token, text = "another-secret", `version: 1
allow: [a.allowed.test, b.allowed.test]
sandboxes:
  - {name: "e2b-{id}", user: "sbx-{id}", token_file: web.token, allow: [a.allowed.test]}
  - {name: "plain-{id}", token_file: web.token}
`
	d := world.NewDaemon(t, text)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	ca, dir := d.World.Origin.Ca.File(t), t.TempDir()
	reaches := func(user, host string) bool {
		out, _ := d.Shell(dir, ca, "curl -sS -m20 --cacert $LAB_CA -x http://$LAB_PROXY --proxy-user "+user+":"+token+" https://"+host+"/x")
		return strings.Contains(out, "GET /x")
	}
	for _, row := range []struct {
		says, user, host string
		warns            []string // about whom else the line is for
		own, all         string   // of the lists of e2b-{id} and of the file, after
		also, not        string   // users that reach the host then, and do not
	}{
		{"a list of the template", "sbx-7f3a", "b.allowed.test", []string{"every sandbox of e2b-{id}, not for e2b-7f3a alone"},
			"a.allowed.test b.allowed.test:443", "a.allowed.test b.allowed.test", "sbx-other", ""},
		{"a list that the file narrows", "sbx-7f3a", "c.allowed.test", []string{"every sandbox of e2b-{id}, not for e2b-7f3a alone"},
			"a.allowed.test b.allowed.test:443", "a.allowed.test b.allowed.test", "sbx-other", "plain-1"},
		{"no list of the template", "plain-7f3a", "d.allowed.test", []string{"every sandbox of plain-{id}, not for plain-7f3a alone"},
			"a.allowed.test b.allowed.test:443", "a.allowed.test b.allowed.test", "plain-other", "sbx-7f3a"},
	} {
		t.Run(row.says, func(t *testing.T) {
			mark := d.LogMark(t)
			if reaches(row.user, row.host) {
				t.Fatal("the host is reached before")
			}
			var denied record.Record
			world.Eventually(world.Settling, func() bool {
				all, _ := d.Log.Since(mark)
				for _, r := range all {
					if r.Decision != nil && r.Kind != record.KindDNS {
						denied = r
					}
				}
				return denied.Flow != ""
			})
			fix := "egressd allow " + row.host + " --from " + denied.Flow
			if why := d.RunCommand(t, nil, "why", denied.Flow, "--config", d.Config); !strings.Contains(why.Out, fix) {
				t.Errorf("egressd why does not print %q: %s", fix, why.Out)
			}
			r := d.RunCommand(t, nil, "allow", row.host, "--from", denied.Flow, "--save", "--config", d.Config)
			if got := strings.Count(r.Talk, "warning:"); got != len(row.warns) || r.Code != 0 {
				t.Errorf("exit status %d, %d warnings: %s", r.Code, got, r.Talk)
			}
			for _, want := range row.warns {
				if !strings.Contains(r.Talk, want) {
					t.Errorf("it does not warn %q: %s", want, r.Talk)
				}
			}
			if strings.Contains(r.Out, "7f3a") {
				t.Errorf("the file names one sandbox: %s", r.Out)
			}
			c, err := config.Load(d.Config)
			world.Must(t, err)
			if len(c.File.Sandboxes) != 2 || patternsOf(c.File.Sandboxes[0].Allow) != row.own || patternsOf(c.File.Allow) != row.all {
				t.Errorf("the file is %s", r.Out)
			}
			if !world.Eventually(world.Settling, func() bool { return reaches(row.user, row.host) }) || !reaches(row.also, row.host) {
				t.Errorf("%s and %s do not both reach the host", row.user, row.also)
			}
			if row.not != "" && reaches(row.not, row.host) {
				t.Errorf("%s reaches the host", row.not)
			}
		})
	}
}

func patternsOf(rules []policy.Rule) string {
	var all []string
	for _, r := range rules {
		all = append(all, r.Pattern.String())
	}
	return strings.Join(all, " ")
}
