package rego

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"pgregory.net/rapid"
)

func listTerm(n int) ast.Value {
	terms := make([]*ast.Term, n)
	for i := range terms {
		terms[i] = ast.StringTerm(fmt.Sprintf("h%d.test", i))
	}
	return ast.NewArray(terms...)
}

func TestAListIsCompiledOnce(t *testing.T) {
	c := &newCompiledLists().hosts
	list := listTerm(100)
	first, err := c.of(list)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.of(list); err != nil || again != first {
		t.Errorf("compiled twice: %v", err)
	}
	if other, err := c.of(listTerm(100)); err != nil || other == first {
		t.Errorf("another list is taken for the same: %v", err)
	}
	for range 10 * maxLists {
		if _, err := c.of(listTerm(minCached)); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.lists) > maxLists {
		t.Errorf("%d lists are kept", len(c.lists))
	}
}

// TestTheSchemaAndTheFieldsAgree guards the cache: a field that a policy may read
// and that is in no key would give one request the decision of another.
func TestTheSchemaAndTheFieldsAgree(t *testing.T) {
	type node struct {
		Properties map[string]node `json:"properties"`
	}
	var root node
	if err := json.Unmarshal(InputSchema(), &root); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for name, part := range root.Properties {
		if len(part.Properties) == 0 {
			paths = append(paths, name)
		}
		for member := range maps.Keys(part.Properties) {
			paths = append(paths, name+"."+member)
		}
	}
	paths = slices.DeleteFunc(paths, func(path string) bool { return strings.HasPrefix(path, "usage.") })
	paths = append(paths, "usage") // what reads any of it is not cached
	slices.Sort(paths)
	fields := slices.Sorted(slices.Values(fieldPaths[:]))
	if !slices.Equal(paths, fields) {
		t.Errorf("the schema has %q, the cache knows %q", paths, fields)
	}
	if readsBody != 1<<(len(fieldPaths)-1) || fieldsAt(ast.MustParseRef("input.http.method")[1:]) != readsMethod {
		t.Error("the names of the fields and their bits are out of step")
	}
}

func TestLibraryIsOneForOtherTools(t *testing.T) {
	files, err := Library()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lib/host.rego", "lib/net.rego", "lib/path.rego", "lib/time.rego"} {
		if len(files[name]) == 0 {
			t.Errorf("%s is missing", name)
		}
	}
	if _, there := files["lib/host_test.rego"]; there {
		t.Error("tests are part of it")
	}
}

// TestAListHoldsWhatOneOfItsPatternsHolds compares the two ways to ask.
func TestAListHoldsWhatOneOfItsPatternsHolds(t *testing.T) {
	pattern := rapid.SampledFrom([]string{
		"a.test", "*.a.test", "*.test", "b.a.test", "*{1}.a.test", "*{1}.test", "c*.b.a.test", "*d.b.a.test", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0", "::/0", "2606:2800::/32", "2606:2800::1", "*",
	})
	host := rapid.SampledFrom([]string{
		"a.test", "A.TEST.", "b.a.test", "c.b.a.test", "d.b.a.test", "cd.b.a.test", "xa.test", "test", "10.1.2.3", "10.2.0.1", "11.0.0.1", "::ffff:10.1.2.3", "2606:2800::1", "2606:2801::1",
		"", "a.test\x00", "fe80::1%eth0", "[2606:2800::1]",
	})
	rapid.Check(t, func(t *rapid.T) {
		h, patterns := ast.StringTerm(host.Draw(t, "host")), rapid.SliceOfN(pattern, 0, 6).Draw(t, "patterns")
		one := false
		for _, p := range patterns {
			value, err := hostMatches([]*ast.Term{h, ast.StringTerm(p)})
			if err != nil {
				t.Fatal(err)
			}
			one = one || value.Compare(ast.Boolean(true)) == 0
		}
		any, err := newCompiledLists().hostAny([]*ast.Term{h, texts(patterns)})
		if err != nil || any.Compare(ast.Boolean(one)) != 0 {
			t.Fatalf("%v in %q: one by one %v, as a list %v, %v", h, patterns, one, any, err)
		}
	})
}

// TestAListOfPathsHoldsWhatOneOfItsPatternsHolds compares the two ways to ask.
func TestAListOfPathsHoldsWhatOneOfItsPatternsHolds(t *testing.T) {
	segment := rapid.SampledFrom([]string{"a", "b", "ab", "a*", "*", "**", "*b", ""})
	pattern := rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfN(segment, 0, 4).Draw(t, "segments"), "/")
	})
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.NewReplacer("*", "a").Replace("/" + strings.Join(rapid.SliceOfN(segment, 0, 5).Draw(t, "segments"), "/"))
	})
	rapid.Check(t, func(t *rapid.T) {
		p, patterns := ast.StringTerm(path.Draw(t, "path")), rapid.SliceOfN(pattern, 0, 6).Draw(t, "patterns")
		one, failed := false, false
		for _, text := range patterns {
			value, err := pathMatches([]*ast.Term{p, ast.StringTerm(text)})
			one, failed = one || value.Compare(ast.Boolean(true)) == 0, failed || err != nil
		}
		any, err := newCompiledLists().pathAny([]*ast.Term{p, texts(patterns)})
		if failed != (err != nil) || !failed && any.Compare(ast.Boolean(one)) != 0 {
			t.Fatalf("%v in %q: one by one %v (failed: %v), as a list %v, %v", p, patterns, one, failed, any, err)
		}
	})
}
