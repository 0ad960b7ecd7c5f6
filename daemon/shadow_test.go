package daemon

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/config/configtest"
	"github.com/egressd/egressd/record"
)

const strictRego = `package egress

deny contains {"rule": "not-yet", "reason": "next month"} if host.matches(input.destination.host, "soon.test")

deny contains {"rule": "slow"} if {
	host.matches(input.destination.host, "slow.test")
	count([x | some x in numbers.range(1, 100000000); x % 7 == 0]) > 3
}
`

// TestServeAsksAShadow has a second policy beside the one in force: where it differs
// stands in the log, and nowhere else.
func TestServeAsksAShadow(t *testing.T) {
	w := serveRego(t, "allow: [\"soon.test:*\", \"slow.test:*\", \"plain.test:*\"]\nrego: [{path: next, mode: shadow}]\n", map[string]string{"next/egress.rego": strictRego})
	w.hear(t, ", in shadow sha256:")
	port := upstream(t)
	for _, row := range []struct{ host, rule, class string }{
		{"soon.test", "not-yet", "rule-deny"}, {"plain.test", "", ""},
		{"slow.test", "policy-error", "policy-error"}, // the last: for a while after it the shadow is not asked
	} {
		status, text := w.connect(t, row.host+":"+port)
		if status != 200 || text != "hello" {
			t.Errorf("%s: %d %s", row.host, status, text)
		}
		r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindOpen && r.Dst.Host == row.host })
		switch {
		case row.rule == "" && r.Shadow != nil:
			t.Errorf("%s: %+v", row.host, r.Shadow)
		case row.rule != "" && (r.Shadow == nil || r.Shadow.Action != "deny" || r.Shadow.Rule != row.rule || r.Shadow.Class != row.class):
			t.Errorf("%s: %+v", row.host, r.Shadow)
		}
	}
	load := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindPolicy })
	if load.Shadow == nil || !strings.HasPrefix(load.Shadow.Policy, "sha256:") || load.Shadow.Policy == load.Decision.Policy {
		t.Errorf("the record of the load says %+v", load.Shadow)
	}
	if status, text := w.connect(t, "evil.example:"+port); status != 403 || strings.Contains(text, "shadow") {
		t.Errorf("a refusal: %d %s", status, text)
	}
}

// TestAShadowThatCannotBeLoadedIsAnError breaks one while it is asked, and at a start.
func TestAShadowThatCannotBeLoadedIsAnError(t *testing.T) {
	w := serveRego(t, "allow: [\"soon.test:*\"]\nrego: [{path: next, mode: shadow}]\n", map[string]string{"next/egress.rego": strictRego})
	port := upstream(t)
	before := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindPolicy })
	w.write(t, "next/egress.rego", strictRego+"\ndeny contains x if x := input.hots\n")
	w.hear(t, "policy not reloaded, the one before stays in force: ")
	if status, _ := w.connect(t, "soon.test:"+port); status != 200 {
		t.Errorf("after a broken edit: %d", status)
	}
	r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindPolicy })
	if !strings.Contains(r.Note, "rejected") || !strings.Contains(r.Note, "next/egress.rego:10") || r.Shadow == nil || *r.Shadow != *before.Shadow {
		t.Errorf("the record of the broken edit is %+v, shadow %+v", r, r.Shadow)
	}
	w.write(t, "next/egress.rego", strings.ReplaceAll(strictRego, "not-yet", "not-now"))
	w.hear(t, "policy reloaded")
	w.connect(t, "soon.test:"+port)
	r = w.record(t, func(r *record.Record) bool { return r.Kind == record.KindOpen })
	if r.Shadow == nil || r.Shadow.Rule != "not-now" || r.Decision.Policy != before.Decision.Policy || r.Shadow.Policy == before.Shadow.Policy {
		t.Errorf("after an edit of the shadow alone: %+v, shadow %+v", r.Decision, r.Shadow)
	}

	c := configtest.In(t, map[string]string{"egressd.yaml": "version: 1\nallow: [a.test]\nrego: [{path: next, mode: shadow}]\n", "next/egress.rego": "package egress\ndeny := 1\n"})
	if _, err := c.Compile(); err == nil || !strings.Contains(err.Error(), "next/egress.rego:2") {
		t.Errorf("a broken shadow at a start: %v", err)
	}
}

func TestFilesInShadowAreAPartOfTheirOwn(t *testing.T) {
	c := configtest.In(t, map[string]string{
		"egressd.yaml": "version: 1\nrego: [now.rego, {path: next.rego, mode: shadow}, {path: also.rego, mode: shadow}]\n",
		"now.rego":     "package egress\nallow contains {\"rule\": \"now\"} if input.http.method == \"GET\"\n",
		"next.rego":    "package egress\nallow contains {\"rule\": \"next\"} if names[input.destination.host]\n",
		"also.rego":    "package egress\nnames := {\"a.test\"}\n",
	})
	parts, err := c.RegoParts(nil)
	if err != nil || len(parts) != 2 || len(parts[1].Sources) != 2 || parts[1].At != "rego[1]" {
		t.Fatalf("%v: the parts are %+v", err, parts)
	}
	p, err := c.Compile()
	if err != nil || len(c.Rules) != 1 || p.Shadow() == nil {
		t.Errorf("%v: %d evaluators in force, shadow %v", err, len(c.Rules), p.Shadow())
	}
}

// TestAShadowHasNothingInspected leaves the tunnels as the policy in force has them.
func TestAShadowHasNothingInspected(t *testing.T) {
	c := configtest.In(t, map[string]string{
		"egressd.yaml": "version: 1\nallow: [a.test]\nrego: [{path: next.rego, mode: shadow}]\n",
		"next.rego":    "package egress\ndeny contains {\"rule\": \"reads-only\"} if input.http.method != \"GET\"\n",
	})
	if _, err := c.Compile(); err != nil || c.Inspects() {
		t.Errorf("%v: inspects is %v", err, c.Inspects())
	}
}
