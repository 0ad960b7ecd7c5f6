package policy

import (
	"context"
	"strings"
	"testing"
)

func TestTemplates(t *testing.T) {
	for _, text := range []string{"", "a", "{id", "id}", "{ID}", "{id}{id}", "a{id}b}", "{{id}}"} {
		if parsed, ok := ParseTemplate(text); ok {
			t.Errorf("%q became %+v", text, parsed)
		}
	}
	e2b, ok := ParseTemplate("e2b-{id}.x")
	if !ok || e2b.Name("7") != "e2b-7.x" {
		t.Fatalf("%v, %+v", ok, e2b)
	}
	for name, want := range map[string]string{
		"e2b-7.x": "7", "e2b-aZ_9-.x": "aZ_9-", "e2b-" + strings.Repeat("i", 40) + ".x": strings.Repeat("i", 40),
		"e2b-.x": "", "e2b-7": "", "7.x": "", "E2B-7.x": "", "e2b--7.x": "", "e2b-_7.x": "", "e2b-7.8.x": "", "e2b-é.x": "", "e2b-7 .x": "", "e2b-7/../8.x": "",
		"e2b-7%2d.x": "", "e2b-{id}.x": "", "e2b-7\x00.x": "", "e2b-~.x": "", "e2b-" + strings.Repeat("i", 41) + ".x": "", "e2b": "", "": "",
	} {
		if id, ok := e2b.ID(name); ok != (want != "") || ok && id != want {
			t.Errorf("%q is of %q, %v; want %q", name, id, ok, want)
		}
	}
	if _, ok := (Template{}).ID("a"); ok {
		t.Error("the template of none has a sandbox")
	}
	for _, row := range []struct {
		a, b string
		want bool
	}{
		{"a-{id}", "b-{id}", false},
		{"a-{id}", "a-b-{id}", true},
		{"a-{id}", "a.{id}", false},
		{"a-{id}", "a-x.{id}", false},
		{"a-{id}", "{id}", true},
		{"{id}-a", "{id}-b", false},
		{"{id}-a", "b-{id}", true},
		{"a-{id}", "a-{id}-z", true},
		{"a-{id}", "a-{id}.z", false},
	} {
		a, _ := ParseTemplate(row.a)
		b, _ := ParseTemplate(row.b)
		if a.Overlaps(b) != row.want || b.Overlaps(a) != row.want {
			t.Errorf("%s and %s: %v, want %v", row.a, row.b, !row.want, row.want)
		}
	}
}

// TestSandboxesOfATemplateHaveItsLists asks as sandboxes of a template whose list allows less than the file, as its own
// Rego does, and as others with names that are nearly of it.
func TestSandboxesOfATemplateHaveItsLists(t *testing.T) {
	line := func(text string) Rule {
		p, err := ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		return Rule{Pattern: p, ID: text}
	}
	deny := func(host string) Evaluator { return &denying{host} }
	p := Assemble(Parts{
		Lists: Lists{Allow: []Rule{line("a.test"), line("b.test"), line("c.test")}},
		Sandboxes: []SandboxLists{
			{Name: "e2b-{id}", Narrowed: true, Allow: []Rule{line("a.test"), line("c.test")}},
			{Name: "other"},
		},
		Narrowing: map[string][]Narrowing{"e2b-{id}": {{Evaluator: deny("c.test")}}},
		Grants:    []Grant{{ID: "grant:1", Effect: Allow, Opening: Opening{Pattern: line("b.test").Pattern}, Sandbox: "e2b-9"}},
	})
	for _, row := range []struct {
		who, host string
		want      Verdict
	}{
		{"e2b-7", "a.test", Allow},
		{"e2b-7", "b.test", Deny},
		{"e2b-9", "b.test", Allow},
		{"e2b-7", "c.test", Deny},
		{"other", "c.test", Allow},
		{"e2b-", "a.test", Deny},
		{"e2b-7.8", "a.test", Deny},
		{"E2B-7", "a.test", Deny},
	} {
		r := Request{Sandbox: Sandbox{Name: row.who}, Via: ViaConnect, Destination: Destination{Host: row.host, Port: 443}}
		if d := p.Decide(context.Background(), &r); d.Verdict != row.want {
			t.Errorf("%s to %s: %s (%s), want %s", row.who, row.host, d.Verdict, d.Reason, row.want)
		}
	}
}

type denying struct{ host string }

func (d *denying) Evaluate(_ context.Context, r *Request) (Decision, error) {
	if r.Destination.Host == d.host {
		return Decision{Verdict: Deny, Class: RuleDeny, Rule: "test", Reason: "test"}, nil
	}
	return Decision{Verdict: Abstain}, nil
}
