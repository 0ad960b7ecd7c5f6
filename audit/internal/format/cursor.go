package format

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// A Position is a place between two lines of a segment.
type Position struct {
	Offset int64 // in the file, in bytes
	Seq    int64 // of the line that begins there, or has to
}

// A Block is a part of a segment that was read.
type Block struct {
	Position
	Rest []byte // what was read from there on
	path string
}

// Began returns the time of the block's next line. It is zero if the line is not whole.
func (b *Block) Began() time.Time {
	line, _, _ := bytes.Cut(b.Rest, []byte("\n"))
	if _, err := CheckLine(line); err != nil {
		return time.Time{}
	}
	began, _ := time.Parse(TimeLayout, TimeOf(line))
	return began
}

// Next returns the next line of the block without its newline, and checks it. The error is io.EOF where no whole line
// is left, or a *DamageError.
func (b *Block) Next() ([]byte, error) {
	i := bytes.IndexByte(b.Rest, '\n')
	if i < 0 {
		return nil, io.EOF
	}
	line := b.Rest[:i]
	seq, err := CheckLine(line)
	if err == nil && seq != b.Seq {
		err = fmt.Errorf("the line has number %d where %d is due", seq, b.Seq)
	}
	if err != nil {
		return nil, &DamageError{b.path, b.Offset, err.Error()}
	}
	b.Rest = b.Rest[i+1:]
	b.Offset += int64(i + 1)
	b.Seq++
	return line, nil
}

// A Cursor goes over the whole lines of one segment, and checks each. It holds
// no bytes over that are not a whole line: what it sees next is what is in the
// file then.
type Cursor struct {
	*os.File
	Block
	buffer []byte
}

func OpenCursor(path string, from Position) (*Cursor, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	return &Cursor{File: f, Block: Block{Position: from, path: path}, buffer: make([]byte, 8*(MaxLine+1))}, nil
}

// Next returns the next line without its newline, valid until the next call;
// io.EOF where there is no whole line, which may change; or a *DamageError.
func (c *Cursor) Next() ([]byte, error) {
	line, err := c.Block.Next()
	if err != io.EOF {
		return line, err
	}
	if err := c.fill(); err != nil {
		return nil, err
	}
	if line, err = c.Block.Next(); err == io.EOF {
		return nil, c.unterminated()
	}
	return line, err
}

// Take returns the next lines, as many as fit into buffer, which they are read into. Only [Block.Next] checks them. The
// error is one of Next.
func (c *Cursor) Take(buffer []byte) (Block, error) {
	n, err := c.ReadAt(buffer, c.Offset)
	if err != nil && err != io.EOF {
		return Block{}, err
	}
	n = bytes.LastIndexByte(buffer[:n], '\n') + 1
	b := Block{c.Position, buffer[:n], c.path}
	c.Rest = nil
	if n == 0 {
		line, err := c.Next()
		if err == nil {
			b.Rest = append(append(buffer[:0], line...), '\n')
		}
		return b, err
	}
	c.Offset += int64(n)
	c.Seq += int64(bytes.Count(b.Rest, []byte("\n")))
	return b, nil
}

func (c *Cursor) fill() error {
	n, err := c.ReadAt(c.buffer, c.Offset)
	c.Rest = c.buffer[:n]
	if err != nil && err != io.EOF {
		return err
	}
	return nil
}

// unterminated returns io.EOF where no newline follows, which is a torn line
// however long it is: file systems fill up with zeros.
func (c *Cursor) unterminated() error {
	n, at := len(c.Rest), c.Offset
	for n == len(c.buffer) {
		var err error
		if at, err = nextData(c.File, at+int64(n)); err != nil { // io.EOF where there is none
			return err
		}
		if n, err = c.ReadAt(c.buffer, at); err != nil && err != io.EOF {
			return err
		}
		if bytes.IndexByte(c.buffer[:n], '\n') >= 0 {
			return &DamageError{c.Name(), c.Offset, errTooLong.Error()}
		}
	}
	return io.EOF
}

// Lost returns a *DamageError where the segment is no longer the file that was read, or
// shorter than what was read of it.
func (c *Cursor) Lost() error {
	held, err := c.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(c.Name())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &DamageError{c.Name(), c.Offset, "the segment was removed while it was read"}
	case err != nil:
		return err
	case !os.SameFile(held, named):
		return &DamageError{c.Name(), c.Offset, "another file has taken the segment's place while it was read"}
	case held.Size() < c.Offset:
		return &DamageError{c.Name(), held.Size(), "the segment is shorter than what was read of it"}
	}
	return nil
}

// LineFollows reports whether there is a well-formed line anywhere behind the one
// that next has refused.
func (c *Cursor) LineFollows() (bool, error) {
	lines := bufio.NewReaderSize(&dataReader{c.File, c.Offset}, 4*(MaxLine+1))
	begun := false // the line at hand was longer than the buffer
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			return false, nil
		}
		if err != nil && err != bufio.ErrBufferFull {
			return false, err
		}
		if _, bad := CheckLine(bytes.TrimSuffix(line, []byte("\n"))); err == nil && !begun && bad == nil {
			return true, nil
		}
		begun = err != nil
	}
}

// A dataReader reads a file from a place on. A hole, however large, is one zero.
type dataReader struct {
	*os.File
	at int64
}

func (r *dataReader) Read(b []byte) (int, error) {
	at, err := nextData(r.File, r.at)
	if err != nil || len(b) == 0 {
		return 0, err
	}
	if at > r.at {
		r.at, b[0] = at, 0
		return 1, nil
	}
	n, err := r.ReadAt(b, r.at)
	r.at += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}
