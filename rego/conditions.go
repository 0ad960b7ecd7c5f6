package rego

import (
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

const (
	maxWays      = 8   // maximum number of alternatives in a reply
	maxWordBytes = 160 // maximum length of one condition
)

// allowedIf describes the requests that would be allowed, one alternative per line.
func allowedIf(os *opinions) (ways []string) {
	restrictions := unless(os)
	for _, o := range os.allow {
		words := restrictions
		if o.words != "" {
			words = append([]string{o.words}, restrictions...)
		}
		if len(words) > 0 {
			ways = append(ways, strings.Join(words, " and "))
		}
	}
	slices.Sort(ways)
	ways = slices.Compact(ways)
	return ways[:min(len(ways), maxWays)]
}

// unless describes the conditions that must not hold.
func unless(os *opinions) (words []string) {
	for _, o := range slices.Concat(os.deny, os.ask) {
		if o.words != "" {
			words = append(words, "not ("+o.words+")")
		}
	}
	slices.Sort(words)
	words = slices.Compact(words)
	return words[:min(len(words), maxWays)]
}

// wordsFor describes the remaining conditions of a rule, such as "method is GET or HEAD and path is below
// /repos/acme/".
func wordsFor(conditions []*ast.Expr, rule string) string {
	var words []string
	for _, expr := range conditions {
		if usesSupport(expr) {
			words = append(words, "rule "+rule+" holds")
			continue
		}
		words = append(words, inWords(expr))
	}
	if len(words) == 0 {
		return "rule " + rule + " holds"
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), " and ")
}

func inWords(expr *ast.Expr) string {
	words := sentence(expr)
	if words == "" {
		plain := expr.Copy()
		plain.Negated, plain.With = false, nil
		words = clip(strings.NewReplacer("input.http.", "", boundedPrefix, "").Replace(plain.String()), maxWordBytes)
	}
	if expr.Negated {
		return "not (" + words + ")"
	}
	return words
}

// sentence describes a common comparison. It returns "" for others.
func sentence(expr *ast.Expr) string {
	if !expr.IsCall() || len(expr.Operands()) != 2 {
		return ""
	}
	a, b := expr.Operand(0), expr.Operand(1)
	operator := strings.TrimPrefix(expr.Operator().String(), boundedPrefix)
	if flipped, ok := mirrored[operator]; ok && subject(a) == "" {
		a, b, operator = b, a, flipped
	}
	what, verb := subject(a), verbs[operator]
	if what == "" || verb == "" {
		return ""
	}
	objects, ok := literals(b)
	if !ok {
		return ""
	}
	return clip(what+" "+verb+" "+strings.Join(objects, " or "), maxWordBytes)
}

// mirrored are the comparisons with exchanged operands.
var mirrored = map[string]string{"eq": "eq", "equal": "equal", "neq": "neq", "lt": "gt", "gt": "lt", "lte": "gte", "gte": "lte"}

var verbs = map[string]string{
	"eq": "is", "equal": "is", "neq": "is not", "internal.member_2": "is",
	"lt": "is less than", "lte": "is at most", "gt": "is more than", "gte": "is at least",
	"startswith": "is below", "endswith": "ends with", "contains": "contains", "regex.match": "matches",
	"egressd.path_matches": "matches", "egressd.path_any": "matches",
}

// subject names a field of the request, such as "method" or "header user-agent". It returns "" for other
// terms.
func subject(t *ast.Term) string {
	ref, ok := t.Value.(ast.Ref)
	if !ok || !ref.HasPrefix(httpRef) || len(ref) < 3 {
		return ""
	}
	field, _ := ref[2].Value.(ast.String)
	switch {
	case len(ref) == 3 && field == "body_size":
		return "body size"
	case len(ref) == 3:
		return string(field)
	case field == "headers":
		if name, ok := ref[3].Value.(ast.String); ok {
			return "header " + string(name)
		}
	}
	return ""
}

var httpRef = ast.InputRootRef.Append(ast.StringTerm("http"))

// literals returns a constant, or the members of a set or array of constants, as text.
func literals(t *ast.Term) (words []string, ok bool) {
	ok = true
	add := func(t *ast.Term) bool {
		switch v := t.Value.(type) {
		case ast.String:
			words = append(words, string(v))
		case ast.Number, ast.Boolean:
			words = append(words, v.String())
		default:
			ok = false
		}
		return !ok || len(words) == maxWordBytes // the rest would be cut off
	}
	switch list := t.Value.(type) {
	case ast.Set:
		list.Until(add)
	case *ast.Array:
		list.Until(add)
	default:
		add(t)
	}
	return words, ok && len(words) > 0
}

// An allowedWay holds the conditions on the method under which a rule allows requests.
type allowedWay []*ast.Expr

// wayOf returns the conditions that are about nothing but the method. The copies may be kept.
func wayOf(conditions []*ast.Expr) *allowedWay {
	var w allowedWay
	for _, expr := range conditions {
		if fieldsIn(expr) == readsMethod && !usesSupport(expr) {
			w = append(w, expr.Copy())
		}
	}
	return &w
}

func waysOf(allow []opinion) (ways []allowedWay) {
	for _, o := range allow {
		switch {
		case o.way != nil:
			ways = append(ways, *o.way)
		case o.needs != 0: // it holds at a later stage
			ways = append(ways, nil)
		}
	}
	return ways
}

// takes reports whether the conditions hold for a method. A condition that is no comparison with constants
// counts as one that holds.
func (w allowedWay) takes(method string) bool {
	return !slices.ContainsFunc(w, func(expr *ast.Expr) bool {
		holds, known := comparison(expr, ast.String(method))
		return known && holds == expr.Negated
	})
}

// comparison decides a comparison of an input field, which has a value, with constants.
func comparison(expr *ast.Expr, value ast.Value) (holds, known bool) {
	if !expr.IsCall() || len(expr.Operands()) != 2 {
		return false, false
	}
	a, b := expr.Operand(0), expr.Operand(1)
	if subject(a) == "" {
		a, b = b, a
	}
	if subject(a) == "" || !ast.IsConstant(b.Value) {
		return false, false
	}
	is := func(t *ast.Term) bool { return t.Value.Compare(value) == 0 }
	switch expr.Operator().String() {
	case "eq", "equal":
		return is(b), true
	case "neq":
		return !is(b), true
	case "internal.member_2":
		switch list := b.Value.(type) {
		case ast.Set:
			return list.Contains(ast.NewTerm(value)), true
		case *ast.Array:
			return list.Until(is), true
		}
	}
	return false, false
}
