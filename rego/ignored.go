package rego

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/policy"
)

// What a policy says where nobody asks is refused here: a deny that is never read
// would end in an allow.

// undefined refuses references to data that neither a rule nor a file holds. Data
// never changes after it is loaded, so what such a reference asks never holds.
func (set *sourceSet) undefined(c *ast.Compiler) (problems policy.FileError) {
	for _, name := range slices.Sorted(maps.Keys(c.Modules)) {
		if strings.HasPrefix(name, libraryPrefix) {
			continue
		}
		for _, r := range c.Modules[name].Rules {
			problems = append(problems, set.undefinedIn(r, c)...)
		}
	}
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems) // the compiler may have copied a term
}

func (set *sourceSet) undefinedIn(r *ast.Rule, c *ast.Compiler) (problems policy.FileError) {
	ast.WalkTerms(r, func(t *ast.Term) bool {
		ref, ok := t.Value.(ast.Ref)
		if !ok || set.defined(ref, c) {
			return false
		}
		at := t.Location
		if at == nil || at.Row == 0 { // the compiler has made the term
			at = r.Location
		}
		says := "%s is in no file of data, and no rule is named so"
		if set.holdsNone(ref.GroundPrefix()) {
			says = notAList
		}
		problems = append(problems, problemAt(at, fmt.Sprintf(says, ref.GroundPrefix())))
		return false
	})
	return problems
}

func compareProblems(a, b policy.Problem) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Message, b.Message))
}

// defined reports whether the constant part of a reference leads to something. A
// reference to anything but data does.
func (set *sourceSet) defined(ref ast.Ref, c *ast.Compiler) bool {
	if !ref.HasPrefix(ast.DefaultRootRef) {
		return true
	}
	path := words(ref[1:])
	if len(path) == 0 || len(c.GetRules(ref[:1+len(path)])) > 0 {
		return true
	}
	value, there := set.valueAt(path)
	return there && (len(path) == len(ref)-1 || !isScalar(value))
}

// words returns the text that a reference begins with, up to the first part that
// is something else.
func words(ref ast.Ref) (path []string) {
	for _, t := range ref {
		word, ok := t.Value.(ast.String)
		if !ok {
			break
		}
		path = append(path, string(word))
	}
	return path
}

// unasked refuses rules that are named as what decides and stand where nobody asks
// them: in a package that is not asked for them, or below another name.
func (set *sourceSet) unasked(asked []asking, sandboxes []string) (problems policy.FileError) {
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		m := set.modules[name]
		if strings.HasPrefix(name, libraryPrefix) {
			continue
		}
		if below := m.Package.Path; len(below) > 2 && decides(words(below[len(below)-1:])) {
			problems = append(problems, problemAt(m.Package.Location, fmt.Sprintf("%s is asked as a set, not as a package; write: package egress", strings.Join(words(below[1:]), "."))))
		}
		l := location{asked: asked, sandboxes: sandboxes, pkg: m.Package.Path}
		for _, r := range m.Rules {
			problems = append(problems, l.misplaced(r)...)
		}
	}
	return problems
}

// decides reports whether a path begins with the name of one of the sets.
func decides(path []string) bool {
	return len(path) > 0 && slices.Contains([]string{"allow", "ask", "deny", ceilingName}, path[0])
}

// A location is where a rule stands, and what is asked there and elsewhere.
type location struct {
	asked     []asking
	sandboxes []string
	pkg       ast.Ref
}

// has reports whether somebody asks for a set here.
func (l *location) has(set string) bool {
	return slices.ContainsFunc(l.asked, func(a asking) bool {
		return a.pkg.Equal(l.pkg) && slices.ContainsFunc(a.sets, func(s setName) bool { return s.name == set })
	})
}

func (l *location) misplaced(r *ast.Rule) policy.FileError {
	ref := r.Head.Ref()
	path := append([]string{string(headOf(ref))}, words(ref[1:])...)
	last := path[len(path)-1:]
	set := last[0]
	if decides(path) {
		set = path[0]
	}
	switch {
	case len(r.Head.Args) > 0:
	case l.has(path[0]) && len(ref) > 1:
		return policy.FileError{problemAt(r.Location, fmt.Sprintf("%s is a set of reasons; write: %s contains {\"rule\": \"NAME\"} if …", path[0], path[0]))}
	case l.has(path[0]):
	case decides(path), decides(last) && r.Head.RuleKind() == ast.MultiValue:
		return policy.FileError{problemAt(r.Location, fmt.Sprintf("nobody asks %s of package %s; %s", strings.Join(path, "."), strings.Join(words(l.pkg[1:]), "."), l.instead(set)))}
	}
	return nil
}

