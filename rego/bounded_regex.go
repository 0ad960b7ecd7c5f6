package rego

import (
	"regexp/syntax"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

const (
	// maxPattern is the approximate maximum number of instructions of a pattern. A pattern such as
	// "((a{1,1000}){1,1000})" would compile to a gigabyte, which is cached.
	maxPattern = 1 << 16

	// maxSteps is the maximum number of steps of a match. Each byte of the text may meet each instruction.
	maxSteps = 1 << 24

	// maxSearch is the maximum for repeated searches, which ordinary patterns never reach.
	maxSearch = 1 << 30
)

// steps converts a number of steps to the bytes of a [bound].
func steps(n, limit int) int {
	if n > limit {
		return maxMade + 1
	}
	return 0
}

// A measure is the cost of a regular expression. It is zero for an invalid one.
type measure struct {
	size              int // approximate number of instructions
	shortest, longest int // length of a match in characters; longest is at most [maxSearch]
}

// measured measures a regular expression without compiling it.
func measured(pattern string) measure {
	if len(pattern) > maxPattern {
		return measure{size: maxPattern + 1}
	}
	return patternSizes.of(pattern)
}

func patternSize(pattern string) int { return measured(pattern).size }

// sizes caches measures, since a policy uses the same patterns again and again. The zero value is ready to
// use and safe for concurrent use.
type sizes struct {
	mu    sync.Mutex // guards known
	known map[string]measure
}

var patternSizes sizes

const maxSizes = 128

func (s *sizes) of(pattern string) measure {
	s.mu.Lock()
	n, ok := s.known[pattern]
	s.mu.Unlock()
	if ok {
		return n
	}
	if expression, err := syntax.Parse(pattern, syntax.Perl); err == nil {
		shortest, longest := matchLength(expression)
		n = measure{expressionSize(expression), shortest, longest}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxSizes || s.known == nil {
		s.known = map[string]measure{}
	}
	s.known[strings.Clone(pattern)] = n
	return n
}

func expressionSize(e *syntax.Regexp) int {
	n := 1 + len(e.Rune)
	if e.Op == syntax.OpCharClass { // one instruction with a table
		n = 1 + len(e.Rune)/64
	}
	for _, sub := range e.Sub {
		n = min(n+expressionSize(sub), maxPattern+1)
	}
	if e.Op == syntax.OpRepeat {
		n = min(saturated(n, max(e.Min, e.Max, 1)), maxPattern+1)
	}
	return n
}

// matchLength returns the minimum and maximum length of a match in characters.
func matchLength(e *syntax.Regexp) (shortest, longest int) {
	switch e.Op {
	case syntax.OpLiteral:
		return len(e.Rune), len(e.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1, 1
	case syntax.OpCapture, syntax.OpPlus, syntax.OpStar, syntax.OpQuest, syntax.OpRepeat:
		shortest, longest = matchLength(e.Sub[0])
		return repeated(e, shortest, longest)
	case syntax.OpConcat:
		for _, sub := range e.Sub {
			least, most := matchLength(sub)
			shortest, longest = min(shortest+least, maxSearch), min(longest+most, maxSearch)
		}
	case syntax.OpAlternate:
		shortest = maxSearch
		for _, sub := range e.Sub {
			least, most := matchLength(sub)
			shortest, longest = min(shortest, least), max(longest, most)
		}
	}
	return shortest, longest
}

func repeated(e *syntax.Regexp, shortest, longest int) (int, int) {
	least, most := 1, 1
	switch e.Op {
	case syntax.OpPlus:
		most = -1
	case syntax.OpStar:
		least, most = 0, -1
	case syntax.OpQuest:
		least = 0
	case syntax.OpRepeat:
		least, most = e.Min, e.Max
	}
	if most < 0 {
		most = maxSearch
	}
	return min(saturatedTo(maxSearch, shortest, least), maxSearch), min(saturatedTo(maxSearch, longest, most), maxSearch)
}

func matched(operands []*ast.Term) int {
	pattern := patternSize(textOf(operands[0]))
	return steps(pattern, maxPattern) + steps(saturatedTo(maxSteps, pattern, size(operands[1])), maxSteps)
}

// searched bounds repeated searches for at most limit matches; a negative limit means all. The searches
// together pass over the text once, and the last one reaches its end. Each search reads beyond the
// beginning of its match, at most to the longest possible end. Empty matches next to another match are not
// returned but cost a search.
func searched(pattern, text *ast.Term, limit int) int {
	p, n := measured(textOf(pattern)), size(text)
	searches := n/max(p.shortest, 1) + 1
	if limit >= 0 && limit < searches {
		searches = min(searches, 2*limit+1)
	}
	read := saturatedTo(maxSearch, searches, min(n, p.longest+1)) + 2*n
	return steps(p.size, maxPattern) + steps(saturatedTo(maxSearch, p.size, read), maxSearch)
}

// saturatedTo multiplies a and b. It returns limit+1 if the product exceeds limit.
func saturatedTo(limit, a, b int) int {
	if b > 0 && a > limit/b {
		return limit + 1
	}
	return a * b
}

func textOf(t *ast.Term) string {
	s, _ := t.Value.(ast.String)
	return string(s)
}
