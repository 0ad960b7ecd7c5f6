package rego

import (
	"cmp"
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
)

// Lint returns likely mistakes in a policy: host conditions that also hold for foreign hosts, negations
// that a request can bypass, and comparisons with an encoded query. It reads modules as written, without tests. Syntax errors are left to [Load].
func Lint(sources []Source) (found []policy.Problem) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}}
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
		slices.SortFunc(l.found, func(a, b policy.Problem) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		found = append(found, l.found...)
	}
	return found
}

// A linter examines one module.
type linter struct {
	hosts     map[ast.Var]bool // variables that hold a host
	addresses map[ast.Var]bool // variables that hold an address of the destination
	queries   map[ast.Var]bool // variables that hold the query of the request
	data      *sourceSet
	found     []policy.Problem

	// asks are the rules and functions that test in which network a host lies. The function returns the
	// tested term from the arguments of a call.
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

// pattern checks a regular expression that a host must match.
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

// begins reports whether every match begins at the start of the text.
func begins(e *syntax.Regexp) bool {
	return anchored(e, syntax.OpBeginText, func(parts []*syntax.Regexp) *syntax.Regexp { return parts[0] })
}

// ends reports whether every match ends at the end of the text.
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

// isHost reports whether a term holds a host: an input field, a variable that was assigned one, or a call
// that only changes its case.
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

// compared finds upper-case text compared with a host. Hosts are in lower case, so such a comparison never
// holds.
func (l *linter) compared(operator string, operands []*ast.Term) {
	if len(operands) < 2 {
		return
	}
	a, b := operands[0], operands[1]
	switch operator {
	case "eq", "equal", "neq":
		if l.isHost(b) {
			a, b = b, a
		}
		fallthrough
	case "startswith", "endswith", "contains":
		if l.isHost(a) && !(isUpper(b) && !isField(a)) {
			l.lowerCase(b)
		}
	case "internal.member_2":
		if l.isHost(a) && isField(a) {
			l.lowerCaseIn(b)
		}
	}
}

// isField reports whether a term is a host field of the input. A value computed from it may have upper
// case.
func isField(t *ast.Term) bool {
	ref, ok := t.Value.(ast.Ref)
	return ok && isHostField(ref)
}

func isUpper(t *ast.Term) bool {
	text, ok := t.Value.(ast.String)
	return ok && strings.ToUpper(string(text)) == string(text)
}

func (l *linter) lowerCase(t *ast.Term) {
	text, ok := t.Value.(ast.String)
	if lower := strings.ToLower(string(text)); ok && lower != string(text) {
		l.say(t, fmt.Sprintf("hosts are in lower case, so this is never one of them; write %q", clip(lower, maxRuleBytes)))
	}
}

// lowerCaseIn checks a literal list or a list of the data.
func (l *linter) lowerCaseIn(t *ast.Term) {
	switch list := t.Value.(type) {
	case ast.Set:
		list.Foreach(l.lowerCase)
	case *ast.Array:
		list.Foreach(l.lowerCase)
	case ast.Ref:
		if path := words(list[1:]); list.HasPrefix(ast.DefaultRootRef) && len(path) == len(list)-1 {
			l.lowerCaseData(t, path)
		}
	}
}

func (l *linter) lowerCaseData(at *ast.Term, path []string) {
	value, _ := l.data.valueAt(path)
	list, _ := value.([]any)
	for _, one := range list {
		if text, ok := one.(string); ok && strings.ToLower(text) != text {
			l.say(at, fmt.Sprintf("hosts are in lower case, and the list has %q, which is never one of them; write it in lower case, or ask host.any", clip(text, maxRuleBytes)))
			return
		}
	}
}

// comparisons are the calls that compare text without decoding it.
var comparisons = []string{
	"eq", "equal", "neq", "contains", "startswith", "endswith", "regex.match", "glob.match", "internal.member_2",
	"indexof", "split", "strings.any_prefix_match", "strings.any_suffix_match",
}

// query finds comparisons with the encoded query.
func (l *linter) query(operator string, operands []*ast.Term) {
	if !slices.Contains(comparisons, operator) {
		return
	}
	for i, t := range operands {
		other := operands[(i+1)%len(operands)]
		if !l.isQuery(t) || operator == "eq" && isVariable(other) || other.Value.Compare(ast.String("")) == 0 {
			continue // eq may be an assignment
		}
		l.say(t, "the query is as the client wrote it, where %61dmin stands for admin; compare what urlquery.decode_object(input.http.query) returns")
		return
	}
}

// isQuery reports whether a term is the query of the request, or the query in another case.
func (l *linter) isQuery(t *ast.Term) bool {
	switch v := t.Value.(type) {
	case ast.Ref:
		return dotted(v) == "input.http.query"
	case ast.Var:
		return l.queries[v]
	case ast.Call:
		operator, ok := v[0].Value.(ast.Ref)
		return ok && len(v) == 2 && slices.Contains([]string{"lower", "upper"}, dotted(operator)) && l.isQuery(v[1])
	}
	return false
}

func isVariable(t *ast.Term) bool {
	_, ok := t.Value.(ast.Var)
	return ok
}

func queryVariables(m *ast.Module) map[ast.Var]bool {
	l := linter{queries: map[ast.Var]bool{}}
	ast.WalkExprs(m, func(x *ast.Expr) bool {
		if x.IsAssignment() || x.IsEquality() {
			if v, ok := x.Operand(0).Value.(ast.Var); ok && l.isQuery(x.Operand(1)) {
				l.queries[v] = true
			}
		}
		return false
	})
	return l.queries
}
