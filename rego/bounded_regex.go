package rego

import (
	"regexp/syntax"
	"strings"
	"sync"
	"unicode/utf8"

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

	// maxGlobs is how many comparisons of characters two globs may take.
	maxGlobs = 1 << 26
)

// steps turns a part of a limit into the bytes that a [bound] counts in.
func steps(n, most int) int {
	if n > most {
		return maxMade + 1
	}
	return 0
}

// patternSize returns about how many instructions a regular expression has, without making them;
// one that cannot be read has none.
func patternSize(pattern string) int {
	if len(pattern) > maxPattern {
		return maxPattern + 1
	}
	return patternSizes.of(pattern)
}

// sizes remembers those of patterns, which most policies write down once and ask about again and
// again. Its zero value is ready, and safe for concurrent use.
type sizes struct {
	mu    sync.Mutex // guards what follows
	known map[string]int
}

var patternSizes sizes

const sizesMost = 128

func (s *sizes) of(pattern string) int {
	s.mu.Lock()
	n, ok := s.known[pattern]
	s.mu.Unlock()
	if ok {
		return n
	}
	if expression, err := syntax.Parse(pattern, syntax.Perl); err == nil {
		n = expressionSize(expression)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= sizesMost || s.known == nil {
		s.known = map[string]int{}
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

// matched is for a pattern that a text is to match.
func matched(operands []*ast.Term) int {
	pattern := patternSize(textOf(operands[0]))
	return steps(pattern, maxPattern) + steps(saturatedTo(maxSteps, pattern, size(operands[1])), maxSteps)
}

// validated is for a pattern that is compiled alone.
func validated(operands []*ast.Term) int { return steps(patternSize(textOf(operands[0])), maxPattern) }

// searched is for a pattern that is searched for again and again.
func searched(pattern, text *ast.Term) int {
	n := patternSize(textOf(pattern))
	once := saturatedTo(maxSearch, n, size(text))
	return steps(n, maxPattern) + steps(saturatedTo(maxSearch, once, size(text)), maxSearch)
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

// globbed is for two globs of which it is asked whether any text matches both: each range of
// characters is put down one by one, and each part of one compared with each of the other.
func globbed(operands []*ast.Term) int {
	return steps(saturatedTo(maxGlobs, characters(textOf(operands[0])), characters(textOf(operands[1]))), maxGlobs)
}

// characters is how many characters a glob puts down, at most.
func characters(glob string) int {
	n := 0
	for rest := glob; rest != ""; {
		c, width := utf8.DecodeRuneInString(rest)
		rest = rest[width:]
		n++
		if to, ok := strings.CutPrefix(rest, "-"); ok {
			last, _ := utf8.DecodeRuneInString(strings.TrimPrefix(to, `\`))
			n += max(int(last-c), 0)
		}
	}
	return n
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
