package rego

import (
	"cmp"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// Lint returns what a policy may say and hardly means: conditions on a host that
// hold for hosts of other people too, negated ones that a request can do without,
// comparisons with a query that is not decoded, and answers that allow nothing. It reads modules as they are written, tests left out, and leaves what is
// no Rego to [Load].
func Lint(sources []Source) (found []policy.Problem) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}, shape: &envoyShape} // which has the older syntax read
	for _, s := range sources {
		set.add(s)
	}
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		l := linter{hosts: hostVariables(set.modules[name]), addresses: addressVariables(set.modules[name]), queries: queryVariables(set.modules[name]), data: &set}
		for _, call := range callsIn(set.modules[name]) {
			l.call(call)
		}
		l.negations(set.modules[name])
		l.undefined(set.modules[name])
		l.answers(set.modules[name])
		slices.SortFunc(l.found, func(a, b policy.Problem) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		found = append(found, l.found...)
	}
	return found
}

// A linter looks at the calls of one module.
type linter struct {
	hosts     map[ast.Var]bool // variables that hold a host
	addresses map[ast.Var]bool // variables that hold one address of the destination
	queries   map[ast.Var]bool // variables that hold the query of the request
	data      *sourceSet
	found     []policy.Problem

	// asks are the rules and functions that ask where a host lies: what it is, by
	// the arguments of a call.
	asks map[string]func(arguments []*ast.Term) *ast.Term
}

func (l *linter) call(call []*ast.Term) {
	operator, ok := call[0].Value.(ast.Ref)
	if !ok {
		return
	}
	l.compared(dotted(operator), call[1:])
	l.query(dotted(operator), call[1:])
	switch operands := call[1:]; dotted(operator) {
	case "regex.match":
		if len(operands) >= 2 && l.isHost(operands[1]) {
			l.pattern(operands[0])
		}
	case "endswith":
		if len(operands) >= 2 && l.isHost(operands[0]) {
			l.suffix(operands[1])
		}
	case "glob.match":
		if len(operands) >= 2 && operands[1].Value.Compare(ast.NullValue) == 0 {
			l.say(operands[1], `with null delimiters "*" matches dots and slashes too; write host.matches or path.matches, or the delimiters`)
		}
	}
}

// pattern looks at a regular expression that a host has to match.
func (l *linter) pattern(t *ast.Term) {
	text, ok := t.Value.(ast.String)
	if !ok {
		return
	}
	expression, err := syntax.Parse(string(text), syntax.Perl)
	if err == nil && !(begins(expression) && ends(expression)) {
		l.say(t, "the pattern is not anchored at both ends, so longer hosts match as well; write host.matches, or ^ and $ around all of it")
	}
}

func (l *linter) suffix(t *ast.Term) {
	text, ok := t.Value.(ast.String)
	if ok && text != "" && !strings.HasPrefix(string(text), ".") {
		l.say(t, "hosts that only end like it match as well, as evil"+clip(string(text), maxRuleBytes)+` does; write host.matches with "*.`+clip(string(text), maxRuleBytes)+`"`)
	}
}

func (l *linter) say(at *ast.Term, message string) {
	l.found = append(l.found, problemAt(at.Location, message))
}

// begins reports whether every match of an expression begins where the text does.
func begins(e *syntax.Regexp) bool {
	return anchored(e, syntax.OpBeginText, func(parts []*syntax.Regexp) *syntax.Regexp { return parts[0] })
}

// ends reports whether every match of an expression ends where the text does.
func ends(e *syntax.Regexp) bool {
	return anchored(e, syntax.OpEndText, func(parts []*syntax.Regexp) *syntax.Regexp { return parts[len(parts)-1] })
}

func anchored(e *syntax.Regexp, anchor syntax.Op, side func([]*syntax.Regexp) *syntax.Regexp) bool {
	inner := func(part *syntax.Regexp) bool { return anchored(part, anchor, side) }
	switch {
	case e.Op == anchor:
		return true
	case e.Op == syntax.OpAlternate:
		return !slices.ContainsFunc(e.Sub, func(part *syntax.Regexp) bool { return !inner(part) })
	case e.Op == syntax.OpConcat, e.Op == syntax.OpCapture:
		return len(e.Sub) > 0 && inner(side(e.Sub))
	}
	return false
}

// isHost reports whether a term holds a host: a field of the input that does, a
// variable that was given one, or a call that only changes its case.
func (l *linter) isHost(t *ast.Term) bool {
	switch v := t.Value.(type) {
	case ast.Ref:
		return isHostField(v) || len(v) == 1 && l.hosts[headOf(v)]
	case ast.Var:
		return l.hosts[v]
	case ast.Call:
		operator, ok := v[0].Value.(ast.Ref)
		return ok && len(v) >= 2 && slices.Contains([]string{"lower", "upper", "trim_suffix"}, dotted(operator)) && l.isHost(v[1])
	}
	return false
}

func isHostField(ref ast.Ref) bool {
	return slices.Contains([]string{"input.destination.host", "input.destination.registrable", "input.tls.sni", "input.dns.name"}, dotted(ref))
}

// hostVariables returns the variables that are given a host somewhere in a module.
func hostVariables(m *ast.Module) map[ast.Var]bool {
	l := linter{hosts: map[ast.Var]bool{}}
	ast.WalkExprs(m, func(x *ast.Expr) bool {
		if !x.IsAssignment() && !x.IsEquality() {
			return false
		}
		if v, ok := x.Operand(0).Value.(ast.Var); ok && l.isHost(x.Operand(1)) {
			l.hosts[v] = true
		}
		return false
	})
	for _, r := range m.Rules {
		if r.Head.Value != nil && len(r.Head.Args) == 0 && l.isHost(r.Head.Value) {
			l.hosts[headOf(r.Head.Ref())] = true
		}
	}
	return l.hosts
}
