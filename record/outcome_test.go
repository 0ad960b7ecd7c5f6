package record

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestThePageHasEachOutcome and no row more.
func TestThePageHasEachOutcome(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "reference", "record.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Outcomes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	file, err := parser.ParseFile(token.NewFileSet(), "outcome.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			found++
			text, err := strconv.Unquote(l.Value)
			if err != nil || !strings.Contains(section, "\n| `"+text+"` |") {
				t.Errorf("the page does not have %s", l.Value)
			}
		}
		return true
	})
	if rows := strings.Count(section, "\n| `"); rows != found || found < 9 {
		t.Errorf("%d rows for %d outcomes", rows, found)
	}
}
