package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/configtest"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/records"
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
		{"soon.test", "not-yet", "rule-deny"}, {"slow.test", "policy-error", "policy-error"}, {"plain.test", "", ""},
	} {
		status, text := w.connect(t, row.host+":"+port)
		if status != 200 || text != "hello" {
			t.Errorf("%s: %d %s", row.host, status, text)
		}
		r := w.record(t, func(r *egress.Record) bool { return r.Kind == egress.KindOpen && r.Dst.Host == row.host })
		switch {
		case row.rule == "" && r.Shadow != nil:
			t.Errorf("%s: %+v", row.host, r.Shadow)
		case row.rule != "" && (r.Shadow == nil || r.Shadow.Action != "deny" || r.Shadow.Rule != row.rule || r.Shadow.Class != row.class):
			t.Errorf("%s: %+v", row.host, r.Shadow)
		}
	}
	load := w.record(t, func(r *egress.Record) bool { return r.Kind == egress.KindPolicy })
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
	before := w.record(t, func(r *egress.Record) bool { return r.Kind == egress.KindPolicy })
	w.write(t, "next/egress.rego", strictRego+"\ndeny contains x if x := input.hots\n")
	w.hear(t, "policy not reloaded, the one before stays in force: ")
	if status, _ := w.connect(t, "soon.test:"+port); status != 200 {
		t.Errorf("after a broken edit: %d", status)
	}
	r := w.record(t, func(r *egress.Record) bool { return r.Kind == egress.KindPolicy })
	if !strings.Contains(r.Note, "rejected") || !strings.Contains(r.Note, "next/egress.rego:10") || r.Shadow == nil || *r.Shadow != *before.Shadow {
		t.Errorf("the record of the broken edit is %+v, shadow %+v", r, r.Shadow)
	}
	w.write(t, "next/egress.rego", strings.ReplaceAll(strictRego, "not-yet", "not-now"))
	w.hear(t, "policy reloaded")
	w.connect(t, "soon.test:"+port)
	r = w.record(t, func(r *egress.Record) bool { return r.Kind == egress.KindOpen })
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

// differing is a record of a decision that the shadow would have made otherwise.
func differing(flow, host string, s egress.RecordShadow) *egress.Record {
	r := opened(flow, host, "allow")
	r.Shadow = &s
	return r
}

func TestTheLogShowsWhereTheShadowDiffers(t *testing.T) {
	deny := egress.RecordShadow{Action: "deny", Rule: "not-yet", Layer: "organisation", Class: "rule-deny", Reason: "next month", Policy: "sha256:1"}
	a := differing("A", "a.test", deny)
	again := differing("B", "a.test", deny)
	ended := closed(opened("B", "a.test", "allow"), 1, 2, "closed") // whose policy was another by then
	inspects := differing("C", "c.test", egress.RecordShadow{Action: "allow", Inspect: true, Rule: "reads", Layer: "organisation", Policy: "sha256:1"})
	load := &egress.Record{Kind: egress.KindPolicy, Time: filterNow, Decision: &egress.RecordDecision{}, Shadow: &egress.RecordShadow{Policy: "sha256:1"}}
	view := overview{Overview: &records.Overview{}}
	decisions := records.Tally{Emit: view.Add}
	for _, r := range []*egress.Record{load, a, again, ended, inspects, opened("D", "d.test", "allow")} {
		decisions.Add(r)
	}
	decisions.Flush(records.OutcomeOpen)
	var out strings.Builder
	if err := view.print(&out, filterNow, cli.Palette{}); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(out.String(), "SHADOW\n")
	lines := strings.Split(strings.TrimSpace(table), "\n")
	want := []string{
		"COUNT DESTINATION WHAT WHO NOW WOULD WHY LAST",
		"2 a.test:443 connect ci allow deny rule-deny (not-yet) " + cli.Clock(filterNow, filterNow),
		"1 c.test:443 connect ci allow inspect reads " + cli.Clock(filterNow, filterNow),
	}
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	if shown := line(a, filterNow, cli.Palette{}); !strings.HasSuffix(shown, "A  shadow:deny rule-deny (not-yet)") {
		t.Errorf("the line is %q", shown)
	}
	for filter, passes := range map[string]bool{"shadow:deny": true, "shadow:allow": false, "shadow:inspect": false} {
		f, err := parseFilter([]string{filter}, filterNow)
		if err != nil || f.Match(a) != passes || f.Match(inspects) != (filter == "shadow:inspect") || f.Match(load) {
			t.Errorf("%s: %v", filter, err)
		}
	}
	if _, err := parseFilter([]string{"shadow:dney"}, filterNow); err == nil {
		t.Error("a value that does not exist was taken")
	}
}

func TestWhyTellsOfTheShadow(t *testing.T) {
	dir := t.TempDir()
	record := `{"v":1,"seq":0,"time":"2026-11-20T09:51:38.362114Z","kind":"open","flow":"01KB6ZQ4SZ","sandbox":"ci","via":"connect","dst":{"host":"a.test","port":443},"decision":{"action":"allow","rule":"allow[0]","layer":"user","policy":"sha256:0"},"shadow":{"action":"deny","rule":"not-yet","layer":"organisation","reason":"next month","class":"rule-deny","policy":"sha256:1"}}`
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), []byte(record+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o := whyOptions{logSource: logSource{dir: dir}}
	if err := o.run(&out, "01KB6"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "shadow       would deny (rule-deny) by rule not-yet (organisation): next month\n") || !strings.Contains(out.String(), "sha256:1 stands beside") {
		t.Errorf("got\n%s", out.String())
	}
	out.Reset()
	o.json = true
	if err := o.run(&out, "01KB6"); err != nil || !strings.Contains(out.String(), `"shadow":{"action":"deny","rule":"not-yet"`) {
		t.Errorf("%v: %s", err, out.String())
	}
}
