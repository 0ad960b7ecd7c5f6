package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// RemovedName is the file that holds what is left of the first segments, in blocks
// (docs/reference/audit-format.md): what would else be two files of each for ever.
const RemovedName = "removed"

func RemovedPath(dir string) string { return filepath.Join(dir, RemovedName) }

// A block is what is left of one segment: its checkpoints, and behind them its tree.
type block struct{ At, Notes, Tree int64 }

func (b block) End() int64 { return b.At + b.Notes + b.Tree }

// Pruned finds what proves the pruned segments of a log: in files of their own or in blocks. It caches known blocks,
// and reads the file again for an unknown one. It is not safe for concurrent use.
type Pruned struct {
	Dir    string
	Blocks []block // of the segments 1, 2, …
	Size   int64   // of the file when it was read
}

// maxHead is more than the head of a block can have.
const maxHead = 64

// Read reads the heads of the blocks that are not known. It is no error that there is
// no file.
func (r *Pruned) Read() error {
	f, err := OpenFile(RemovedPath(r.Dir))
	if errors.Is(err, fs.ErrNotExist) {
		r.Blocks, r.Size = nil, 0
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if r.Size = info.Size(); r.Size < r.End() {
		r.Blocks = nil
	}
	for {
		b, ok, err := r.next(f)
		if err != nil || !ok {
			return err
		}
		r.Blocks = append(r.Blocks, b)
	}
}

// End is where the whole blocks end.
func (r *Pruned) End() int64 {
	if len(r.Blocks) == 0 {
		return 0
	}
	return r.Blocks[len(r.Blocks)-1].End()
}

// next reads the head behind the last block that is known. It is not ok where no whole
// block stands there.
func (r *Pruned) next(f io.ReaderAt) (b block, ok bool, err error) {
	text := make([]byte, maxHead)
	n, err := f.ReadAt(text, r.End())
	if err != nil && err != io.EOF {
		return b, false, err
	}
	line, _, ok := bytes.Cut(text[:n], []byte("\n"))
	fields := bytes.Split(line, []byte(" "))
	if !ok || len(fields) != 3 {
		return b, false, nil
	}
	var numbers [3]int64
	for i, field := range fields {
		if numbers[i], ok = ParseNumber(string(field)); !ok {
			return b, false, nil
		}
	}
	b = block{r.End() + int64(len(line)) + 1, numbers[1], numbers[2]}
	room := r.Size - b.At
	ok = numbers[0] == int64(len(r.Blocks))+1 && b.Notes <= room && b.Tree <= room-b.Notes
	return b, ok, nil
}

func HeadOf(number int, notes, tree int64) []byte {
	return fmt.Appendf(nil, "%d %d %d\n", number, notes, tree)
}

// Has reports whether there is a block of a segment.
func (r *Pruned) Has(number int) (bool, error) {
	if number <= len(r.Blocks) {
		return true, nil
	}
	info, err := os.Stat(RemovedPath(r.Dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Size() != r.End(): // r.size is of before blocks were written here
		err = r.Read()
	}
	return number <= len(r.Blocks), err
}

// Torn reports whether bytes behind the blocks cannot come from a crash. A crash leaves an incomplete block only while the
// segment's own files exist. If those files have vanished in the meantime, torn looks again.
func (r *Pruned) Torn() (bool, error) {
	for range 3 {
		if r.Size == r.End() {
			return false, nil
		}
		next := len(r.Blocks) + 1
		notes, err := IsFile(NotePath(r.Dir, next))
		if err != nil {
			return false, err
		}
		tree, err := IsFile(TreePath(r.Dir, next))
		if err != nil || notes && tree {
			return false, err
		}
		if err := r.Read(); err != nil {
			return false, err
		}
	}
	return r.Size > r.End(), nil
}

// A Part is a log file or its copy in a block.
type Part struct {
	*io.SectionReader
	file *os.File
}

func (p *Part) Name() string { return p.file.Name() }
func (p *Part) Close() error { return p.file.Close() }

// Notes opens the checkpoints of a segment.
func (r *Pruned) Notes(number int) (*Part, error) {
	return r.open(NotePath(r.Dir, number), number, func(b block) (int64, int64) { return b.At, b.Notes })
}

// Tree opens what is left of the lines of a segment.
func (r *Pruned) Tree(number int) (*Part, error) {
	return r.open(TreePath(r.Dir, number), number, func(b block) (int64, int64) { return b.At + b.Notes, b.Tree })
}

// open opens a file, or its copy in a block if the file is gone. If neither exists, the error wraps [fs.ErrNotExist].
func (r *Pruned) open(path string, number int, in func(block) (at, size int64)) (*Part, error) {
	f, err := OpenFile(path)
	if err == nil {
		return &Part{io.NewSectionReader(f, 0, math.MaxInt64), f}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	is, hasErr := r.Has(number)
	if hasErr != nil {
		return nil, hasErr
	}
	if !is {
		return nil, err
	}
	if f, err = OpenFile(RemovedPath(r.Dir)); err != nil {
		return nil, err
	}
	at, size := in(r.Blocks[number-1])
	return &Part{io.NewSectionReader(f, at, size), f}, nil
}

// WasRemoved reports whether a segment was removed by retention.
func (r *Pruned) WasRemoved(number int) (bool, error) {
	_, err := os.Lstat(TreePath(r.Dir, number))
	if errors.Is(err, fs.ErrNotExist) {
		return r.Has(number)
	}
	return err == nil, err
}

// SealOf returns the last checkpoint of a segment, which has to be its seal.
func (r *Pruned) SealOf(number int) (last *Checkpoint, err error) {
	p, err := r.Notes(number)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	_, err = readNewestOf(p, func(_ []byte, c *Checkpoint) error {
		last = c
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case last == nil || !last.Sealed || last.Segment != number:
		return nil, &DamageError{p.Name(), 0, fmt.Sprintf("the last checkpoint of segment %d does not seal it", number)}
	}
	return last, nil
}

// WithoutNote returns the size of a file that ends before its first checkpoint does,
// and -1 for others.
func (r *Pruned) WithoutNote(number int) (int64, error) {
	p, err := r.Notes(number)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	notes := NewNoteReader(p)
	switch _, err := notes.Next(); err {
	case nil, ErrNote:
		return -1, nil
	case io.EOF, ErrTornNote:
		rest, err := io.Copy(io.Discard, io.NewSectionReader(p, int64(len(notes.N)), math.MaxInt64))
		return int64(len(notes.N)) + rest, err
	default:
		return 0, err
	}
}
