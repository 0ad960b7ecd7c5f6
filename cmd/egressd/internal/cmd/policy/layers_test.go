package policy

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/config/configtest"
	"github.com/egressd/egressd/config/explain"
	"github.com/egressd/egressd/policy"
)

func TestExplainAndLsKnowTheLayers(t *testing.T) {
	c, p, err := configtest.Layered(t, map[string]string{
		"egressd.yaml":            "version: 1\nallow: [a.test]\nrego: [user.rego]\nsandboxes: [{name: web, token_file: t}]\n",
		"user.rego":               "package egress\nallow contains {\"rule\": \"mine\"} if input.destination.host == \"a.test\"\n",
		"above/organisation.yaml": "version: 1\n\n\ndeny: [never.test]\nrego: [org.rego]\n",
		"above/org.rego":          "package egress\nceiling contains {\"rule\": \"top\"} if input.destination.host == \"b.test\"\ndeny contains {\"rule\": \"d\"} if input.destination.port == 22\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := explain.Explain(c, p, explain.Question{Sandbox: policy.Sandbox{Name: "web"}, Request: "a.test"})
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, v := range e.Opinions {
		said = append(said, v.Part+" of "+string(v.Layer)+" "+v.Verdict)
	}
	want := "baseline of builtin abstain, organisation file of organisation abstain, file of user allow, sandbox of sandbox abstain, " +
		"organisation rego[0] of organisation abstain, rego[0] of user allow, organisation rego[0] ceiling of organisation abstain"
	if got := strings.Join(said, ", "); got != want || e.Rule != "ceiling" {
		t.Errorf("rule %s: %s", e.Rule, got)
	}
	listed, err := listedRules(c)
	if err != nil {
		t.Fatal(err)
	}
	said = nil
	for _, r := range listed {
		said = append(said, r.Rule+" of "+string(r.Layer)+" "+r.Effect)
	}
	want = "baseline of builtin deny, allow[0] of user allow, deny[0] of organisation deny, d of organisation deny, mine of user allow, ceiling of organisation deny, default of builtin deny"
	if got := strings.Join(said, ", "); got != want {
		t.Errorf("listed are %s", got)
	}
}
