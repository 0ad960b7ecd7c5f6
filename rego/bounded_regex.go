package rego

import (
	"regexp/syntax"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

const (
	// maxPattern is how many instructions a pattern may have, about: twenty bytes of
	// one, "(a{1,1000})" and so on, become a gigabyte, which is kept.
	maxPattern = 1 << 16

	// maxSteps is how many steps one match may take, at most: each byte of a text meets each
	// instruction.
	maxSteps = 1 << 24

	// maxSearch is the same where a text is searched once more behind each match, which most
	// texts and patterns never come near.
	maxSearch = 1 << 30
)

// steps turns a part of a limit into the bytes that a [bound] counts in.
func steps(n, most int) int {
	if n > most {
		return maxMade + 1
	}
	return 0
}

// A measure is what a regular expression costs. One that cannot be read costs nothing.
type measure struct {
	size              int // about how many instructions it has
	shortest, longest int // how many characters a match has; the longest stops at [maxSearch]
}

// measured measures a regular expression, without making its instructions.
func measured(pattern string) measure {
	if len(pattern) > maxPattern {
		return measure{size: maxPattern + 1}
	}
	return patternSizes.of(pattern)
}

func patternSize(pattern string) int { return measured(pattern).size }

// sizes remembers the measures of patterns, which most policies write down once and ask about again and
// again. Its zero value is ready, and safe for concurrent use.
type sizes struct {
	mu    sync.Mutex // guards what follows
	known map[string]measure
}

var patternSizes sizes

const sizesMost = 128

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
	if len(s.known) >= sizesMost || s.known == nil {
		s.known = map[string]measure{}
	}
	s.known[strings.Clone(pattern)] = n
	return n
}

func expressionSize(e *syntax.Regexp) int {
	n := 1 + len(e.Rune)
	if e.Op == syntax.OpCharClass { // one instruction, with a list
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

// matchLength returns how many characters a match has, at least and at most.
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

// matched is for a pattern that a text is to match.
func matched(operands []*ast.Term) int {
	pattern := patternSize(textOf(operands[0]))
	return steps(pattern, maxPattern) + steps(saturatedTo(maxSteps, pattern, size(operands[1])), maxSteps)
}

// validated is for a pattern that is compiled alone.
func validated(operands []*ast.Term) int { return steps(patternSize(textOf(operands[0])), maxPattern) }

// searched is for a pattern that is searched for again and again, for at most so many matches, or
// for all where that is less than none. All searches together pass over the text, and the last one
// to its end; each reads on behind where its match begins, but no further than a match can reach.
// An empty match beside another one is not counted, and its search is.
func searched(pattern, text *ast.Term, most int) int {
	p, n := measured(textOf(pattern)), size(text)
	searches := n/max(p.shortest, 1) + 1
	if most >= 0 && most < searches {
		searches = min(searches, 2*most+1)
	}
	read := saturatedTo(maxSearch, searches, min(n, p.longest+1)) + 2*n
	return steps(p.size, maxPattern) + steps(saturatedTo(maxSearch, p.size, read), maxSearch)
}

// templated is for patterns that stand between two signs in a text.
func templated(operands []*ast.Term) int {
	total, depth, begin := 0, 0, 0
	template, left, right := textOf(operands[0]), textOf(operands[2]), textOf(operands[3])
	if len(left) != 1 || len(right) != 1 {
		return 0
	}
	for i := range len(template) {
		switch {
		case template[i] == left[0]:
			if depth++; depth == 1 {
				begin = i + 1
			}
		case template[i] == right[0] && depth > 0:
			if depth--; depth == 0 {
				total += patternSize(template[begin:i])
			}
		}
	}
	total += len(template)
	return steps(total, maxPattern) + steps(saturatedTo(maxSteps, total, size(operands[1])), maxSteps)
}

// saturatedTo multiplies, and stops where it is more than most.
func saturatedTo(most, a, b int) int {
	if b > 0 && a > most/b {
		return most + 1
	}
	return a * b
}

func textOf(t *ast.Term) string {
	s, _ := t.Value.(ast.String)
	return string(s)
}
