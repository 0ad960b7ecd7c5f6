package policy

import (
	"reflect"
	"testing"
)

func rulesOf(t *testing.T, parts Parts) string {
	t.Helper()
	return Assemble(parts).RulesID()
}

// TestTheSameRulesHaveTheSameID changes each field of a rule, and what stands around a rule.
func TestTheSameRulesHaveTheSameID(t *testing.T) {
	pattern := func(text string) Pattern {
		p, err := ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	path, err := ParsePathPattern("/a")
	if err != nil {
		t.Fatal(err)
	}
	of := func(rules ...Rule) Parts { return Parts{Lists: Lists{Layer: User, Allow: rules}} }
	a, b := Rule{Pattern: pattern("a.test")}, Rule{Pattern: pattern("b.test:22")}
	base := rulesOf(t, of(a, b))
	if len(base) != 32 {
		t.Fatalf("the id is %q", base)
	}
	changed := map[string]Rule{
		"Pattern": {Pattern: pattern("a.test:22")}, "Methods": {Methods: []string{"GET"}}, "Paths": {Paths: []PathPattern{path}}, "PathsFold": {PathsFold: true},
		"Headers": {Headers: []FieldRule{{"accept", []string{"x"}}}}, "Query": {Query: []FieldRule{{"q", []string{"x"}}}}, "QueryOnly": {QueryOnly: true},
		"Git": {Git: &GitRule{Repos: []string{"a/b"}}}, "LFS": {LFS: &LFSRule{Server: "git.test:443", Repos: []string{"a/b"}}}, "JSON": {JSON: []JSONRule{{"/a", []JSONValue{{Text: "x"}}}}}, "MCP": {MCP: &MCPRule{Tools: []string{"t"}}}, "Model": {Model: &ModelRule{}}, "GraphQL": {GraphQL: &GraphQLRule{AnyQuery: true}}, "MaxBytesUp": {MaxBytesUp: 5}, "AnyProtocol": {AnyProtocol: true}, "ECH": {ECH: true}, "Upgrade": {Upgrade: true},
		"Inject": {Inject: &Inject{Header: "X", File: "f"}}, "Credential": {Credential: "c"}, "Set": {Set: []SetField{{"X", "y"}}},
	}
	same := map[string]Rule{"Reason": {Reason: "why"}, "ID": {ID: "mine"}, "At": {At: Position{7, 1}}}
	for i := range reflect.TypeFor[Rule]().NumField() {
		name := reflect.TypeFor[Rule]().Field(i).Name
		r, decides := changed[name]
		if other, ok := same[name]; ok {
			r = other
		} else if !decides {
			t.Errorf("%s: does it change which rules hold?", name)
		}
		if name != "Pattern" {
			r.Pattern = a.Pattern
		}
		if got := rulesOf(t, of(r, b)); (got != base) != decides {
			t.Errorf("%s: the id is %s, without it %s", name, got, base)
		}
	}
	for says, parts := range map[string]Parts{
		"another order": of(b, a), "a line twice": of(a, b, a),
		"other texts": {Lists: of(a, b).Lists, Texts: [][]byte{[]byte("# a comment")}, Revisions: []string{"v2"}},
	} {
		if got := rulesOf(t, parts); got != base {
			t.Errorf("%s: the id is %s, want %s", says, got, base)
		}
	}
	lists := of(a, b).Lists
	denied, ceiled, open := lists, lists, lists
	denied.Deny = []Rule{b}
	ceiled.Ceiled = true
	open.Default = Allow
	for says, parts := range map[string]Parts{
		"a deny": {Lists: denied}, "a ceiling": {Lists: ceiled}, "a default": {Lists: open}, "observed": {Lists: lists, Observe: []Observation{{}}},
		"one sandbox that is observed": {Lists: lists, Observe: []Observation{{Sandbox: "ci"}}},
		"an organisation":              {Lists: lists, Organisation: &Lists{Layer: Organisation}}, "a sandbox": {Lists: lists, Sandboxes: []SandboxLists{{Name: "ci"}}},
		"a tunnel that is not looked into": {Lists: lists, Never: []Pattern{a.Pattern}}, "code": {Lists: lists, Code: [][]byte{[]byte("x")}},
		"a grant":   {Lists: lists, Grants: []Grant{{ID: "g", Effect: Allow, Opening: Opening{Pattern: pattern("c.test")}}}},
		"a project": {Lists: lists, Projects: map[string]ProjectLists{"ci": {}}},
	} {
		if got := rulesOf(t, parts); got == base {
			t.Errorf("%s: the id is the same", says)
		}
	}
}