// instead says what to write in the place of a set that nobody asks.
func (l *location) instead(set string) string {
	name, below := sandboxOf(l.pkg)
	home := l.asked[0].name
	switch {
	case set == ceilingName && home == "egress":
		return "a ceiling stands in package egress alone"
	case set == ceilingName:
		return "a ceiling stands in package egress of the policy's own rego, not here"
	case below && home == "egress" && len(l.sandboxes) > 0 && !slices.Contains(l.sandboxes, name):
		return fmt.Sprintf("no sandbox is named %s; %s", name, nearSandbox(name, l.sandboxes))
	}
	return fmt.Sprintf("write it as %s in package %s, or name it otherwise", set, home)
}

func nearSandbox(name string, sandboxes []string) string {
	best := slices.MinFunc(sandboxes, func(a, b string) int {
		return cmp.Or(cmp.Compare(spelling.Distance(name, a), spelling.Distance(name, b)), cmp.Compare(a, b))
	})
	if spelling.Distance(name, best) <= max(2, len(name)/3) {
		return fmt.Sprintf("did you mean package egress[%q]?", best)
	}
	return "name one of " + strings.Join(sandboxes[:min(len(sandboxes), 8)], ", ")
}

// taken refuses names that would take the place of the library.
func taken(m *ast.Module) (problems policy.FileError) {
	for _, i := range m.Imports {
		if i.Name() == "egressd" {
			problems = append(problems, problemAt(i.Location, "the name egressd belongs to egressd; write: import … as another name"))
		}
	}
	egress := m.Package.Path.Equal(ast.MustParseRef("data.egress"))
	for _, r := range m.Rules {
		switch name := string(headOf(r.Head.Ref())); name {
		case "egressd":
			problems = append(problems, problemAt(r.Location, "the name egressd belongs to egressd; choose another name"))
		case "host", "net", "path", "time":
			if egress {
				problems = append(problems, problemAt(r.Location, fmt.Sprintf("%s is the name of functions of egressd; choose another name", name)))
			}
		}
	}
	return problems
}

// meant are names that people give to sets that are to decide.
var meant = map[string]string{
	"denies": "deny", "denied": "deny", "block": "deny", "blocks": "deny", "blocked": "deny", "reject": "deny", "rejects": "deny",
	"rejected": "deny", "refuse": "deny", "refused": "deny", "forbid": "deny", "forbidden": "deny", "drop": "deny",
	"allowed": "allow", "allows": "allow", "permit": "allow", "permits": "allow", "permitted": "allow", "accept": "allow",
	"asks": "ask", "asked": "ask",
}

// unread refuses sets of the package that no rule reads and whose names are nearly
// those of the sets that it is asked for.
func (c *compiled) unread(a asking) (problems policy.FileError) {
	for _, name := range slices.Sorted(maps.Keys(c.compiler.Modules)) {
		m := c.compiler.Modules[name]
		if !m.Package.Path.Equal(a.pkg) {
			continue
		}
		for _, r := range m.Rules {
			name := string(headOf(r.Head.Ref()))
			set := near(name)
			if !slices.ContainsFunc(a.sets, func(s setName) bool { return s.name == set }) || r.Head.RuleKind() != ast.MultiValue || len(c.compiler.Graph.Dependents(r)) > 0 {
				continue
			}
			problems = append(problems, problemAt(r.Location, fmt.Sprintf("nothing reads %s; write %s, or name it otherwise", name, set)))
		}
	}
	return problems
}

// near returns the set that a name nearly is; "" where it is one, or far from all.
func near(name string) string {
	if decides([]string{name}) {
		return ""
	}
	lower := strings.ToLower(name)
	for _, set := range [...]string{"deny", "allow", ceilingName} {
		if spelling.Distance(lower, set) <= 2 {
			return set
		}
	}
	if lower == "ask" {
		return lower
	}
	return meant[lower]
}
