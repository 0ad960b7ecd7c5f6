package rego

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// A matchLint looks for conditions on hosts that hold for hosts of other people as well, and for
// comparisons that never hold. It reads compiled modules, so it finds them by what is compared, through
// variables, rules, functions and data, and not by how that is written.
type matchLint struct {
	*origins
	opens    map[*ast.Rule]bool // rules that an allow or a ceiling may depend on
	patterns map[literal]bool   // texts that a function takes for a pattern
	found    []policy.Problem
}

// lintCompiled returns what a matchLint finds. A policy that does not compile has none.
func lintCompiled(sources []Source) []policy.Problem {
	set, err := parse(sources, false)
	if err != nil {
		return nil
	}
	c, err := set.check()
	if err != nil {
		return nil
	}
	l := matchLint{origins: newOrigins(newFlow(&set, c)), opens: opening(c), patterns: map[literal]bool{}}
	l.calls(l.pattern)
	l.calls(l.call)
	l.references()
	slices.SortFunc(l.found, compareProblems)
	return slices.Compact(l.found)
}

// opening returns the rules that the sets allow and ceiling depend on.
func opening(c *ast.Compiler) map[*ast.Rule]bool {
	seen := map[*ast.Rule]bool{}
	var visit func(r *ast.Rule)
	visit = func(r *ast.Rule) {
		if seen[r] {
			return
		}
		seen[r] = true
		for next := range c.Graph.Dependencies(r) {
			if rule, ok := next.(*ast.Rule); ok {
				visit(rule)
			}
		}
	}
	for _, m := range c.Modules {
		for _, r := range m.Rules {
			if name := string(headOf(r.Head.Ref())); rootOf(m.Package.Path) == "egress" && (name == "allow" || name == ceilingName) {
				visit(r)
			}
		}
	}
	return seen
}

// A literal is a text at its place in a module or in the data.
type literal struct {
	text, from, file string
	row, column      int
}

func literalOf(v constant) literal {
	l := literal{text: v.value.String(), from: v.from}
	if v.at != nil {
		l.file, l.row, l.column = v.at.File, v.at.Row, v.at.Col
	}
	return l
}

// pattern notes the texts with a star that a call takes apart or matches, as startswith(pattern, "*.") does.
// A comparison with such a text beside it is one of several ways to match.
func (l *matchLint) pattern(r *ast.Rule, call []*ast.Term) {
	at := map[string]int{"startswith": 1, "trim_prefix": 1, "trim_left": 1, "contains": 1, "replace": 1, "glob.match": 1, "egressd.host_matches": 2}[functionName(call)]
	if at == 0 || at >= len(call) {
		return
	}
	for _, v := range l.constants(r, call[at]) {
		if text, ok := v.value.(ast.String); ok && strings.Contains(string(text), "*") {
			l.patterns[literalOf(v)] = true
		}
	}
}

const hostFields = readsHost | readsRegistrable | readsSNI | readsQuestionName

// is reports whether a term is one of the fields, unchanged.
func (l *matchLint) is(r *ast.Rule, t *ast.Term, fields inputFields) bool {
	same := l.of(r, t).same
	return same&fields != 0 && same&^fields == 0
}

// derives reports whether a term is one of the fields, or was computed from one.
func (l *matchLint) derives(r *ast.Rule, t *ast.Term, fields inputFields) bool {
	from := l.of(r, t)
	all := from.same | from.derived
	return all&fields != 0 && all&^fields == 0
}

func (l *matchLint) say(r *ast.Rule, at *ast.Location, message string) {
	if at == nil || at.Row == 0 {
		at = r.Location
	}
	l.found = append(l.found, problemAt(at, message))
}

// placeOf is where a constant is written, or the term that leads to it in the data.
func placeFor(t *ast.Term, v constant) *ast.Location {
	if v.at != nil && v.at.Row > 0 {
		return v.at
	}
	return t.Location
}

// A match is how a built-in compares text with a host.
type match struct {
	host, with int // arguments
	judge      func(l *matchLint, text string) string
	list       bool // with is a list
}

