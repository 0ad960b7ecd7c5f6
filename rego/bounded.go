package rego

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// boundedPrefix stands before the names of built-ins that are asked first how much
// they are about to make.
const boundedPrefix = "egressd.bounded."

const (
	// maxMade is how many bytes one call may make.
	maxMade = 4 << 20

	// maxNodes is how many values one call may print.
	maxNodes = 1 << 16

	maxShift = 1 << 16

	// maxMembers is how many members one call may put together, or pairs compare.
	maxMembers = 1 << 18

	// maxDigits is how many digits the numbers of a product may have together.
	maxDigits = 1 << 16
)

// A bound says how many bytes a call could make, at most. What it does not
// understand it leaves to the built-in, which refuses it.
type bound func(operands []*ast.Term) int

// bounded are the built-ins that make much out of little in one step, which no
// deadline interrupts. It is never written.
var bounded = map[string]bound{
	"replace":           replaced,
	"strings.replace_n": replacedEach,
	"regex.replace":     replacedRegex,
	"sprintf":           printed,
	"bits.lsh":          shifted,
	"json.marshal":      marshalled,
	"yaml.marshal":      marshalled,
	"concat":            joined,
	"time.now_ns":       nothing, // by this name, looking ahead asks for the time too

	"json.marshal_with_options":        marshalled,
	"json.unmarshal":                   unmarshalled,
	"yaml.unmarshal":                   unmarshalled,
	"hex.encode":                       encoded,
	"base64.encode":                    encoded,
	"base64url.encode":                 encoded,
	"base64url.encode_no_pad":          encoded,
	"urlquery.encode":                  encoded,
	"array.concat":                     appended,
	"array.flatten":                    flattened,
	"object.union_n":                   flattened,
	"object.subset":                    crossed,
	"net.cidr_contains_matches":        crossed,
	"product":                          multiplied,
	"split":                            divided,
	"strings.split_n":                  divided,
	"indexof_n":                        divided,
	"regex.split":                      found,
	"regex.find_n":                     found,
	"regex.find_all_string_submatch_n": found,
	ast.InternalTemplateString.Name:    interpolated,
	"regex.match":                      matched,
	"regex.is_valid":                   validated,
	"regex.template_match":             templated,
	"regex.globs_match":                globbed,
	"glob.match":                       globMatched,
}

func (b bound) around(name string, original topdown.BuiltinFunc) topdown.BuiltinFunc {
	return func(c topdown.BuiltinContext, operands []*ast.Term, yield func(*ast.Term) error) error {
		if b(operands) > maxMade {
			return &topdown.Error{Code: topdown.BuiltinErr, Message: fmt.Sprintf("%s: it would make more than may be made at once, %d MiB or %d members, or take too many steps", name, maxMade>>20, maxMembers), Location: c.Location}
		}
		return original(c, operands, yield)
	}
}

// boundCalls is the last stage of a compilation: it points all calls at the bounded
// forms, those that the compiler has made and the ends of "with" among them.
func boundCalls(c *ast.Compiler) *ast.Error {
	for _, m := range c.Modules {
		for _, call := range callsIn(m) {
			if operator, ok := call[0].Value.(ast.Ref); ok && bounded[dotted(operator)] != nil {
				call[0].Value = located(ast.MustParseRef(boundedPrefix+dotted(operator)), call[0].Location)
			}
		}
	}
	return nil
}

func nothing([]*ast.Term) int { return 0 }

func size(t *ast.Term) int {
	s, _ := t.Value.(ast.String)
	return len(s)
}

func replaced(operands []*ast.Term) int {
	s, _ := operands[0].Value.(ast.String)
	old, _ := operands[1].Value.(ast.String)
	return len(s) + saturated(strings.Count(string(s), string(old)), size(operands[2]))
}

func replacedEach(operands []*ast.Term) int {
	longest := 0
	if patterns, ok := operands[0].Value.(ast.Object); ok {
		patterns.Foreach(func(_, value *ast.Term) { longest = max(longest, size(value)) })
	}
	n := size(operands[1])
	return n + saturated(n+1, longest)
}

func replacedRegex(operands []*ast.Term) int {
	value, _ := operands[2].Value.(ast.String)
	n := size(operands[0])
	return n + saturated(n+1, len(value)+strings.Count(string(value), "$")*n) + searched(operands[1], operands[0], -1)
}

// printed counts the widths that a format asks for, and everything that it is
// given: once, or as often as there are verbs where verbs say what they print.
func printed(operands []*ast.Term) int {
	format, _ := operands[0].Value.(ast.String)
	widest := widestVerb(string(format))
	verbs, times := strings.Count(string(format), "%"), 1
	if strings.Contains(string(format), "[") {
		times = verbs
	}
	return len(format) + saturated(verbs, widest) + saturated(times, marshalled(operands[1:2]))
}

// widestVerb returns the largest number in the verbs of a format, or more than may be
// made where one takes its width from what it is given. A verb reaches from its
// percent sign to a letter: what could be a part of one is taken for it.
func widestVerb(format string) int {
	verb, width, widest := false, 0, 0
	for _, c := range format {
		switch {
		case c == '%':
			verb, width = true, 0
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
			verb = false
		case !verb:
		case c == '*':
			return maxMade + 1
		case unicode.IsDigit(c):
			width = min(width*10+int(c-'0'), maxMade)
			widest = max(widest, width)
		default:
			width = 0
		}
	}
	return widest
}

func shifted(operands []*ast.Term) int {
	by, ok := operands[1].Value.(ast.Number)
	if n, exact := by.Int(); ok && (!exact || n > maxShift) {
		return maxMade + 1
	}
	return 0
}

func joined(operands []*ast.Term) int {
	total := 0
	add := func(t *ast.Term) { total += size(t) + size(operands[0]) }
	switch list := operands[1].Value.(type) {
	case ast.Set:
		list.Foreach(add)
	case *ast.Array:
		list.Foreach(add)
	}
	return total
}

// marshalled counts what would be printed, and gives up where it is too much: a
// value may hold itself many times over.
func marshalled(operands []*ast.Term) int {
	nodes, total := 0, 0
	ast.WalkTerms(operands[0], func(t *ast.Term) bool {
		nodes++
		total += size(t) + 8
		return nodes > maxNodes || total > maxMade
	})
	if nodes > maxNodes {
		return maxMade + 1
	}
	return total
}

// saturated multiplies, and stops where it is too much anyway.
func saturated(a, b int) int {
	if b > 0 && a > maxMade/b {
		return maxMade + 1
	}
	return a * b
}
