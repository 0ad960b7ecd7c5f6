package secret

import "math/bits"

// A trail runs a matcher over the characters that a stream stands for, and remembers
// where in the stream the last of them begin.
type trail struct {
	matcher *textMatcher
	node    int32
	read    int     // characters
	from    []int64 // of the last ones, at their number modulo its length, a power of two
}

func newTrail(m *textMatcher) trail {
	return trail{matcher: m, from: make([]int64, 1<<bits.Len(uint(m.longest)))}
}

// step reads a character that begins at a place of the stream. It returns the length
// of the longest pattern that ends with it, or 0.
func (t *trail) step(c byte, at int64) int {
	t.from[t.read&(len(t.from)-1)] = at
	t.read++
	t.node = t.matcher.step(t.node, c)
	return int(t.matcher.nodes[t.node].found)
}

func (t *trail) at() *patternNode { return &t.matcher.nodes[t.node] }

// depth is how many of the last characters begin a pattern.
func (t *trail) depth() int { return int(t.at().depth) }

// begin returns where the last n characters begin. n is at most the length of the longest pattern.
func (t *trail) begin(n int) int64 { return t.from[(t.read-n)&(len(t.from)-1)] }
