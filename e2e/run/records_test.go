package run

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// digRecords asks for configured types of two allowed names and a denied one, and for another type.
const digRecords = `d() { dig +time=9 +tries=1 "$@" | grep -v '^;;\|^$' | tr -s '\t ' ' '; dig +time=9 +tries=1 "$@" | grep -o 'status: [A-Z]*'; }
d TXT a.allowed.test; d +tcp SRV _sip._tcp.a.allowed.test; d TXT c2VjcmV0.evil.test; d MX a.allowed.test; echo done`

func withTypes(policy string) string {
	return policy + "upstream: {dns: [\"" + world.Resolver + "\"], dns_types: [SRV, TXT]}\n"
}

// TestRunAnswersConfiguredTypes asks in a run of its own, and in one beside a daemon.
func TestRunAnswersConfiguredTypes(t *testing.T) {
	judge := func(out, talk string, code int, asked []string, records []record.Record) {
		t.Helper()
		if code != 0 || !strings.Contains(out, "a.allowed.test. 60 IN TXT \"found\"\nstatus: NOERROR\n") ||
			!strings.Contains(out, "_sip._tcp.a.allowed.test. 60 IN SRV 1 2 5060 evil.test.\nstatus: NOERROR\n") ||
			strings.Count(out, "status: REFUSED") != 2 {
			t.Errorf("exit %d, %s%s", code, out, talk)
		}
		for _, name := range asked {
			if name != "a.allowed.test" && name != "_sip._tcp.a.allowed.test" {
				t.Errorf("%s was asked for", name)
			}
		}
		decided := map[string]string{}
		for _, r := range records {
			if r.DNS != nil && r.Decision != nil {
				decided[r.DNS.Type+" "+r.DNS.Name] = r.Decision.Action + r.Decision.Class
			}
		}
		for question, want := range map[string]string{
			"TXT a.allowed.test": "allow", "SRV _sip._tcp.a.allowed.test": "allow", "TXT c2vjcmv0.evil.test": "denydefault-deny", "MX a.allowed.test": "denydns-type-denied",
		} {
			if decided[question] != want {
				t.Errorf("%s: %q is recorded", question, decided[question])
			}
		}
	}
	d := world.NewDaemon(t, withTypes(world.RunPolicy))
	mark := d.World.Zone.Mark()
	r := runAs(t, d, "user", digRecords)
	judge(r.out, r.talk, r.code, d.World.Zone.Since(mark), r.records)

	d = world.Start(t, withTypes(sharedPolicy))
	mark = d.World.Zone.Mark()
	e := runBeside(t, d, []string{"--name", "one"}, digRecords)
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	judge(e.Out, e.Talk, e.Code, d.World.Zone.Since(mark), records)
}

// TestRunAnswersNoOtherTypesByDefault asks under a policy that configures none.
func TestRunAnswersNoOtherTypesByDefault(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	mark := d.World.Zone.Mark()
	r := runAs(t, d, "user", digRecords)
	if r.code != 0 || strings.Count(r.out, "status: REFUSED") != 4 || strings.Contains(r.out, "found") {
		t.Errorf("exit %d, %s%s", r.code, r.out, r.talk)
	}
	if asked := d.World.Zone.Since(mark); len(asked) != 0 {
		t.Errorf("asked for %q", asked)
	}
}
