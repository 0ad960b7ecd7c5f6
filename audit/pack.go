package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

// packMost bounds what is moved at a time, since no checkpoint is signed meanwhile.
const packMost = 64 << 20

// pack appends the remaining files of pruned segments to one file, as blocks. The segment before the current one
// keeps its files, since Open reads them. The caller holds signing. After an error each file is in its old
// place or in both places, and the next call continues.
//
// A block counts only if its segment has no files, and the files are removed after the block is durable. While both
// exist, the block may be incomplete on disk, so pack writes it again.
func (l *Log) pack() error {
	files, err := format.ListFiles(l.dir)
	if err != nil {
		return err
	}
	if err := l.past.Read(); err != nil {
		return err
	}
	if torn, err := l.past.Torn(); err != nil {
		return err
	} else if torn {
		return &format.DamageError{Segment: format.RemovedPath(l.dir), Offset: l.past.End(), Reason: "what stands there is no part of what was removed"}
	}
	kept := len(l.past.Blocks)
	for kept > 0 && files.Whole(kept) {
		kept--
	}
	if err := l.dropPacked(files, kept); err != nil {
		return err
	}
	to := kept
	for to+1 < l.notary.segment-1 && files.Whole(to+1) && !slices.Contains(files.Logs, to+1) {
		to++
	}
	if to == kept {
		return nil
	}
	last, err := l.writeBlocks(kept, to)
	if err != nil {
		return err
	}
	for number := kept + 1; number <= last; number++ {
		if err := l.dropFiles(number); err != nil {
			return err
		}
	}
	return nil
}

// dropPacked removes what a crash has left of files whose blocks are durable, which is
// those of the first segments, so many.
func (l *Log) dropPacked(files *format.Files, blocks int) error {
	left := slices.Compact(slices.Sorted(slices.Values(slices.Concat(files.Notes, files.Trees))))
	for _, number := range left {
		if number > blocks {
			return nil
		}
		if slices.Contains(files.Logs, number) {
			continue
		}
		if err := l.sameAsBlock(number); err != nil {
			return err
		}
		if err := l.dropFiles(number); err != nil {
			return err
		}
	}
	return nil
}

// sameAsBlock compares the files of a segment with its block.
func (l *Log) sameAsBlock(number int) error {
	f, err := format.OpenFile(format.RemovedPath(l.dir))
	if err != nil {
		return err
	}
	defer f.Close()
	b := l.past.Blocks[number-1]
	for path, in := range map[string]*io.SectionReader{
		format.NotePath(l.dir, number): io.NewSectionReader(f, b.At, b.Notes),
		format.TreePath(l.dir, number): io.NewSectionReader(f, b.At+b.Notes, b.Tree),
	} {
		left, err := format.OpenFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		same, err := sameText(left, in)
		if err := errors.Join(err, left.Close()); err != nil {
			return err
		}
		if !same {
			return &format.DamageError{Segment: path, Offset: 0, Reason: "it is not what " + format.RemovedName + " has of it"}
		}
	}
	return nil
}

func sameText(a, b io.Reader) (bool, error) {
	var one, other [32 << 10]byte
	for {
		n, err := io.ReadFull(a, one[:])
		m, otherErr := io.ReadFull(b, other[:])
		if !bytes.Equal(one[:n], other[:m]) {
			return false, nil
		}
		for _, err := range []error{err, otherErr} {
			if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
				return false, err
			}
		}
		if err != nil || otherErr != nil {
			return true, nil // both, since they are of one length
		}
	}
}

func (l *Log) dropFiles(number int) error {
	for _, path := range []string{format.TreePath(l.dir, number), format.NotePath(l.dir, number)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// writeBlocks makes the blocks of the segments behind the first kept durable, up to one
// or as many as are moved at a time. It returns the number of the last one.
func (l *Log) writeBlocks(kept, to int) (last int, err error) {
	path := format.RemovedPath(l.dir)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, format.FileRW)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var end int64
	if kept > 0 {
		end = l.past.Blocks[kept-1].End()
	}
	l.past.Blocks = l.past.Blocks[:kept]
	if l.past.Size > end {
		if err := f.Truncate(end); err != nil {
			return 0, err
		}
	}
	var written int64
	for last = kept; last < to && written < packMost; last++ {
		n, err := l.writeBlock(f, last+1)
		if err != nil {
			return 0, errors.Join(fmt.Errorf("write %s: %w", path, err), f.Truncate(end)) // or it stays in both places
		}
		written += n
	}
	return last, errors.Join(syncData(f), durable.SyncFolder(l.dir), linked(f, path))
}

// writeBlock writes the block of one segment.
func (l *Log) writeBlock(to *os.File, number int) (size int64, err error) {
	notes, err := format.OpenFile(format.NotePath(l.dir, number))
	if err != nil {
		return 0, err
	}
	defer notes.Close()
	tree, err := format.OpenFile(format.TreePath(l.dir, number))
	if err != nil {
		return 0, err
	}
	defer tree.Close()
	notesInfo, err := notes.Stat()
	if err != nil {
		return 0, err
	}
	treeInfo, err := tree.Stat()
	if err != nil {
		return 0, err
	}
	head := format.HeadOf(number, notesInfo.Size(), treeInfo.Size())
	size = int64(len(head)) + notesInfo.Size() + treeInfo.Size()
	all := io.MultiReader(bytes.NewReader(head), io.LimitReader(notes, notesInfo.Size()), io.LimitReader(tree, treeInfo.Size()))
	n, err := io.Copy(to, all)
	if err == nil && n != size {
		err = errors.New("a file was cut while it was read")
	}
	return size, err
}
