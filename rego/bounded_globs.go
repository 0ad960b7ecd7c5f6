package rego

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

const (
	// maxWalk is the maximum number of bytes that matching a glob may read. Each position where matching
	// may continue counts as walkPlace bytes, because the matcher stores it.
	maxWalk   = 1 << 28
	walkPlace = 256
)

// globMatched bounds the match of a text with a glob. The built-in tries each "*" at each position, for
// each path to it.
func globMatched(operands []*ast.Term) int {
	g := globWalk{rest: textOf(operands[0]), text: textOf(operands[2])}
	if delimiters, ok := operands[1].Value.(*ast.Array); ok {
		delimiters.Foreach(func(t *ast.Term) { g.delimiters = append(g.delimiters, []rune(textOf(t))...) })
		if len(g.delimiters) == 0 {
			g.delimiters = []rune{'.'}
		}
	}
	if len(g.rest) > maxPattern || saturatedTo(maxSteps, len(g.delimiters), len(g.text)) > maxSteps {
		return maxMade + 1
	}
	g.longest = len(g.text)
	if len(g.delimiters) > 0 {
		g.longest = 0
		for part := range strings.FieldsFuncSeq(g.text, func(r rune) bool { return slices.Contains(g.delimiters, r) }) {
			g.longest = max(g.longest, len(part))
		}
	}
	g.braces = strings.Contains(g.rest, "{")
	ways, parts := g.sequence(0)
	depth := 1
	if g.braces {
		depth = parts
	}
	ways = saturatedTo(maxWalk, max(ways, g.earlier), parts)
	cost := walkPlace*depth + len(g.text)/16 + g.reach() + len(textOf(operands[0]))/8
	return steps(saturatedTo(maxWalk, ways, cost), maxWalk)
}

// A globWalk counts the paths of a glob through a text. The count is an upper limit.
type globWalk struct {
	rest, text string
	delimiters []rune
	longest    int // longest part of the text without a delimiter
	braces     bool
	earlier    int // most paths before a "**", which discards earlier positions
}

// reach returns the cost of finding the next delimiter. A search for a single delimiter is fast.
func (g *globWalk) reach() int {
	switch n := len(g.delimiters); n {
	case 0:
		return 0
	case 1:
		return g.longest / 4
	default:
		return saturatedTo(maxWalk, g.longest, n+3)
	}
}

// sequence counts the paths through the remaining glob up to the end of an alternative, and the tokens of
// the longest path.
func (g *globWalk) sequence(depth int) (ways, parts int) {
	ways, parts = 1, 1
	for g.rest != "" {
		c, width := utf8.DecodeRuneInString(g.rest)
		if depth > 0 && (c == ',' || c == '}') {
			break
		}
		g.rest = g.rest[width:]
		switch c {
		case '\\':
			_, width = utf8.DecodeRuneInString(g.rest)
			g.rest = g.rest[width:]
		case '?':
			parts++
		case '[':
			g.class()
			parts++
		case '{':
			more, longest := g.alternatives(depth + 1)
			ways, parts = saturatedTo(maxWalk, ways, more), parts+longest+1
		case '*':
			ways = g.star(ways)
			parts++
		}
	}
	return ways, parts
}

func (g *globWalk) class() {
	for g.rest != "" {
		c := g.rest[0]
		g.rest = g.rest[1:]
		switch {
		case c == ']':
			return
		case c == '\\' && g.rest != "":
			g.rest = g.rest[1:]
		}
	}
}

func (g *globWalk) alternatives(depth int) (ways, parts int) {
	for {
		more, longest := g.sequence(depth)
		ways, parts = min(ways+more, maxWalk+1), max(parts, longest)
		if g.rest == "" {
			return ways, parts
		}
		end := g.rest[0] == '}'
		if g.rest = g.rest[1:]; end {
			return ways, parts
		}
	}
}

// star counts the paths after a star that ways paths have reached. A "**" discards the positions of
// earlier stars if the glob has no alternatives.
func (g *globWalk) star(ways int) int {
	places := len(g.text) + 1
	rest, all := strings.CutPrefix(g.rest, "*")
	if g.rest, all = rest, all || len(g.delimiters) == 0; !all {
		places = g.longest + 1
	}
	next, _ := utf8.DecodeRuneInString(g.rest)
	switch {
	case g.rest == "" && !g.braces:
		places = 1
	case next == utf8.RuneError || strings.ContainsRune(`*?[]{},\`, next):
	case !all && slices.Contains(g.delimiters, next):
		places = 1
	default:
		places = min(places, strings.Count(g.text, string(next))+1)
	}
	if all && !g.braces {
		g.earlier, ways = max(g.earlier, ways), 1
	}
	return saturatedTo(maxWalk, ways, places)
}
