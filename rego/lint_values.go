package rego

import (
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// numbers are the fields that are numbers.
const numberFields = readsPort | readsBodySize | readsPID | readsTime | readsUsage

// textFields are the fields that are one text.
const textFields = hostFields | readsSandboxName | readsSandboxKind | readsVia | readsStage | readsMethod | readsPath | readsQuery | readsExe | readsQuestionType | readsAddressClass

func neverANumber(text string) string {
	return fmt.Sprintf("the field is a number, which never equals a text; write %s without quotes", clip(text, maxRuleBytes))
}

func neverAnAddress(text string) string {
	if strings.Contains(text, "/") {
		return fmt.Sprintf("an address has no prefix, so none equals this; write net.any([%q], input.destination.addresses)", clip(text, maxRuleBytes))
	}
	return ""
}

func neverAProgram(text string) string {
	if strings.HasPrefix(text, "/") || text == "" {
		return ""
	}
	return fmt.Sprintf("input.process.exe is a whole path, so it is never this; write one such as %q", "/usr/bin/"+clip(text, maxRuleBytes))
}

var addressClasses = []policy.AddressClass{
	"", policy.AddrLoopback, policy.AddrPrivate, policy.AddrLinkLocal, policy.AddrMetadata, policy.AddrCGNAT, policy.AddrThisNetwork,
	policy.AddrUnspecified, policy.AddrDocumentation, policy.AddrBenchmarking, policy.AddrMulticast, policy.AddrBroadcast,
	policy.AddrReserved, policy.AddrUniqueLocal, policy.AddrProtocol, policy.AddrDiscard, policy.AddrDeprecated,
	policy.AddrSegmentRoute, policy.AddrUnallocated, policy.AddrNAT64Local, policy.Addr6to4, policy.AddrTeredo, policy.AddrSelf, policy.AddrLocalName,
}

func neverAClass(text string) string {
	var names []string
	for _, c := range addressClasses {
		names = append(names, className(c))
	}
	if slices.Contains(names, text) {
		return ""
	}
	return "no address has this class; it is one of " + strings.Join(names, ", ")
}

func neverAWeekday(text string) string {
	days := []string{"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"}
	if slices.Contains(days, text) {
		return ""
	}
	return "time.weekday never returns this; it returns one of " + strings.Join(days, ", ")
}

// results says which constants the result of a function never equals. The map is never written.
var results = map[string]func(text string) string{"time.weekday": neverAWeekday, "egressd.net_class": neverAClass}

// resulted looks at what the result of a function is compared with.
func (l *matchLint) resulted(r *ast.Rule, made *ast.Term, with []constant, at *ast.Term) {
	for _, call := range l.made[r][varOf(made)] {
		never := results[functionName(call)]
		if never == nil {
			continue
		}
		for _, v := range with {
			if text, ok := v.value.(ast.String); ok {
				if said := never(string(text)); said != "" {
					l.say(r, placeFor(at, v), said)
				}
			}
		}
	}
}

// ordered looks at a number that is compared with a text: in the order of Rego every number is less.
func (l *matchLint) ordered(r *ast.Rule, number, with *ast.Term) {
	isClock := slices.ContainsFunc(l.made[r][varOf(number)], func(call []*ast.Term) bool { return functionName(call) == "time.now_ns" })
	if !isClock && !l.is(r, number, numberFields) {
		return
	}
	for _, v := range l.constants(r, with) {
		if _, ok := v.value.(ast.String); ok {
			l.say(r, placeFor(with, v), "a number is less than every text, whatever the text says; write a number, as units.parse_bytes(\"1MB\") and time.parse_rfc3339_ns(…) return one")
		}
	}
}

// paths looks at patterns that no path fits, since a path begins with a slash.
func (l *matchLint) paths(r *ast.Rule, name string, call []*ast.Term) {
	at := map[string][2]int{"startswith": {1, 2}, "strings.any_prefix_match": {1, 2}, "glob.match": {3, 1}, "regex.match": {2, 1}}[name]
	if at == [2]int{} || max(at[0], at[1]) >= len(call) || !l.is(r, call[at[0]], readsPath) {
		return
	}
	for _, v := range append(l.constants(r, call[at[1]]), l.members(r, call[at[1]])...) {
		text, ok := v.value.(ast.String)
		first := string(text)
		if name == "regex.match" {
			first, ok = strings.CutPrefix(first, "^")
		}
		if ok && first != "" && isLetterOrDigit(rune(first[0])) {
			l.say(r, placeFor(call[at[1]], v), fmt.Sprintf("paths begin with a slash, so none begins like this; write %q", clip("/"+first, maxRuleBytes)))
		}
	}
}

// whole looks at a text that is compared with a list of the data.
func (l *matchLint) whole(r *ast.Rule, field, with *ast.Term) {
	if !l.is(r, field, textFields|numberFields) {
		return
	}
	ref := l.dataOf(r, with)
	if value, there := l.set.valueAt(words(ref)); there && len(ref) > 0 && len(words(ref)) == len(ref) && !isScalar(value) {
		l.say(r, with.Location, fmt.Sprintf("data.%s is a list, which one value never equals; write: … in data.%[1]s", strings.Join(words(ref), ".")))
	}
}

// dataOf returns the path in the data that a term is, or nil.
func (l *matchLint) dataOf(r *ast.Rule, t *ast.Term) ast.Ref {
	for _, from := range append(l.assigned(r)[varOf(t)], t) {
		if ref, ok := from.Value.(ast.Ref); ok && ref.HasPrefix(ast.DefaultRootRef) && len(ref) > 1 {
			return ref[1:]
		}
	}
	return nil
}

// byName looks at a list of the data of which a text selects a member.
func (l *matchLint) byName(r *ast.Rule, ref ast.Ref, at *ast.Term) {
	if !ref.HasPrefix(ast.DefaultRootRef) {
		return
	}
	path := words(ref[1:])
	if len(path) == 0 || len(path)+1 >= len(ref) || !l.is(r, ref[len(path)+1], textFields) {
		return
	}
	if value, there := l.set.valueAt(path); there {
		if _, isList := value.([]any); isList {
			l.say(r, at.Location, fmt.Sprintf("data.%s is a list, whose keys are numbers; write: … in data.%[1]s", strings.Join(path, ".")))
		}
	}
}

// segments looks at the first part of a path that is split at the slashes, which is always empty.
func (l *matchLint) segments(r *ast.Rule, part, with *ast.Term) {
	ref, ok := part.Value.(ast.Ref)
	for _, from := range l.assigned(r)[varOf(part)] {
		if !ok {
			ref, ok = from.Value.(ast.Ref)
		}
	}
	if !ok || len(ref) < 2 || !ref[len(ref)-1].Equal(ast.IntNumberTerm(0)) || !l.splitsPath(r, ref[:len(ref)-1]) {
		return
	}
	for _, v := range l.constants(r, with) {
		if text, ok := v.value.(ast.String); ok && text != "" {
			l.say(r, placeFor(with, v), "a path begins with a slash, so its first part is empty; compare the part [1], or split trim_prefix(input.http.path, \"/\")")
		}
	}
}

// splitsPath reports whether a variable or a rule is the path, split at its slashes.
func (l *matchLint) splitsPath(r *ast.Rule, list ast.Ref) bool {
	whose, v := r, varOf(list[0])
	if list.HasPrefix(ast.DefaultRootRef) {
		rules := l.compiler.GetRulesExact(list)
		if len(rules) != 1 || rules[0].Head.Value == nil {
			return false
		}
		whose, v = rules[0], varOf(rules[0].Head.Value)
	}
	calls := l.made[whose][v]
	for _, from := range l.assigned(whose)[v] {
		calls = append(calls, l.made[whose][varOf(from)]...)
	}
	return slices.ContainsFunc(calls, func(call []*ast.Term) bool {
		return functionName(call) == "split" && len(call) > 2 && l.is(whose, call[1], readsPath) && call[2].Value.Compare(ast.String("/")) == 0
	})
}
