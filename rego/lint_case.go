package rego

import (
	"fmt"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// compared looks for text in upper case that a host is compared with: hosts come in
// lower case, so it is never equal to one.
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

// isField reports whether a term is a host as the input has it: what a policy has
// made of one may be in upper case.
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

// lowerCaseIn looks at a list, written out or of the data.
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