// matches are the built-ins that match hosts by their spelling. The map is never written.
var matches = map[string]match{
	"endswith":                         {0, 1, (*matchLint).suffix, false},
	"strings.any_suffix_match":         {0, 1, (*matchLint).suffix, true},
	"trim_suffix":                      {0, 1, (*matchLint).suffix, false},
	"trim_right":                       {0, 1, (*matchLint).infix, false},
	"startswith":                       {0, 1, (*matchLint).prefix, false},
	"strings.any_prefix_match":         {0, 1, (*matchLint).prefix, true},
	"trim_prefix":                      {0, 1, (*matchLint).prefix, false},
	"trim_left":                        {0, 1, (*matchLint).infix, false},
	"trim":                             {0, 1, (*matchLint).infix, false},
	"contains":                         {0, 1, (*matchLint).infix, false},
	"indexof":                          {0, 1, (*matchLint).infix, false},
	"indexof_n":                        {0, 1, (*matchLint).infix, false},
	"strings.count":                    {0, 1, (*matchLint).infix, false},
	"split":                            {0, 1, (*matchLint).infix, false},
	"replace":                          {0, 1, (*matchLint).infix, false},
	"regex.match":                      {1, 0, (*matchLint).expression, false},
	"regex.find_n":                     {1, 0, (*matchLint).expression, false},
	"regex.find_all_string_submatch_n": {1, 0, (*matchLint).expression, false},
	"regex.split":                      {1, 0, (*matchLint).expression, false},
	"regex.replace":                    {0, 1, (*matchLint).expression, false},
	"glob.match":                       {2, 0, (*matchLint).glob, false},
}

func (l *matchLint) call(r *ast.Rule, call []*ast.Term) {
	name := functionName(call)
	if name == "glob.match" && len(call) > 3 && call[2].Value.Compare(ast.NullValue) == 0 {
		l.say(r, call[2].Location, `with null delimiters "*" matches dots and slashes too; write host.matches or path.matches, or the delimiters`)
		return
	}
	if m, ok := matches[name]; ok && max(m.host, m.with)+1 < len(call) && l.derives(r, call[m.host+1], hostFields) {
		l.match(r, m, name, call[m.host+1], call[m.with+1])
	}
	l.paths(r, name, call)
	switch name {
	case "eq", "equal", "neq":
		if len(call) >= 3 {
			l.equal(r, call[1], call[2])
			l.equal(r, call[2], call[1])
		}
	case "internal.member_2":
		if len(call) >= 3 {
			l.compared(r, call[1], l.members(r, call[2]), call[2])
			l.resulted(r, call[1], l.members(r, call[2]), call[2])
			l.headerNames(r, call[1], call[2])
			if l.is(r, call[2], readsAddresses) {
				l.compared(r, call[2], l.constants(r, call[1]), call[1])
			}
		}
	case "lt", "lte", "gt", "gte":
		l.ordered(r, call[1], call[2])
		l.ordered(r, call[2], call[1])
	case "object.get":
		if len(call) >= 3 {
			l.get(r, call[1], call[2])
		}
	case "substring":
		if len(call) > 2 && l.is(r, call[1], hostFields) {
			l.say(r, call[0].Location, "a part of a host at a fixed place is in other hosts as well; write host.matches with a pattern such as \"*.example.com\"")
		}
	}
}

// equal looks at one side of a comparison.
func (l *matchLint) equal(r *ast.Rule, field, with *ast.Term) {
	l.cased(r, field, with)
	l.compared(r, field, l.constants(r, with), with)
	l.resulted(r, field, l.constants(r, with), with)
	l.whole(r, field, with)
	l.segments(r, field, with)
}

// get looks at the key or the path of an object.get.
func (l *matchLint) get(r *ast.Rule, object, key *ast.Term) {
	path, isPath := key.Value.(*ast.Array)
	switch {
	case l.is(r, object, readsHeaders):
		l.headerName(r, l.values(r, key), key)
	case isPath && path.Len() > 1 && l.of(r, object).same&readsHeaders != 0:
		for i := range path.Len() - 1 {
			if path.Elem(i).Value.Compare(ast.String("headers")) == 0 {
				l.headerName(r, l.values(r, path.Elem(i+1)), path.Elem(i+1))
			}
		}
	case !isPath:
		l.compared(r, key, l.keys(r, object), object)
	}
}

