package rego

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// boundedPrefix precedes the names of built-ins with a bound.
const boundedPrefix = "egressd.bounded."

const (
	// maxMade is the maximum number of bytes that one call may produce.
	maxMade = 4 << 20

	// maxNodes is the maximum number of values that one call may print.
	maxNodes = 1 << 16

	// maxMembers is the maximum number of members that one call may produce, or of pairs that it may
	// compare.
	maxMembers = 1 << 18
)

// A bound returns an upper limit of the bytes that a call can produce. For malformed operands it returns
// 0, since the built-in refuses them.
type bound func(operands []*ast.Term) int

// bounded are the built-ins that can produce large results from small operands in one step. A deadline
// cannot interrupt such a step. The map is never written.
var bounded = map[string]bound{
	"replace":       replaced,
	"regex.replace": replacedRegex,
	"sprintf":       printed,
	"json.marshal":  marshalled,
	"concat":        joined,
	"time.now_ns":   nothing, // partial evaluation finds the clock under this name

	"json.unmarshal":                   unmarshalled,
	"hex.encode":                       encoded,
	"base64.encode":                    encoded,
	"base64url.encode":                 encoded,
	"base64url.encode_no_pad":          encoded,
	"urlquery.encode":                  encoded,
	"array.concat":                     appended,
	"json.marshal_with_options":        marshalled,
	"yaml.marshal":                     marshalled,
	"yaml.unmarshal":                   unmarshalled,
	"object.union_n":                   flattened,
	"object.subset":                    crossed,
	"strings.split_n":                  divided,
	"array.flatten":                    flattened,
	"net.cidr_contains_matches":        crossed,
	"split":                            divided,
	"indexof_n":                        divided,
	"regex.split":                      found,
	"regex.find_n":                     found,
	"regex.find_all_string_submatch_n": found,
	ast.InternalTemplateString.Name:    interpolated,
	"regex.match":                      matched,
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

// boundCalls is the last compiler stage. It points every call to the bounded built-in, including generated
// calls and the targets of "with".
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

func replacedRegex(operands []*ast.Term) int {
	value, _ := operands[2].Value.(ast.String)
	n := size(operands[0])
	return n + saturated(n+1, len(value)+strings.Count(string(value), "$")*n) + searched(operands[1], operands[0], -1)
}

// printed counts the widths in a format and the printed operands. The operands count once, or once for
// each verb if a verb has an explicit index.
func printed(operands []*ast.Term) int {
	format, _ := operands[0].Value.(ast.String)
	widest := widestVerb(string(format))
	verbs, times := strings.Count(string(format), "%"), 1
	if strings.Contains(string(format), "[") {
		times = verbs
	}
	return len(format) + saturated(verbs, widest) + saturated(times, marshalled(operands[1:2]))
}

// widestVerb returns the largest number in the verbs of a format. If a verb takes its width from an
// operand, it returns more than maxMade. It treats everything from a percent sign to the next letter as a
// verb.
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

// marshalled counts the printed bytes and stops at the limit, because a value may contain the same value
// many times.
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

// saturated multiplies a and b. It returns maxMade+1 if the product exceeds maxMade.
func saturated(a, b int) int {
	if b > 0 && a > maxMade/b {
		return maxMade + 1
	}
	return a * b
}

// members converts a number of members to the bytes of a [bound].
func members(n int) int { return saturated(n, maxMade/maxMembers) }

// unmarshalled counts the text and every byte that can begin a member.
func unmarshalled(operands []*ast.Term) int {
	text, _ := operands[0].Value.(ast.String)
	n := 0
	for i := range len(text) {
		switch text[i] {
		case ',', '[', '{', ':', '\n', '-':
			n++
		}
	}
	return len(text) + members(n)
}

// encoded counts three bytes for each byte, the maximum of all encodings.
func encoded(operands []*ast.Term) int { return saturated(3, size(operands[0])) }

func appended(operands []*ast.Term) int { return members(width(operands[0]) + width(operands[1])) }

func flattened(operands []*ast.Term) int {
	total := 0
	if list, ok := operands[0].Value.(*ast.Array); ok {
		list.Foreach(func(t *ast.Term) { total += 1 + width(t) })
	}
	return members(total)
}

// width returns the number of members of a value.
func width(t *ast.Term) int {
	if object, ok := t.Value.(ast.Object); ok {
		return object.Len()
	}
	return length(t.Value)
}

// crossed counts the compared pairs. A scalar counts as one member.
func crossed(operands []*ast.Term) int {
	return members(saturated(max(width(operands[0]), 1), max(width(operands[1]), 1)))
}

func divided(operands []*ast.Term) int {
	text, _ := operands[0].Value.(ast.String)
	separator, _ := operands[1].Value.(ast.String)
	return members(strings.Count(string(text), string(separator)))
}

// found counts the matches, each with its groups. There is at most one match at each byte.
func found(operands []*ast.Term) int {
	pattern, _ := operands[0].Value.(ast.String)
	limit := -1
	if len(operands) > 2 {
		limit = atMost(operands[2])
	}
	matches := size(operands[1]) + 1
	if limit >= 0 {
		matches = min(matches, limit)
	}
	return members(saturated(matches, 1+strings.Count(string(pattern), "("))) + searched(operands[0], operands[1], limit)
}

// atMost returns the requested number of matches. It is negative if all are requested.
func atMost(t *ast.Term) int {
	number, _ := t.Value.(ast.Number)
	if n, ok := number.Int(); ok {
		return n
	}
	return -1
}

// interpolated counts the printed bytes of all parts of a template string.
func interpolated(operands []*ast.Term) int {
	total := 0
	if parts, ok := operands[0].Value.(*ast.Array); ok {
		parts.Foreach(func(t *ast.Term) { total += marshalled([]*ast.Term{t}) })
	}
	return total
}
