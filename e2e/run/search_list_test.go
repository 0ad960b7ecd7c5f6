package run

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestRunFollowsTheSearchList asks for names without a dot, on a machine that has them looked up in allowed.test. The policy
// decides the whole name.
func TestRunFollowsTheSearchList(t *testing.T) {
	const narrow = "version: 1\nallow: [a.allowed.test, other]\n"
	for _, row := range []struct{ says, policy, script, out, host, denied string }{
		{"http", world.RunPolicy, `curl -sS -m9 http://a/`, "origin", "a.allowed.test", ""},
		{"http, at a port", world.RunPolicy, `curl -sS -m9 http://a:80/`, "origin", "a.allowed.test", ""},
		{"over IPv6", world.RunPolicy, `curl -6 -sS -m9 http://a/ || curl -sS -m9 http://a/`, "origin", "a.allowed.test", ""},
		{"a name that is denied", narrow, `curl -sS -m9 http://b/`, `"class":"default-deny"`, "", "b.allowed.test"},
		{"a name that is allowed as it is", narrow, `curl -sS -m9 http://other/`, "host=other", "other", ""},
		{"another Host", world.RunPolicy, `curl -sS -m9 -H 'Host: b' http://a/`, `"class":"name-mismatch"`, "", "b"},
		{"a Host that goes on", world.RunPolicy, `curl -sS -m9 -H 'Host: a.evil.test' http://a/`, `"class":"name-mismatch"`, "", "a.evil.test"},
		{"a whole name", world.RunPolicy, `curl -sS -m9 http://a.allowed.test/`, "origin", "a.allowed.test", ""},
	} {
		d := world.NewDaemon(t, row.policy)
		for user := range world.Users {
			asked := d.World.Zone.Mark()
			r := runWithResolvConf(t, d, user, row.script)
			if !strings.Contains(r.out, row.out) {
				t.Errorf("%s: %s: %q, %s", user, row.says, r.out, r.talk)
			}
			if row.denied != "" && r.denied(row.denied, policy.DefaultDeny)+r.denied("a.allowed.test", policy.NameMismatch) == 0 {
				t.Errorf("%s: %s: nothing denies %s: %+v", user, row.says, row.denied, r.records)
			}
			if questions := d.World.Zone.Since(asked); slices.ContainsFunc(questions, func(q string) bool { return strings.HasPrefix(q, "b.") }) {
				t.Errorf("%s: %s: a denied name left: %q", user, row.says, questions)
			}
			if row.host != "" && !slices.ContainsFunc(r.records, func(r record.Record) bool { return r.Kind == record.KindRequest && r.Dst.Host == row.host }) {
				t.Errorf("%s: %s: %+v", user, row.says, r.records)
			}
		}
	}
}

// runWithResolvConf runs a script under egressd run on a machine whose resolv.conf has a search list. That of the lab is a
// removed file, which nothing can cover.
func runWithResolvConf(t *testing.T, d *world.Daemon, user, script string) *ran {
	t.Helper()
	writeFiles(t, d, 0o644, map[string]string{"resolv.conf": "nameserver 1.1.1.1\nsearch allowed.test\n"})
	inner := jailed(t.Context(), d, user, nil, "sh", "-c", script)
	cmd := exec.CommandContext(t.Context(), "unshare", slices.Concat([]string{"-m", "sh", "-c", `umount /etc/resolv.conf && mount --bind resolv.conf /etc/resolv.conf && exec "$@"`, "sh"}, inner.Args)...)
	cmd.Dir, cmd.Env = inner.Dir, inner.Env
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	_ = d.World.Gateway.Run(cmd) // what is printed says it
	return &ran{out: out.String(), talk: talk.String(), code: codeOf(cmd.ProcessState), records: lastRun(t, d)}
}
