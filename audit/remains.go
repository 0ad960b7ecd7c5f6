package audit

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

// removedName is the file that holds what is left of the first segments, in blocks
// (docs/reference/audit-format.md): what would else be two files of each for ever.
const removedName = "removed"

func removedPath(dir string) string { return filepath.Join(dir, removedName) }

// A block is what is left of one segment: its checkpoints, and behind them its tree.
type block struct{ at, notes, tree int64 }

func (b block) end() int64 { return b.at + b.notes + b.tree }

// remains finds what proves the pruned segments of a log: in files of their own or in blocks. It caches known blocks,
// and reads the file again for an unknown one. It is not safe for concurrent use.
type remains struct {
	dir    string
	blocks []block // of the segments 1, 2, …
	size   int64   // of the file when it was read
}

// maxHead is more than the head of a block can have.
const maxHead = 64

// read reads the heads of the blocks that are not known. It is no error that there is
// no file.
func (r *remains) read() error {
	f, err := openFile(removedPath(r.dir))
	if errors.Is(err, fs.ErrNotExist) {
		r.blocks, r.size = nil, 0
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
	if r.size = info.Size(); r.size < r.end() {
		r.blocks = nil
	}
	for {
		b, ok, err := r.next(f)
		if err != nil || !ok {
			return err
		}
		r.blocks = append(r.blocks, b)
	}
}

// end is where the whole blocks end.
func (r *remains) end() int64 {
	if len(r.blocks) == 0 {
		return 0
	}
	return r.blocks[len(r.blocks)-1].end()
}

// next reads the head behind the last block that is known. It is not ok where no whole
// block stands there.
func (r *remains) next(f io.ReaderAt) (b block, ok bool, err error) {
	text := make([]byte, maxHead)
	n, err := f.ReadAt(text, r.end())
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
		if numbers[i], ok = parseNumber(string(field)); !ok {
			return b, false, nil
		}
	}
	b = block{r.end() + int64(len(line)) + 1, numbers[1], numbers[2]}
	room := r.size - b.at
	ok = numbers[0] == int64(len(r.blocks))+1 && b.notes <= room && b.tree <= room-b.notes
	return b, ok, nil
}

func headOf(number int, notes, tree int64) []byte {
	return fmt.Appendf(nil, "%d %d %d\n", number, notes, tree)
}

// has reports whether there is a block of a segment.
func (r *remains) has(number int) (bool, error) {
	if number <= len(r.blocks) {
		return true, nil
	}
	info, err := os.Stat(removedPath(r.dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Size() != r.end(): // r.size is of before blocks were written here
		err = r.read()
	}
	return number <= len(r.blocks), err
}

// torn reports whether bytes behind the blocks cannot come from a crash. A crash leaves an incomplete block only while the
// segment's own files exist. If those files have vanished in the meantime, torn looks again.
func (r *remains) torn() (bool, error) {
	for range 3 {
		if r.size == r.end() {
			return false, nil
		}
		next := len(r.blocks) + 1
		notes, err := isFile(notePath(r.dir, next))
		if err != nil {
			return false, err
		}
		tree, err := isFile(treePath(r.dir, next))
		if err != nil || notes && tree {
			return false, err
		}
		if err := r.read(); err != nil {
			return false, err
		}
	}
	return r.size > r.end(), nil
}

// A part is a log file or its copy in a block.
type part struct {
	*io.SectionReader
	file *os.File
}

func (p *part) Name() string { return p.file.Name() }
func (p *part) Close() error { return p.file.Close() }

// notes opens the checkpoints of a segment.
func (r *remains) notes(number int) (*part, error) {
	return r.open(notePath(r.dir, number), number, func(b block) (int64, int64) { return b.at, b.notes })
}

// tree opens what is left of the lines of a segment.
func (r *remains) tree(number int) (*part, error) {
	return r.open(treePath(r.dir, number), number, func(b block) (int64, int64) { return b.at + b.notes, b.tree })
}

// open opens a file, or its copy in a block if the file is gone. If neither exists, the error wraps [fs.ErrNotExist].
func (r *remains) open(path string, number int, in func(block) (at, size int64)) (*part, error) {
	f, err := openFile(path)
	if err == nil {
		return &part{io.NewSectionReader(f, 0, math.MaxInt64), f}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	is, hasErr := r.has(number)
	if hasErr != nil {
		return nil, hasErr
	}
	if !is {
		return nil, err
	}
	if f, err = openFile(removedPath(r.dir)); err != nil {
		return nil, err
	}
	at, size := in(r.blocks[number-1])
	return &part{io.NewSectionReader(f, at, size), f}, nil
}

// wasRemoved reports whether a segment was removed by retention.
func (r *remains) wasRemoved(number int) (bool, error) {
	_, err := os.Lstat(treePath(r.dir, number))
	if errors.Is(err, fs.ErrNotExist) {
		return r.has(number)
	}
	return err == nil, err
}

// sealOf returns the last checkpoint of a segment, which has to be its seal.
func (r *remains) sealOf(number int) (last *checkpoint, err error) {
	p, err := r.notes(number)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	_, err = readNewestOf(p, func(_ []byte, c *checkpoint) error {
		last = c
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case last == nil || !last.sealed || last.segment != number:
		return nil, &DamageError{p.Name(), 0, fmt.Sprintf("the last checkpoint of segment %d does not seal it", number)}
	}
	return last, nil
}
