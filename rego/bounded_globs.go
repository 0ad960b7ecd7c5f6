package rego

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
	gintersect "github.com/yashtewari/glob-intersection"
)

const (
	// maxGlobs is the maximum number of pairs of characters of two globs.
	maxGlobs = 1 << 22

	// maxPairs is the maximum number of pairs of tokens of two globs with repetitions.
	maxPairs = 1 << 20

	// maxMeetings is the maximum number of comparisons of characters for two globs.
	maxMeetings = 1 << 24

	// maxWalk is the maximum number of bytes that matching a glob may read. Each position where matching
	// may continue counts as walkPlace bytes, because the matcher stores it.
	maxWalk   = 1 << 28
	walkPlace = 256
)

// globbed bounds the test whether a text can match two globs. The built-in expands each character range.
// It compares the remainders again for each path to them, without memory of earlier comparisons.
func globbed(operands []*ast.Term) int {
	one, other := textOf(operands[0]), textOf(operands[1])
	if !strings.ContainsAny(one+other, "*+") {
		return steps(characters(one)+characters(other), maxGlobs)
	}
	weight := 1
	if strings.Contains(one, "[") && strings.Contains(other, "[") {
		weight = max(characters(one), characters(other))
	}
	if saturatedTo(maxGlobs, characters(one), characters(other)) > maxGlobs {
		return maxMade + 1
	}
	a, errA := gintersect.NewGlob(one)
	b, errB := gintersect.NewGlob(other)
	if errA != nil || errB != nil {
		return 0
	}
	if saturatedTo(maxPairs, len(a)+1, len(b)+1) > maxPairs {
		return maxMade + 1
	}
	return steps(saturatedTo(maxMeetings, weight, newIntersection(a, b).count()), maxMeetings)
}

// An intersection counts the steps of gintersect for two globs with a table instead of recursion. It
// follows the functions of that library and assumes that no path succeeds. An entry is the count for two
// remainders, at most [maxMeetings].
type intersection struct {
	a, b   gintersect.Glob
	normal []int32
	starA  []int32 // the first token of a repeats and consumes tokens of b
	starB  []int32
}

func newIntersection(a, b gintersect.Glob) *intersection {
	n := (len(a) + 1) * (len(b) + 1)
	return &intersection{a: a, b: b, normal: make([]int32, n), starA: make([]int32, n), starB: make([]int32, n)}
}

func (m *intersection) at(i, j int) int { return i*(len(m.b)+1) + j }

// count takes the maximum over all starting points, because the library skips equal prefixes.
func (m *intersection) count() int {
	most := int32(0)
	for i := len(m.a); i >= 0; i-- {
		for j := len(m.b); j >= 0; j-- {
			m.fill(i, j)
			most = max(most, m.normal[m.at(i, j)])
		}
	}
	return int(most)
}

func (m *intersection) fill(i, j int) {
	at := m.at(i, j)
	m.normal[at], m.starA[at], m.starB[at] = 1, 1, 1
	if i == len(m.a) || j == len(m.b) {
		return
	}
	below, right := m.at(i+1, j), m.at(i, j+1)
	alike := gintersect.Match(m.a[i], m.b[j])
	flagA, flagB := m.a[i].Flag(), m.b[j].Flag()
	if alike {
		if flagA != gintersect.FlagNone {
			m.starA[at] = sum(1, m.starA[right])
		}
		if flagB != gintersect.FlagNone {
			m.starB[at] = sum(1, m.starB[below])
		}
	}
	if i+1 < len(m.a) && flagA != gintersect.FlagNone && gintersect.Match(m.a[i+1], m.b[j]) {
		m.starA[at] = sum(m.starA[at], m.normal[below])
	}
	if j+1 < len(m.b) && flagB != gintersect.FlagNone && gintersect.Match(m.b[j+1], m.a[i]) {
		m.starB[at] = sum(m.starB[at], m.normal[right])
	}
	m.normal[at] = m.first(i, j, alike)
}

// first counts the steps by the repetitions of the two first tokens.
func (m *intersection) first(i, j int, alike bool) int32 {
	below, right := m.at(i+1, j), m.at(i, j+1)
	flagA, flagB := m.a[i].Flag(), m.b[j].Flag()
	switch {
	case flagA == gintersect.FlagStar:
		return sum(1, m.starA[m.at(i, j)])
	case flagA == gintersect.FlagNone && flagB == gintersect.FlagStar:
		return sum(1, m.starB[m.at(i, j)])
	case !alike:
		return 1
	case flagA == gintersect.FlagPlus && flagB != gintersect.FlagNone:
		return sum(1, m.starA[right], m.normal[below])
	case flagA == gintersect.FlagPlus:
		return sum(1, m.starA[right])
	case flagB == gintersect.FlagPlus:
		return sum(1, m.starB[below])
	}
	return sum(1, m.normal[m.at(i+1, j+1)])
}

func sum(counts ...int32) int32 {
	total := int32(0)
	for _, n := range counts {
		total = min(total+n, maxMeetings+1)
	}
	return total
}

// characters returns an upper limit of the characters that a glob expands to.
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
