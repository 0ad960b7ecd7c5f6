package policy

import (
	"reflect"
	"testing"
)

// TestEveryFieldOfARuleNarrowsOrIsKnown fails for a new field until somebody says what it does. A field that narrows is a
// condition, keeps a rule from being the line of an opening, and is said in words.
func TestEveryFieldOfARuleNarrowsOrIsKnown(t *testing.T) {
	path, err := ParsePathPattern("/a")
	if err != nil {
		t.Fatal(err)
	}
	narrowing := map[string]Rule{
		"Methods":   {Methods: []string{"GET"}},
		"Paths":     {Paths: []PathPattern{path}},
		"Headers":   {Headers: []FieldRule{{"accept", []string{"x"}}}},
		"Query":     {Query: []FieldRule{{"q", []string{"x"}}}},
		"QueryOnly": {QueryOnly: true},
		"JSON":      {JSON: []JSONRule{{Pointer: "/a", Values: []JSONValue{{Text: "x"}}}}},
		"MCP":       {MCP: &MCPRule{}},
		"Model":     {Model: &ModelRule{}},
		"GraphQL":   {GraphQL: &GraphQLRule{AnyQuery: true}},
		"Git":       {Git: &GitRule{Repos: []string{"a/b"}}},
		"LFS":       {LFS: &LFSRule{Server: "git.test:443", Repos: []string{"a/b"}}},
	}
	others := map[string]bool{
		"Pattern": true, "PathsFold": true, "Reason": true, "ID": true, "AnyProtocol": true, "ECH": true, "Upgrade": true, "Inject": true, "Credential": true, "Set": true, "MaxBytesUp": true, "At": true,
	}
	for i := range reflect.TypeFor[Rule]().NumField() {
		name := reflect.TypeFor[Rule]().Field(i).Name
		r, narrows := narrowing[name]
		switch {
		case others[name]:
		case !narrows:
			t.Errorf("%s: does it narrow a rule?", name)
		case !r.Conditional(), !r.Inspects(), r.Conditions() == "", (Opening{}).IsLine(r):
			t.Errorf("%s does not narrow everywhere", name)
		}
	}
}
