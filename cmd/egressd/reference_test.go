//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/rego"
	"github.com/egressd/egressd/sandbox/exits"
)

// firstCells returns the first cell of each row of the tables of a page.
func firstCells(t *testing.T, page string) (all []string) {
	t.Helper()
	for line := range strings.Lines(testfiles.Page(t, page)) {
		if cell, isRow := strings.CutPrefix(line, "| "); isRow {
			cell, _, _ = strings.Cut(cell, " | ")
			all = append(all, cell)
		}
	}
	return all
}

// parsed returns the syntax of the files of a package that are no tests.
func parsed(t *testing.T, dir ...string) (all []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(testfiles.Path(t, dir...), "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	return all
}

// yamlKeys returns the keys that the reader of policy files knows: as "limits.connections" where the source
// has that, else the last word.
func yamlKeys(t *testing.T) (keys []string) {
	for _, f := range parsed(t, "policy", "file") {
		ast.Inspect(f, func(n ast.Node) bool {
			lit, isLiteral := n.(*ast.CompositeLit)
			if !isLiteral {
				return true
			}
			if kind, ok := lit.Type.(*ast.Ident); !ok || kind.Name != "fields" {
				return true
			}
			for _, element := range lit.Elts {
				pair := element.(*ast.KeyValueExpr)
				keys = append(keys, fullKey(textOf(pair.Key), pair.Value))
			}
			return true
		})
	}
	return keys
}

// fullKey returns the text in value that ends in the key, or the key.
func fullKey(key string, value ast.Expr) string {
	full := key
	ast.Inspect(value, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok && strings.HasSuffix(textOf(text), "."+key) && !strings.HasPrefix(textOf(text), ".") {
			full = textOf(text)
		}
		_, nested := n.(*ast.CompositeLit)
		return !nested
	})
	return full
}

func textOf(n ast.Expr) string {
	if lit, ok := n.(*ast.BasicLit); ok {
		if text, err := strconv.Unquote(lit.Value); err == nil {
			return text
		}
	}
	return ""
}

func TestPolicyFileReferenceHasEveryKey(t *testing.T) {
	rows := strings.Join(append(firstCells(t, "reference/policy-file.md"), firstCells(t, "reference/rules.md")...), "\n")
	keys := yamlKeys(t)
	if len(keys) < 80 {
		t.Fatalf("the reader of policy files has %d keys", len(keys))
	}
	for _, key := range keys {
		if slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, key+".") }) {
			continue // a section
		}
		whole := regexp.MustCompile("`(?:[a-z_.\\[\\]]+\\.)?" + regexp.QuoteMeta(key) + "[`:]")
		if strings.Contains(key, ".") {
			whole = regexp.MustCompile("`" + regexp.QuoteMeta(key) + "`")
		}
		if !whole.MatchString(rows) {
			t.Errorf("docs/reference/policy-file.md and rules.md have no row for %s", key)
		}
	}
}

// TestRefusalsReferenceIsRight holds the table of classes to the replies.
func TestRefusalsReferenceIsRight(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| ([0-9]+|–)[^|]*\\| ([0-9]+|–) \\| (yes|no) \\|")
	said := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(testfiles.Page(t, "reference/refusals.md"), -1) {
		said[m[1]] = m[2] + " " + m[3]
	}
	for _, class := range classes(t) {
		a := answer.To(class)
		want := fmt.Sprint(a.Status, " ", a.SOCKS)
		if class == policy.CertificateRefused || class == policy.ContainerRefused {
			want = "– –" // no reply: the client does not trust one, or has not started
		}
		if said[string(class)] != want {
			t.Errorf("docs/reference/refusals.md has %q for %s; the replies are %q", said[string(class)], class, want)
		}
		delete(said, string(class))
	}
	for class := range said {
		t.Errorf("docs/reference/refusals.md has %s, which is no class", class)
	}
}

func classes(t *testing.T) (all []policy.Class) {
	for _, f := range parsed(t, "policy") {
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok {
				if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Class" && len(spec.Values) == 1 {
					all = append(all, policy.Class(textOf(spec.Values[0])))
				}
			}
			return true
		})
	}
	if len(all) < 30 {
		t.Fatalf("%d classes", len(all))
	}
	return all
}

