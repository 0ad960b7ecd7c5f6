package secret

import "strings"

// maxWindow bounds the window that skip looks through. A longer one moves in
// longer steps and is stopped more often by what looks like a pattern.
const maxWindow = 16

// A textMatcher finds all occurrences of several patterns in a stream of bytes. It
// is an Aho-Corasick automaton with failure links, whose memory grows with the
// patterns' length alone, behind a filter after Wu and Manber that steps over
// bytes at which nothing can begin. Its time is linear in the stream: the
// filter moves by a byte at least each time that it looks, and the automaton
// never reads a byte twice. It is safe for concurrent use.
type textMatcher struct {
	nodes   []patternNode // a trie; the root is 0
	root    [256]int32    // the root's children by label, 0 for none
	window  int           // no pattern is shorter
	longest int           // no pattern is longer
	blank   bool          // a pattern has a blank

	// shift says for two bytes at a window's end how far the window may move
	// without leaving behind the beginning of an occurrence.
	shift [1 << 16]uint8
}

// A patternNode stands for the beginning of a pattern. The automaton is at the longest
// one that what it has read ends with.
type patternNode struct {
	child   int32 // the first one, 0 for none
	sibling int32 // the parent's next child, 0 for none
	fail    int32 // the longest proper suffix of this beginning that begins a pattern too
	depth   int32 // its length
	found   int32 // length of the longest pattern that it ends with, 0 for none
	pattern int32 // which one that is
	label   byte  // its last byte
}

// newMatcher returns a matcher of patterns that have at least two bytes each.
func newMatcher(patterns []string) *textMatcher {
	m := &textMatcher{nodes: make([]patternNode, 1), window: maxWindow}
	for i, p := range patterns {
		m.insert(p, int32(i))
		m.window, m.longest = min(m.window, len(p)), max(m.longest, len(p))
		m.blank = m.blank || strings.ContainsAny(p, " \t")
	}
	m.link()
	m.fillShift(patterns)
	return m
}

func (m *textMatcher) insert(pattern string, which int32) {
	at := int32(0)
	for i := range len(pattern) {
		next := m.child(at, pattern[i])
		if next == 0 {
			next = m.grow(at, pattern[i])
		}
		at = next
	}
	m.nodes[at].found, m.nodes[at].pattern = m.nodes[at].depth, which
}

func (m *textMatcher) grow(parent int32, label byte) int32 {
	n := int32(len(m.nodes))
	m.nodes = append(m.nodes, patternNode{label: label, depth: m.nodes[parent].depth + 1, sibling: m.nodes[parent].child})
	m.nodes[parent].child = n
	if parent == 0 {
		m.root[label] = n
	}
	return n
}

func (m *textMatcher) child(n int32, label byte) int32 {
	for c := m.nodes[n].child; c != 0; c = m.nodes[c].sibling {
		if m.nodes[c].label == label {
			return c
		}
	}
	return 0
}

// link sets failure links, nearer nodes first.
func (m *textMatcher) link() {
	queue := make([]int32, 1, len(m.nodes))
	for i := 0; i < len(queue); i++ {
		parent := queue[i]
		for c := m.nodes[parent].child; c != 0; c = m.nodes[c].sibling {
			queue = append(queue, c)
			n := &m.nodes[c]
			if parent != 0 {
				n.fail = m.step(m.nodes[parent].fail, n.label)
			}
			if n.found == 0 {
				n.found, n.pattern = m.nodes[n.fail].found, m.nodes[n.fail].pattern
			}
		}
	}
}

func (m *textMatcher) fillShift(patterns []string) {
	for i := range m.shift {
		m.shift[i] = uint8(m.window - 1)
	}
	for _, p := range patterns {
		for end := 2; end <= m.window; end++ {
			pair := int(p[end-2]) | int(p[end-1])<<8
			m.shift[pair] = min(m.shift[pair], uint8(m.window-end))
		}
	}
}

// step returns the node after n when c was read.
func (m *textMatcher) step(n int32, c byte) int32 {
	for n != 0 {
		if next := m.child(n, c); next != 0 {
			return next
		}
		n = m.nodes[n].fail
	}
	return m.root[c]
}

// next reads b from index i and node n up to the end of the next occurrence of a pattern. It returns the index
// after the bytes read, the new node, and the length of the longest pattern that ends there. The length is 0
// at the end of b.
func (m *textMatcher) next(b []byte, i int, n int32) (end int, at int32, length int) {
	for i < len(b) {
		if n == 0 {
			i = m.skip(b, i)
		}
		n = m.step(n, b[i])
		i++
		if found := m.nodes[n].found; found != 0 {
			return i, n, int(found)
		}
	}
	return i, n, 0
}

// skip returns the first index from i on at which an occurrence may begin. It is
// below len(b), as i has to be.
func (m *textMatcher) skip(b []byte, i int) int {
	for last := i + m.window - 1; last < len(b); last = i + m.window - 1 {
		step := m.shift[int(b[last-1])|int(b[last])<<8]
		if step == 0 {
			break
		}
		i += int(step)
	}
	return i
}
