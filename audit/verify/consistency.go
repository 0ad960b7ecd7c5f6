package verify

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/egressd/egressd/audit/internal/format"
)

// A Prover proves that the log in Dir has only grown between two checkpoints. It reads the log's files and takes no
// lock. A second proof continues where the first one ended. A Prover is not safe for concurrent use.
type Prover struct {
	Dir string

	at format.Mark // a place in a segment that was reached; zero where there is none
}

// Prove returns the consistency proof of RFC 6962 §2.1.2 between the tree of the first from records and the tree of
// checkpoint, as hashes in base64. The proof is empty if from is 0 or both trees are equal. If these records were
// pruned, from must be the size of a published checkpoint. Prove also fails if the checkpoint is of another log.
func (p *Prover) Prove(from int64, checkpoint []byte) ([]string, error) {
	to, err := format.ReadNote(checkpoint)
	switch {
	case err != nil:
		return nil, err
	case from < 0 || from > to.Size:
		return nil, fmt.Errorf("there is no proof from %d records to %d", from, to.Size)
	case from == 0 || from == to.Size:
		return nil, nil
	}
	needed, err := neededFor(from, to.Size)
	if err != nil {
		return nil, err
	}
	w := newWalker(p.Dir, "")
	if w.tree, err = p.before(from); err != nil {
		return nil, err
	}
	if err := w.advance(from); err != nil {
		return nil, err
	}
	w.tree.Nodes(needed.see)
	w.seen = needed.see
	if err := w.advance(to.Size); err != nil {
		return nil, err
	}
	if w.tree.Root() != to.Root {
		return nil, fmt.Errorf("the first %d records are not those that were signed", to.Size)
	}
	p.at = w.tree
	return needed.prove(from, to.Size)
}

// before returns a mark that is not behind so many records: the one that was reached
// last, or that of the beginning of a segment.
func (p *Prover) before(size int64) (m format.Mark, err error) {
	if p.at.Size > 0 && p.at.Size <= size {
		if is, err := format.IsFile(format.SegmentPath(p.Dir, p.at.Segment)); err == nil && is {
			return p.at, nil
		}
	}
	all, err := format.ListFiles(p.Dir)
	if err != nil {
		return m, err
	}
	past := &format.Pruned{Dir: p.Dir}
	for number := format.LastNumber(all.Notes); number > 1; number-- {
		sealed, err := past.SealOf(number - 1)
		if err != nil {
			return m, err
		}
		if sealed.Size <= size {
			return m, format.NewMark(&m, sealed)
		}
	}
	return format.Mark{Segment: 1}, nil
}

// advance reads lines until the tree has so many.
func (w *walker) advance(size int64) error {
	for w.tree.Size < size {
		lines, err := w.from()
		if err != nil {
			return err
		}
		for err == nil && w.tree.Size < size {
			err = lines.step(w)
		}
		lines.Close()
		if err == io.EOF {
			err = w.nextSegment()
		}
		if err != nil {
			return err
		}
	}
	if w.tree.Size > size {
		return fmt.Errorf("records were removed, and what is left of them does not tell the first %d", size)
	}
	return nil
}

// from opens the segment at hand where the tree ends.
func (w *walker) from() (lineSource, error) {
	c, err := format.OpenCursor(format.SegmentPath(w.dir, w.tree.Segment), format.Position{Offset: w.tree.Bytes, Seq: w.tree.Size})
	if err == nil {
		return &segmentLines{cursor: c}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) || w.tree.Bytes > 0 {
		return nil, err
	}
	p, err := w.past.Tree(w.tree.Segment)
	if err != nil {
		return nil, err
	}
	return &sealedSpans{newSpanFile(p)}, nil
}

// sealedSpans reads spans up to the end of a segment, and leaves out the spans that the tree has already.
type sealedSpans struct{ *spanFile }

func (s *sealedSpans) step(w *walker) error {
	for {
		head, err := s.lines.Peek(2 * len("9223372036854775807 "))
		if len(head) == 0 {
			return err
		}
		fields := strings.SplitN(string(head), " ", 3)
		to, ok := format.ParseNumber(fields[min(1, len(fields)-1)])
		if !ok || to > w.tree.Size {
			return s.spanFile.step(w)
		}
		if _, err := s.lines.ReadSlice('\n'); err != nil {
			return &format.DamageError{Segment: s.Name(), Offset: 0, Reason: errSpan.Error()}
		}
	}
}

// nextSegment goes on behind a segment that has ended.
func (w *walker) nextSegment() error {
	sealed, err := w.past.SealOf(w.tree.Segment)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the log ends behind %d records", w.tree.Size)
	case err != nil:
		return err
	case sealed.Size != w.tree.Size:
		return fmt.Errorf("segment %d ends behind %d records, and its seal says %d", w.tree.Segment, w.tree.Size, sealed.Size)
	}
	w.tree.Segment, w.tree.First, w.tree.Bytes = w.tree.Segment+1, w.tree.Size, 0
	return nil
}

// neededNodes are the nodes of a tree of which a proof is made.
type neededNodes map[int64]*tlog.Hash

// neededFor returns the nodes that the proof from one size to another is made of,
// their hashes not known yet.
func neededFor(from, to int64) (neededNodes, error) {
	needed := neededNodes{}
	_, err := tlog.ProveTree(to, from, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		for _, at := range indexes {
			needed[at] = nil
		}
		return make([]tlog.Hash, len(indexes)), nil
	}))
	return needed, err
}

// see takes note of a node where it is needed.
func (n neededNodes) see(level int, index int64, h tlog.Hash) {
	at := tlog.StoredHashIndex(level, index)
	if _, needed := n[at]; needed {
		n[at] = &h
	}
}

func (n neededNodes) prove(from, to int64) ([]string, error) {
	proof, err := tlog.ProveTree(to, from, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		var all []tlog.Hash
		for _, at := range indexes {
			if n[at] == nil {
				return nil, fmt.Errorf("the tree lacks node %d", at)
			}
			all = append(all, *n[at])
		}
		return all, nil
	}))
	var lines []string
	for _, h := range proof {
		lines = append(lines, h.String())
	}
	return lines, err
}

// NewestCheckpoint returns the newest checkpoint that stands in the log in dir, which
// somebody else may be writing, without verifying it. An error wraps [fs.ErrNotExist]
// where there is none.
func NewestCheckpoint(dir string) (newest []byte, err error) {
	all, err := format.ListFiles(dir)
	if err != nil {
		return nil, err
	}
	for i := len(all.Notes) - 1; i >= 0 && newest == nil; i-- {
		_, err := format.ReadNotes(format.NotePath(dir, all.Notes[i]), func(n []byte, _ *format.Checkpoint) error {
			newest = append(newest[:0], n...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("no checkpoint in %s: %w", dir, fs.ErrNotExist)
	}
	return newest, nil
}
