package format

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// An Edge is the right edge of a tree of lines (RFC 6962 §2.1): the roots of the
// complete subtrees whose sizes are the binary digits of size, by level. It is
// all that has to be known of a tree to append to it. The zero value is that of
// the empty tree.
type Edge struct {
	Size   int64
	hashes [63]tlog.Hash // the k-th counts where bit k of size is set
}

// AppendLine appends the leaf of a line, which has no newline.
func (e *Edge) AppendLine(line []byte) { e.Append(0, tlog.RecordHash(line), nil) }

// Append appends a complete subtree of 1<<level leaves; size is a multiple of
// that. It calls seen, where there is one, with every node that is complete then:
// its level, its index among those of its level, and its hash.
func (e *Edge) Append(level int, h tlog.Hash, seen func(int, int64, tlog.Hash)) {
	grown := e.Size + 1<<level
	for ; ; level++ {
		if seen != nil {
			seen(level, (grown-1)>>level, h)
		}
		if e.Size>>level&1 == 0 {
			break
		}
		h = tlog.NodeHash(e.hashes[level], h)
	}
	e.hashes[level] = h
	e.Size = grown
}

// Root returns the hash of the whole tree.
func (e *Edge) Root() tlog.Hash {
	if e.Size == 0 {
		return sha256.Sum256(nil)
	}
	level := bits.TrailingZeros64(uint64(e.Size))
	h := e.hashes[level]
	for level++; level < len(e.hashes); level++ {
		if e.Size>>level&1 == 1 {
			h = tlog.NodeHash(e.hashes[level], h)
		}
	}
	return h
}

// Bytes returns the hashes of e, that of the largest subtree first.
func (e *Edge) Bytes() []byte {
	var all []byte
	for level := len(e.hashes) - 1; level >= 0; level-- {
		if e.Size>>level&1 == 1 {
			all = append(all, e.hashes[level][:]...)
		}
	}
	return all
}

var errEdge = errors.New("the hashes are not those of a tree of this size")

// NewEdge returns the edge of a tree of size lines from what bytes returned.
func NewEdge(size int64, hashes []byte) (e Edge, err error) {
	if size < 0 || len(hashes) != bits.OnesCount64(uint64(size))*tlog.HashSize {
		return e, errEdge
	}
	e.Size = size
	for level := len(e.hashes) - 1; level >= 0; level-- {
		if size>>level&1 == 1 {
			hashes = hashes[copy(e.hashes[level][:], hashes):]
		}
	}
	return e, nil
}

// A span of leaves from one size of the tree to another is its complete subtrees:
// each is the largest that begins where the one before ended. Their levels are
// spanLevels, in this order.
func spanLevels(from, to int64) (levels []int) {
	for from < to {
		level := bits.Len64(uint64(to-from)) - 1
		if from > 0 {
			level = min(level, bits.TrailingZeros64(uint64(from)))
		}
		levels = append(levels, level)
		from += 1 << level
	}
	return levels
}

// A SpanTree makes the hashes of a span of leaves. The zero value begins at leaf 0.
type SpanTree struct {
	From, To int64
	nodes    []spanNode
}

type spanNode struct {
	Level int
	Hash  tlog.Hash
}

// AppendLine appends the leaf of a line.
func (s *SpanTree) AppendLine(line []byte) {
	n := spanNode{0, tlog.RecordHash(line)}
	s.To++
	// The last two are joined where they are the two halves of one subtree.
	for last := len(s.nodes) - 1; last >= 0 && s.nodes[last].Level == n.Level && s.To>>n.Level&1 == 0; last-- {
		n = spanNode{n.Level + 1, tlog.NodeHash(s.nodes[last].Hash, n.Hash)}
		s.nodes = s.nodes[:last]
	}
	s.nodes = append(s.nodes, n)
}

// Next begins a span where this one ends, and returns the hashes of this one.
func (s *SpanTree) Next() []spanNode {
	nodes := s.nodes
	*s = SpanTree{From: s.To, To: s.To}
	return nodes
}

// AppendSpan appends a span that begins where e ends.
func (e *Edge) AppendSpan(to int64, hashes []tlog.Hash, seen func(int, int64, tlog.Hash)) error {
	levels := spanLevels(e.Size, to)
	if len(levels) != len(hashes) {
		return fmt.Errorf("lines %d to %d are %d subtrees, not %d", e.Size, to, len(levels), len(hashes))
	}
	for i, level := range levels {
		e.Append(level, hashes[i], seen)
	}
	return nil
}
