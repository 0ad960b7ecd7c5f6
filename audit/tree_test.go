package audit

import (
	"fmt"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"github.com/egressd/egressd/audit/internal/format"
)

// A hashStore keeps all hashes of a tree, for the library to check ours by.
type hashStore []tlog.Hash

func (s hashStore) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	all := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		all[i] = s[at]
	}
	return all, nil
}

// TestTheEdgeIsTheTree: roots, written edges and spans lead to what the library has.
func TestTheEdgeIsTheTree(t *testing.T) {
	const most = 300
	var store hashStore
	var lines [][]byte
	for n := range int64(most) {
		line := []byte(fmt.Sprint("line", n))
		hashes, err := tlog.StoredHashes(n, line, store)
		if err != nil {
			t.Fatal(err)
		}
		store, lines = append(store, hashes...), append(lines, line)
	}
	rootOf := func(n int64) tlog.Hash {
		h, err := tlog.TreeHash(n, store)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.Int64Range(0, most).Draw(t, "from")
		to := rapid.Int64Range(from, most).Draw(t, "to")
		var e format.Edge
		for _, line := range lines[:from] {
			e.AppendLine(line)
		}
		if e.Root() != rootOf(from) {
			t.Fatalf("the root of %d", from)
		}
		again, err := format.NewEdge(from, e.Bytes())
		if err != nil || again.Root() != e.Root() {
			t.Fatalf("the edge of %d, read again: %v", from, err)
		}
		if _, err := format.NewEdge(from, append(e.Bytes(), make([]byte, tlog.HashSize)...)); err == nil {
			t.Fatal("an edge with a hash too many")
		}
		s := format.SpanTree{From: from, To: from}
		for _, line := range lines[from:to] {
			s.AppendLine(line)
		}
		var hashes []tlog.Hash
		for _, n := range s.Next() {
			hashes = append(hashes, n.Hash)
		}
		seen := func(level int, index int64, h tlog.Hash) {
			if h != store[tlog.StoredHashIndex(level, index)] {
				t.Fatalf("node %d of level %d", index, level)
			}
		}
		if err := again.AppendSpan(to, hashes, seen); err != nil || again.Root() != rootOf(to) || again.Size != to {
			t.Fatalf("from %d to %d: %v", from, to, err)
		}
		if again.AppendSpan(to+1, nil, nil) == nil {
			t.Fatal("a span without its hashes")
		}
	})
}
