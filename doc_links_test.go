package egressd_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docLink matches a doc link such as [Name], [*Type.Method], [pkg.Name] or [example.com/pkg.Name]. Names that are not exported
// count too: readers of the source follow them.
var docLink = regexp.MustCompile(`(?:^|[\s(,;:])\[\*?((?:[\w.-]+/)*[A-Za-z]\w*(?:\.[A-Za-z]\w*){0,3})\]\B`)

// TestDocLinksNameWhatExists looks for what each doc link in a comment names. Go shows a link to another package if a file
// beside the comment imports that package, if it is of the standard library, or if the link has its whole path.
func TestDocLinksNameWhatExists(t *testing.T) {
	all, packages, imports := sources(t), map[string]symbols{}, map[string]map[string]string{}
	for _, s := range all {
		if imports[s.pkg] == nil {
			packages[module+s.pkg], imports[s.pkg] = symbols{}, map[string]string{}
		}
		packages[module+s.pkg].add(s.file)
		maps.Copy(imports[s.pkg], localNames(s.file))
	}
	links := 0
	for _, s := range all {
		for _, link := range docLinksOf(t, s.path) {
			links++
			folder, name := path.Split(link)
			pkg, symbol, _ := strings.Cut(name, ".")
			if pkg = folder + pkg; imports[s.pkg][pkg] != "" {
				pkg = imports[s.pkg][pkg]
			}
			if packages[module+s.pkg].have(link) {
				continue
			}
			if packages[pkg] == nil {
				packages[pkg] = symbolsOf(t, pkg)
			}
			if !packages[pkg].have(symbol) {
				t.Errorf("%s: [%s] names nothing in the package, nor in one that it imports", s.path, link)
			}
		}
	}
	if links < 100 {
		t.Errorf("found %d doc links; the test does not see them", links)
	}
}

// docLinksOf returns the text of each doc link of a file, outside of code blocks.
func docLinksOf(t *testing.T, file string) (links []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range parsed.Comments {
		for line := range strings.Lines(group.Text()) {
			if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, " ") {
				continue
			}
			for _, m := range docLink.FindAllStringSubmatch(line, -1) {
				links = append(links, m[1])
			}
		}
	}
	return links
}

// symbols are the names that a package declares, as Name, Type.Method and Type.Field, and "" for the package itself. That of a
// struct has the types that the struct embeds.
type symbols map[string][]string

// have reports whether there is a symbol, or its type embeds another type of the package that has it.
func (all symbols) have(symbol string) bool {
	if _, ok := all[symbol]; ok {
		return true
	}
	of, member, _ := strings.Cut(symbol, ".")
	return slices.ContainsFunc(all[of], func(embedded string) bool { return all.have(embedded + "." + member) })
}

// symbolsOf reads a package outside of this module. It returns none if there is no such package.
func symbolsOf(t *testing.T, pkg string) symbols {
	t.Helper()
	all := symbols{}
	files, _ := exec.Command("go", "list", "-find", "-f", `{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}`, pkg).Output()
	for name := range strings.FieldsSeq(string(files)) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all.add(file)
	}
	return all
}

// add adds what a file declares.
func (all symbols) add(file *ast.File) {
	all[""] = nil
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil {
				all[n.Name.Name] = nil
			} else {
				all[receiver(n)+"."+n.Name.Name] = nil
			}
			return false
		case *ast.ValueSpec:
			for _, name := range n.Names {
				all[name.Name] = nil
			}
			return false
		case *ast.TypeSpec:
			all[n.Name.Name] = nil
			all.addMembers(n)
			return false
		}
		return true
	})
}

// addMembers adds the fields of a struct, or the methods of an interface.
func (all symbols) addMembers(of *ast.TypeSpec) {
	var members *ast.FieldList
	switch kind := of.Type.(type) {
	case *ast.StructType:
		members = kind.Fields
	case *ast.InterfaceType:
		members = kind.Methods
	default:
		return
	}
	for _, m := range members.List {
		for _, name := range m.Names {
			all[of.Name.Name+"."+name.Name] = nil
		}
		if len(m.Names) == 0 { // embedded
			all[of.Name.Name] = append(all[of.Name.Name], receiver(&ast.FuncDecl{Recv: &ast.FieldList{List: []*ast.Field{m}}}))
		}
	}
}
