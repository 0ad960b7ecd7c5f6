package rego

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/policy"
)

// A constant that a function refuses at each evaluation is an error at load time, whether a request reaches
// it or not. The check follows it through variables, rules, data, and functions of the policy.

// A checkedArgument is one that a function takes apart: a pattern, a prefix, a time. The path leads to it within
// the argument: to the members of a set or an array, or to one of them.
type checkedArgument struct {
	at    int
	path  ast.Ref
	check func(string) error
}

// eachMember and second are paths within an argument. They are never written.
var (
	eachMember = ast.Ref{ast.VarTerm("$any")}
	second     = ast.Ref{ast.InternedTerm(1)}
)

// checkedArguments are the arguments by the name of the function in a compiled module. The map is never
// written.
var checkedArguments = map[string][]checkedArgument{
	"egressd.host_matches":           {{at: 1, check: hostPatternText}},
	"egressd.host_any":               {{at: 1, path: eachMember, check: hostPatternText}},
	"egressd.host_canonical":         {{at: 0, check: hostText}},
	"egressd.net_class":              {{at: 0, check: addressText}},
	"egressd.net_contains":           {{at: 0, check: prefixText}, {at: 1, check: addressText}},
	"egressd.net_reaches":            {{at: 0, check: prefixText}, {at: 1, check: addressText}},
	"egressd.net_any":                {{at: 0, path: eachMember, check: prefixText}, {at: 1, path: eachMember, check: addressText}},
	"egressd.path_matches":           {{at: 1, check: pathPatternText}},
	"egressd.path_any":               {{at: 1, path: eachMember, check: pathPatternText}},
	"data.egressd.time.between":      {{at: 1, check: zoneText}, {at: 2, check: clockText}, {at: 3, check: clockText}},
	"data.egressd.time.office_hours": {{at: 1, check: zoneText}},
	"data.egressd.time.on":           {{at: 1, check: zoneText}, {at: 2, path: eachMember, check: dayText}},

	"regex.match":                      {{at: 0, check: regexText}},
	"regex.replace":                    {{at: 1, check: regexText}},
	"regex.split":                      {{at: 0, check: regexText}},
	"regex.find_n":                     {{at: 0, check: regexText}},
	"regex.find_all_string_submatch_n": {{at: 0, check: regexText}},
	"glob.match":                       {{at: 0, check: globText}},
	"net.cidr_contains":                {{at: 0, check: cidrText}, {at: 1, check: cidrText}},
	"net.cidr_intersects":              {{at: 0, check: cidrText}, {at: 1, check: cidrText}},
	"net.cidr_contains_matches":        {{at: 0, path: eachMember, check: cidrText}, {at: 0, check: cidrText}},
	"time.clock":                       {{at: 0, path: second, check: zoneText}},
	"time.date":                        {{at: 0, path: second, check: zoneText}},
	"time.weekday":                     {{at: 0, path: second, check: zoneText}},
}

func hostPatternText(s string) error { _, err := hostPattern(s); return err }
func hostText(s string) error        { _, err := hostCanonical([]*ast.Term{ast.StringTerm(s)}); return err }
func addressText(s string) error     { _, err := address(ast.StringTerm(s)); return err }
func prefixText(s string) error      { _, err := prefix(ast.StringTerm(s)); return err }
func pathPatternText(s string) error { _, err := policy.PathMatches("/", s); return err }

func regexText(s string) error {
	_, err := regexp.Compile(s)
	if err != nil && strings.HasPrefix(s, "*") {
		return fmt.Errorf("%w; a pattern such as %q is for host.matches", err, "*.example.com")
	}
	return err
}

func globText(s string) error {
	operands := []*ast.Term{ast.StringTerm(s), ast.ArrayTerm(), ast.StringTerm("a.test")}
	return topdown.GetBuiltin("glob.match")(topdown.BuiltinContext{}, operands, func(*ast.Term) error { return nil })
}

func zoneText(s string) error {
	if _, err := time.LoadLocation(s); err != nil {
		return fmt.Errorf("%q is no time zone; write one such as \"UTC\" or \"Europe/Berlin\"", clip(s, maxRuleBytes))
	}
	return nil
}

