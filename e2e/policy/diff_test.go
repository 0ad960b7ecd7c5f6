package policy

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// TestEachWitnessIsDecidedAsTheDiffSays makes edits of four kinds that people make, and takes each back. Each example of policy diff is
// sent under the policy before and under the one after.
func TestEachWitnessIsDecidedAsTheDiffSays(t *testing.T) {
	const version = "version: 1\n"
	for _, row := range []struct {
		says, old, next string
		change          string
		counts          []string // an example holds one of these
	}{
		{"a wildcard", `allow: ["api.allowed.test"]`, `allow: ["*.allowed.test"]`, "opens", []string{".allowed.test:443", ".allowed.test:80"}},
		{"a wildcard beside a deny", `{allow: ["api.allowed.test"], deny: ["secret.allowed.test"]}`, `{allow: ["*.allowed.test"], deny: ["secret.allowed.test"]}`, "opens", []string{"any-host"}},
		{"a prefix of addresses", `allow: ["151.101.1.0/28:443", "evil.test:80"]`, `allow: ["151.101.0.0/16:443", "evil.test:80"]`, "opens", []string{"151.101."}},
		{"a prefix that is denied", `{allow: ["*.allowed.test"], deny: ["198.51.0.0/16"]}`, `{allow: ["*.allowed.test"], deny: ["151.101.0.0/16"]}`, "closes", []string{"any-host"}},
		{"a path", `allow: [{host: "api.allowed.test:80", methods: [GET], paths: ["/repos/acme/app/**"]}]`, `allow: [{host: "api.allowed.test:80", methods: [GET, POST], paths: ["/repos/acme/**"]}]`, "opens", []string{"GET http://api.allowed.test/repos/acme", "POST http://api.allowed.test/repos/acme"}},
		{"a ceiling", `{allow: ["*:80"], ceiling: ["*.allowed.test:80"]}`, `{allow: ["*:80"], ceiling: ["*.allowed.test:80", "evil.test:80"]}`, "opens", []string{"evil.test"}},
		{"a ceiling that is taken out", `{allow: ["*.allowed.test:443", "evil.test:443"], ceiling: ["*.allowed.test:443"]}`, `allow: ["*.allowed.test:443", "evil.test:443"]`, "opens", []string{"evil.test:443"}},
	} {
		back := map[string]string{"opens": "closes", "closes": "opens"}
		t.Run(row.says, func(t *testing.T) {
			files := world.NewDaemon(t, version)
			there := differs(t, files, row.change, row.counts, version+lines(row.old), version+lines(row.next))
			again := differs(t, files, back[row.change], row.counts, version+lines(row.next), version+lines(row.old))
			for i, text := range []string{row.old, row.next} {
				t.Run([]string{"before", "after"}[i], func(t *testing.T) {
					d := world.Start(t, version+lines(text))
					for _, one := range there {
						agrees(t, d, &one, [2]explain.Side{one.Was, one.Now}[i])
					}
					for _, one := range again {
						agrees(t, d, &one, [2]explain.Side{one.Now, one.Was}[i])
					}
				})
			}
		})
	}
}

// differs returns what policy diff lists. There has to be a change of a kind with one of these parts in its example.
func differs(t *testing.T, d *world.Daemon, change string, parts []string, from, to string) (all []explain.PolicyDifference) {
	t.Helper()
	d.PutFile(t, "old.yaml", from)
	d.PutFile(t, "new.yaml", to)
	e := d.RunCommand(t, nil, "policy", "diff", d.Dir+"/old.yaml", d.Dir+"/new.yaml", "--json")
	found := false
	for line := range strings.Lines(e.Out) {
		var one explain.PolicyDifference
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, one)
		found = found || string(one.Change) == change && slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(one.Example, part) })
	}
	if e.Code != 1 || !found {
		t.Errorf("nothing %s: exit %d, %s%s", change, e.Code, e.Out, e.Talk)
	}
	return all
}

// agrees sends the example of a difference to egressd, whose record has to be as the difference says of this side.
func agrees(t *testing.T, d *world.Daemon, one *explain.PolicyDifference, want explain.Side) {
	t.Helper()
	if addr, err := netip.ParseAddr(one.Leads); err == nil {
		d.World.Zone.Delegate("any-host.allowed.test", func(r *dns.Msg) *dns.Msg {
			m := new(dns.Msg).SetReply(r)
			if q := r.Question[0]; q.Qtype == dns.TypeA {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: addr.AsSlice()})
			}
			return m
		})
		defer d.World.Zone.Delegate("any-host.allowed.test", nil)
	}
	if verdict, rule := sends(t, d, one.Example); verdict != want.Verdict || rule != want.Rule {
		t.Errorf("%s (leads to %q) is decided %s by %s, want %s by %s", one.Example, one.Leads, verdict, rule, want.Verdict, want.Rule)
	}
}

// lines are those of a policy file in YAML's flow style.
func lines(text string) string {
	if inner, ok := strings.CutPrefix(text, "{"); ok {
		return strings.ReplaceAll(strings.TrimSuffix(inner, "}"), "], ", "]\n") + "\n"
	}
	return text + "\n"
}

// sends sends an example of policy diff, and returns what the log says of it.
func sends(t *testing.T, d *world.Daemon, example string) (verdict, rule string) {
	t.Helper()
	method, to, _ := strings.Cut(example, " ")
	_, records := d.During(t, func() string {
		if method == "CONNECT" {
			if c, _, err := d.OpenTunnel(to, ""); err == nil {
				c.Close()
			}
			return ""
		}
		out, _ := d.Shell(t.TempDir(), "", "curl -sS --path-as-is -o /dev/null -m 20 -X "+method+" '"+to+"'")
		return out
	})
	for _, r := range records {
		if r.Decision != nil && (r.Kind == record.KindOpen || r.Kind == record.KindRequest) {
			verdict, rule = r.Decision.Action, r.Decision.Rule
		}
	}
	return verdict, rule
}