// cased looks at the result of lower or upper, which has one case.
func (l *matchLint) cased(r *ast.Rule, made, with *ast.Term) {
	for _, call := range l.made[r][varOf(made)] {
		change := map[string]func(string) string{"lower": strings.ToLower, "upper": strings.ToUpper}[functionName(call)]
		if change == nil || l.is(r, call[1], hostFields) && functionName(call) == "lower" {
			continue
		}
		for _, v := range l.constants(r, with) {
			if text, ok := v.value.(ast.String); ok && change(string(text)) != string(text) {
				l.say(r, placeFor(with, v), fmt.Sprintf("%s never returns this; write %q", functionName(call), clip(change(string(text)), maxRuleBytes)))
			}
		}
	}
}

func (l *matchLint) match(r *ast.Rule, m match, name string, host, with *ast.Term) {
	values := l.constants(r, with)
	if m.list {
		values = append(values, l.members(r, with)...)
	}
	for _, v := range values {
		text, ok := v.value.(ast.String)
		if !ok {
			continue
		}
		if lower := strings.ToLower(string(text)); lower != string(text) && !strings.Contains(name, "regex") && l.is(r, host, hostFields) {
			l.say(r, placeFor(with, v), notLower(lower))
			return
		}
		said := m.judge(l, string(text))
		// A deny that holds for more hosts than it should refuses too much, and lets nothing pass.
		if said == "" || !l.opens[r] && (name == "startswith" || name == "contains" || name == "strings.any_prefix_match") && refuses(r) {
			continue
		}
		l.say(r, placeFor(with, v), said)
		return
	}
}

// refuses reports whether a rule denies or asks, and has no condition below not.
func refuses(r *ast.Rule) bool {
	name := string(headOf(r.Head.Ref()))
	return (name == "deny" || name == "ask") && !slices.ContainsFunc(r.Body, func(x *ast.Expr) bool { return x.Negated })
}

func (l *matchLint) suffix(text string) string {
	if text == "" || text[0] == '.' {
		return ""
	}
	shown := clip(text, maxRuleBytes)
	return "hosts that only end like it match as well, as evil" + shown + ` does; write host.matches with "*.` + shown + `"`
}

func (l *matchLint) prefix(text string) string {
	if text == "" {
		return ""
	}
	shown := clip(text, maxRuleBytes)
	if strings.Trim(text, "0123456789.") == "" {
		return "names that only begin like it match as well, as " + shown + `.evil.test does; write net.any with prefixes such as "10.0.0.0/8" and input.destination.addresses`
	}
	return "hosts that only begin like it match as well, as " + shown + `.evil.test does; write host.matches with a whole host, or "` + shown + `*.example.com"`
}

func (l *matchLint) infix(text string) string {
	if strings.IndexFunc(text, isLetterOrDigit) < 0 || text == "xn--" {
		return ""
	}
	shown := clip(text, maxRuleBytes)
	return "hosts that have it anywhere match as well, as " + strings.Trim(shown, ".") + `.evil.test does; write host.matches with "*.` + strings.Trim(shown, ".") + `", or with the whole host`
}

func isLetterOrDigit(c rune) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// expression checks a regular expression that a host must match.
func (l *matchLint) expression(text string) string {
	e, err := syntax.Parse(text, syntax.Perl)
	switch {
	case err != nil:
		return ""
	case !begins(e) || !ends(e):
		return "the pattern is not anchored at both ends, so longer hosts match as well; write host.matches, or ^ and $ around all of it"
	case sticks(e, false):
		return `in the pattern "." or ".*" stands where a host has another letter, so hosts of others match as well; write host.matches, or "[.]" for a dot`
	}
	return ""
}

// sticks reports whether any character may stand right before a literal one that is no dot: as in
// ".*example" and "api.example".
func sticks(e *syntax.Regexp, before bool) bool {
	switch e.Op {
	case syntax.OpConcat:
		for _, part := range e.Sub {
			if part.Op == syntax.OpLiteral && before && isLetterOrDigit(part.Rune[0]) || sticks(part, before) {
				return true
			}
			before = wild(part)
		}
	case syntax.OpAlternate:
		return slices.ContainsFunc(e.Sub, func(part *syntax.Regexp) bool { return sticks(part, before) })
	case syntax.OpCapture:
		return sticks(e.Sub[0], before)
	case syntax.OpLiteral:
		return before && isLetterOrDigit(e.Rune[0])
	}
	return false
}