// TestRecordReferenceHasEveryMember holds the page to the schema.
func TestRecordReferenceHasEveryMember(t *testing.T) {
	cells := strings.Join(firstCells(t, "reference/record.md"), "\n")
	page := testfiles.Page(t, "reference/record.md")
	var schema struct {
		Properties struct{ Kind struct{ Enum []string } }
		Defs       map[string]struct{ Properties map[string]any } `json:"$defs"`
	}
	text := testfiles.Page(t, "record.schema.json")
	if err := json.Unmarshal([]byte(text), &schema); err != nil {
		t.Fatal(err)
	}
	if len(schema.Properties.Kind.Enum) == 0 || len(schema.Defs) < 10 {
		t.Fatalf("%+v", schema)
	}
	for _, kind := range schema.Properties.Kind.Enum {
		if !strings.Contains(cells, "`"+kind+"`") {
			t.Errorf("docs/reference/record.md has no row for the kind %s", kind)
		}
	}
	for part, def := range schema.Defs {
		for member := range def.Properties {
			where := cells
			if part == "process" {
				where = page
			}
			if !strings.Contains(where, "`"+member+"`") {
				t.Errorf("docs/reference/record.md has no row for %s", member)
			}
		}
	}
}

// TestRegoReferenceHasEveryFieldAndHelper holds the page to the schema of the input and to the library.
func TestRegoReferenceHasEveryFieldAndHelper(t *testing.T) {
	cells := strings.Join(firstCells(t, "reference/rego.md"), "\n")
	var schema map[string]any
	if err := json.Unmarshal(rego.InputSchema(), &schema); err != nil {
		t.Fatal(err)
	}
	found := 0
	for name, part := range schema["properties"].(map[string]any) {
		inner, _ := part.(map[string]any)["properties"].(map[string]any)
		if len(inner) == 0 {
			inner = map[string]any{"": nil}
		}
		for field := range inner {
			found++
			if !strings.Contains(cells, "`input."+name) || field != "" && !strings.Contains(cells, "."+field+"`") {
				t.Errorf("docs/reference/rego.md has no row for input.%s.%s", name, field)
			}
		}
	}
	for name := range shortNames(t) {
		found++
		if !strings.Contains(cells, "`"+name+"(") {
			t.Errorf("docs/reference/rego.md has no row for %s", name)
		}
	}
	if found < 40 {
		t.Errorf("%d fields and helpers were found", found)
	}
}

// shortNames are the helpers that policies call without an import.
func shortNames(t *testing.T) map[string]bool {
	names := map[string]bool{}
	helper := regexp.MustCompile(`^(host|net|path|time)\.[a-z_]+$`)
	for _, f := range parsed(t, "rego") {
		ast.Inspect(f, func(n ast.Node) bool {
			if pair, ok := n.(*ast.KeyValueExpr); ok && helper.MatchString(textOf(pair.Key)) && strings.Contains(textOf(pair.Value), "egressd.") {
				names[textOf(pair.Key)] = true
			}
			return true
		})
	}
	if len(names) < 8 {
		t.Fatalf("%v", names)
	}
	return names
}

func TestExitCodesReferenceIsRight(t *testing.T) {
	cells := firstCells(t, "reference/exit-codes.md")
	for _, code := range []int{exits.Denied, exits.Sandbox, exits.NotExecutable, exits.NotFound} {
		if !slices.Contains(cells, strconv.Itoa(code)) {
			t.Errorf("docs/reference/exit-codes.md has no row for %d", code)
		}
	}
	if !slices.Contains(cells, fmt.Sprint(exits.Signal, " + N")) {
		t.Errorf("docs/reference/exit-codes.md has no row for signals")
	}
}

func TestFilterReferenceHasEveryFilter(t *testing.T) {
	cells := strings.Join(firstCells(t, "reference/filters.md"), "\n")
	for _, key := range logs.FilterKeys {
		if !strings.Contains(cells, "`"+key+":`") {
			t.Errorf("docs/reference/filters.md has no row for %s:", key)
		}
	}
}