func clockText(s string) error {
	if _, err := time.Parse("15:04", s); err != nil || len(s) != len("15:04") {
		return fmt.Errorf("%q is no time of day; write HH:MM, from \"00:00\" to \"23:59\"", clip(s, maxRuleBytes))
	}
	return nil
}

func dayText(s string) error {
	for day := time.Sunday; day <= time.Saturday; day++ {
		if day.String() == s {
			return nil
		}
	}
	return fmt.Errorf("%q is no day of the week; write it as \"Monday\"", clip(s, maxRuleBytes))
}

func cidrText(s string) error {
	if addressText(s) == nil {
		return nil
	}
	return prefixText(s)
}

// A constantCheck looks for such constants in the compiled modules of a policy.
type constantCheck struct {
	flow     *flow
	taken    map[string][]checkedArgument // by function, those of the policy included
	problems policy.FileError
}

// refusedConstants returns a problem for each constant that a function refuses.
func (set *sourceSet) refusedConstants(c *ast.Compiler) policy.FileError {
	k := constantCheck{flow: newFlow(set, c), taken: maps.Clone(checkedArguments)}
	for k.passOn() {
	}
	k.flow.calls(func(r *ast.Rule, call []*ast.Term) { k.call(r, call) })
	slices.SortFunc(k.problems, compareProblems)
	return slices.Compact(k.problems)
}

// passOn finds functions that pass a parameter on to an argument that is checked. It reports whether it
// found another one.
func (k *constantCheck) passOn() (more bool) {
	for _, m := range k.flow.compiler.Modules {
		for _, r := range m.Rules {
			for ; r != nil; r = r.Else {
				more = k.passedOn(r) || more
			}
		}
	}
	return more
}

func (k *constantCheck) passedOn(r *ast.Rule) (more bool) {
	if len(r.Head.Args) == 0 {
		return false
	}
	name := r.Ref().String()
	for _, call := range callsIn(r) {
		for _, a := range k.of(call) {
			at := slices.IndexFunc(r.Head.Args, call[a.at+1].Equal)
			if at < 0 || slices.ContainsFunc(k.taken[name], func(known checkedArgument) bool { return known.at == at && known.path.Equal(a.path) }) {
				continue
			}
			a.at = at
			k.taken[name], more = append(k.taken[name], a), true
		}
	}
	return more
}

// of returns the checked arguments that a call has.
func (k *constantCheck) of(call []*ast.Term) []checkedArgument {
	name := functionName(call)
	return slices.DeleteFunc(slices.Clone(k.taken[name]), func(a checkedArgument) bool { return a.at+1 >= len(call) })
}

// functionName returns the name of the called function without the prefix of bounded built-ins.
func functionName(call []*ast.Term) string {
	ref, ok := call[0].Value.(ast.Ref)
	if !ok {
		return ""
	}
	return strings.TrimPrefix(ref.String(), boundedPrefix)
}

func (k *constantCheck) call(r *ast.Rule, call []*ast.Term) {
	for _, a := range k.of(call) {
		t := call[a.at+1]
		for _, v := range k.flow.at(r, t, a.path, maxFlowDepth) {
			if err := a.refuses(v.value); err != nil {
				k.say(r, t, v, err)
				break // one problem for each argument
			}
		}
	}
}

// refuses returns why the function refuses a constant.
func (a *checkedArgument) refuses(v ast.Value) error {
	text, ok := v.(ast.String)
	if !ok {
		return fmt.Errorf("it wants text, not %s", ast.ValueName(v))
	}
	return a.check(string(text))
}

func (k *constantCheck) say(r *ast.Rule, t *ast.Term, v constant, err error) {
	message := err.Error()
	if v.from != "" {
		message = v.from + ": " + message
	}
	at := t.Location
	if v.at != nil {
		at = v.at
	}
	if at == nil || at.Row == 0 {
		at = r.Location
	}
	k.problems = append(k.problems, problemAt(at, message))
}