// wild reports whether an expression ends with any character.
func wild(e *syntax.Regexp) bool {
	switch e.Op {
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return true
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat, syntax.OpCapture:
		return wild(e.Sub[0])
	case syntax.OpConcat:
		return len(e.Sub) > 0 && wild(e.Sub[len(e.Sub)-1])
	}
	return false
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

// glob checks a pattern whose star ends at a dot.
func (l *matchLint) glob(text string) string {
	for i := range len(text) {
		if text[i] == '*' && i+1 < len(text) && isLetterOrDigit(rune(text[i+1])) {
			return `"*" stands right before letters, so hosts that only end like it match as well; write host.matches with "*.` + strings.TrimLeft(clip(text, maxRuleBytes), "*.") + `"`
		}
	}
	if strings.HasSuffix(text, "*") && strings.Trim(text, "*.") != "" {
		return `"*" stands at the end, where hosts of others differ; write host.matches with the whole end of the host`
	}
	return ""
}

func notLower(lower string) string {
	return fmt.Sprintf("hosts are in lower case, so this is never one of them; write %q", clip(lower, maxRuleBytes))
}

// compared looks at what a field is compared with.
func (l *matchLint) compared(r *ast.Rule, field *ast.Term, with []constant, list *ast.Term) {
	if len(with) == 0 {
		return
	}
	from := l.of(r, field).same
	for _, c := range canonical {
		if from&c.fields == 0 || from&^c.fields != 0 {
			continue
		}
		for _, v := range with {
			text, ok := v.value.(ast.String)
			if !ok || l.patterns[literalOf(v)] {
				continue
			}
			if said := c.never(string(text)); said != "" {
				if v.from != "" {
					said = fmt.Sprintf("%s has %q: %s", v.from, clip(string(text), maxRuleBytes), said)
				}
				l.say(r, placeFor(list, v), said)
				if v.from != "" {
					break
				}
			}
		}
	}
}

// references finds names of headers in another case, and lookups by a field in a collection that has keys
// which the field never equals.
func (l *matchLint) references() {
	headers := httpRef.Append(ast.StringTerm("headers"))
	for name, m := range l.compiler.Modules {
		if strings.HasPrefix(name, libraryPrefix) {
			continue
		}
		for _, r := range m.Rules {
			ast.WalkTerms(r, func(t *ast.Term) bool {
				ref, ok := t.Value.(ast.Ref)
				switch {
				case !ok:
				case ref.HasPrefix(headers) && len(ref) > len(headers):
					l.headerName(r, l.values(r, ref[len(headers)]), t)
				default:
					l.lookups(r, ref, t)
					l.byName(r, ref, t)
				}
				return false
			})
		}
	}
}

// lookups looks at the keys of collections that a reference selects by a field.
func (l *matchLint) lookups(r *ast.Rule, ref ast.Ref, at *ast.Term) {
	for i := 1; i < len(ref); i++ {
		if ast.IsConstant(ref[i].Value) || l.of(r, ref[i]).same == 0 {
			continue
		}
		l.compared(r, ref[i], l.keys(r, ast.NewTerm(ref[:i].Copy())), at)
	}
}

// headerNames looks at names that are looked for among those of the headers.
func (l *matchLint) headerNames(r *ast.Rule, name, among *ast.Term) {
	if l.derives(r, among, readsHeaders) && !l.is(r, among, readsHeaders) {
		for _, call := range l.made[r][varOf(among)] {
			if functionName(call) == "object.keys" {
				l.headerName(r, l.values(r, name), name)
			}
		}
	}
}

func varOf(t *ast.Term) ast.Var {
	v, _ := t.Value.(ast.Var)
	return v
}

func (l *matchLint) headerName(r *ast.Rule, names []constant, at *ast.Term) {
	for _, v := range names {
		text, ok := v.value.(ast.String)
		lower := strings.ToLower(string(text))
		switch {
		case !ok:
		case lower == "host":
			l.say(r, placeFor(at, v), "policies do not see the header host; write input.destination.host")
		case isCredential(lower):
			l.say(r, placeFor(at, v), fmt.Sprintf("policies do not see the header %s, since it is a credential", clip(lower, maxRuleBytes)))
		case lower != string(text):
			l.say(r, placeFor(at, v), fmt.Sprintf("names of headers are in lower case, so there is never this one; write %q", clip(lower, maxRuleBytes)))
		}
	}
}
