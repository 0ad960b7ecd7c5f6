package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
)

// A position is a place between two lines of a segment.
type position struct {
	offset int64 // in the file, in bytes
	seq    int64 // of the line that begins there, or has to
}

// A cursor goes over the whole lines of one segment, and checks each. It holds
// no bytes over that are not a whole line: what it sees next is what is in the
// file then.
type cursor struct {
	*os.File
	position
	buffer []byte
	rest   []byte // read from offset on
}

func openCursor(path string, from position) (*cursor, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return &cursor{File: f, position: from, buffer: make([]byte, 8*(maxLine+1))}, nil
}

// next returns the next line without its newline, valid until the next call;
// io.EOF where there is no whole line, which may change; or a *DamageError.
func (c *cursor) next() ([]byte, error) {
	i := bytes.IndexByte(c.rest, '\n')
	if i < 0 {
		if err := c.fill(); err != nil {
			return nil, err
		}
		i = bytes.IndexByte(c.rest, '\n')
	}
	if i < 0 {
		return nil, c.unterminated()
	}
	line := c.rest[:i]
	seq, err := checkLine(line)
	if err == nil && seq != c.seq {
		err = fmt.Errorf("the line has number %d where %d is due", seq, c.seq)
	}
	if err != nil {
		return nil, &DamageError{c.Name(), c.offset, err.Error()}
	}
	c.rest = c.rest[i+1:]
	c.offset += int64(i + 1)
	c.seq++
	return line, nil
}

func (c *cursor) fill() error {
	n, err := c.ReadAt(c.buffer, c.offset)
	c.rest = c.buffer[:n]
	if err != nil && err != io.EOF {
		return err
	}
	return nil
}

// unterminated returns io.EOF where no newline follows, which is a torn line
// however long it is: file systems fill up with zeros.
func (c *cursor) unterminated() error {
	n, at := len(c.rest), c.offset
	for n == len(c.buffer) {
		var err error
		if at, err = nextData(c.File, at+int64(n)); err != nil { // io.EOF where there is none
			return err
		}
		if n, err = c.ReadAt(c.buffer, at); err != nil && err != io.EOF {
			return err
		}
		if bytes.IndexByte(c.buffer[:n], '\n') >= 0 {
			return &DamageError{c.Name(), c.offset, errTooLong.Error()}
		}
	}
	return io.EOF
}

var errTooLong = errors.New("the line is too long")

// lost returns a *DamageError where the segment is no longer the file that was read, or
// shorter than what was read of it.
func (c *cursor) lost() error {
	held, err := c.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(c.Name())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &DamageError{c.Name(), c.offset, "the segment was removed while it was read"}
	case err != nil:
		return err
	case !os.SameFile(held, named):
		return &DamageError{c.Name(), c.offset, "another file has taken the segment's place while it was read"}
	case held.Size() < c.offset:
		return &DamageError{c.Name(), held.Size(), "the segment is shorter than what was read of it"}
	}
	return nil
}

// checkLine checks the form of a line, as far as Append vouches for it, and
// returns its number.
func checkLine(line []byte) (seq int64, err error) {
	if len(line) > maxLine {
		return 0, errTooLong
	}
	digits, rest, ok := cutStamp(line)
	if !ok {
		return 0, errors.New("the line does not begin with version, number and time")
	}
	seq, err = strconv.ParseInt(string(digits), 10, 64)
	if err != nil || strconv.FormatInt(seq, 10) != string(digits) || seq < 0 {
		return 0, errors.New("the line is not numbered")
	}
	if len(rest) < len(`"}`) || rest[0] != '"' || rest[len(rest)-1] != '}' || !printable(rest) {
		return 0, errors.New("the line is not a JSON object in printable ASCII")
	}
	return seq, nil
}

// cutStamp cuts a line into the digits of its number and what stands behind
// the time.
func cutStamp(line []byte) (digits, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte(stampVersion))
	if !ok {
		return nil, nil, false
	}
	digits, rest, ok = bytes.Cut(rest, []byte(stampTime))
	if !ok || len(rest) < len(timeLayout) || !isTime(rest[:len(timeLayout)]) {
		return nil, nil, false
	}
	rest, ok = bytes.CutPrefix(rest[len(timeLayout):], []byte(stampEnd))
	return digits, rest, ok
}

// isTime reports whether text, which has its length, has the form of
// timeLayout.
func isTime(text []byte) bool {
	for i, b := range text {
		form := timeLayout[i]
		if form >= '0' && form <= '9' {
			if b < '0' || b > '9' {
				return false
			}
		} else if b != form {
			return false
		}
	}
	return true
}

// lineFollows reports whether there is a well-formed line anywhere behind the one
// that next has refused.
func (c *cursor) lineFollows() (bool, error) {
	lines := bufio.NewReaderSize(&dataReader{c.File, c.offset}, 4*(maxLine+1))
	begun := false // the line at hand was longer than the buffer
	for {
		line, err := lines.ReadSlice('\n')
		if err == io.EOF {
			return false, nil
		}
		if err != nil && err != bufio.ErrBufferFull {
			return false, err
		}
		if _, bad := checkLine(bytes.TrimSuffix(line, []byte("\n"))); err == nil && !begun && bad == nil {
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
