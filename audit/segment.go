package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

// A segment is one file of the log, open for appending.
type segment struct {
	*os.File
	number int
}

// createSegment makes a segment that is still there after a crash, and refuses
// one that exists.
func createSegment(dir string, number int) (*segment, error) {
	s, err := newSegment(dir, number)
	if err != nil {
		return nil, err
	}
	if err := durable.SyncFolder(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("create segment: %w", err), s.Close(), os.Remove(s.Name()))
	}
	return s, nil
}

// newSegment makes a segment whose name may not survive a crash yet.
func newSegment(dir string, number int) (*segment, error) {
	f, err := os.OpenFile(format.SegmentPath(dir, number), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, format.FileRW)
	if err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	return &segment{f, number}, nil
}

// openSegment opens a segment to go on in it, and makes durable what it holds, unless
// that is synced.
func openSegment(dir string, number int, synced bool) (*segment, error) {
	f, err := os.OpenFile(format.SegmentPath(dir, number), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("open segment: %w", err)
	}
	if synced {
		return &segment{f, number}, nil
	}
	if err := syncData(f); err != nil {
		return nil, errors.Join(fmt.Errorf("open segment: %w", err), f.Close())
	}
	return &segment{f, number}, nil
}

// scan checks every line of a segment from a position on, hands it to each, and
// returns the position after the last whole one.
func scan(path string, from format.Position, each func(line []byte)) (format.Position, error) {
	c, err := format.OpenCursor(path, from)
	if err != nil {
		return from, err
	}
	defer c.Close()
	for {
		line, err := c.Next()
		if err == io.EOF {
			return c.Position, nil
		}
		if err != nil {
			return from, err
		}
		each(line)
	}
}

// endsOf checks the first and the last whole line of a segment that is
// followed by another. The first must be numbered seq; it returns the number
// that the next segment has to begin with.
func endsOf(path string, seq int64) (next int64, err error) {
	c, err := format.OpenCursor(path, format.Position{Seq: seq})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := c.Next(); err == io.EOF {
		return 0, &format.DamageError{Segment: path, Offset: 0, Reason: "the segment holds no whole line, and a later one is there"}
	} else if err != nil {
		return 0, err
	}
	if c.Position, err = lastLine(c.File); err != nil {
		return 0, err
	}
	if c.Seq < seq {
		return 0, &format.DamageError{Segment: path, Offset: c.Offset, Reason: fmt.Sprintf("the last line has number %d, the first one %d", c.Seq, seq)}
	}
	c.Rest = nil
	if _, err := c.Next(); err != nil {
		return 0, err
	}
	return c.Seq, nil
}

// lastLine returns the position of the last whole line of f. The torn bytes behind it belong to one line, which bounds
// their length.
func lastLine(f *os.File) (format.Position, error) {
	info, err := f.Stat()
	if err != nil {
		return format.Position{}, err
	}
	from := max(0, info.Size()-2*(format.MaxLine+1))
	end := make([]byte, info.Size()-from)
	if _, err := f.ReadAt(end, from); err != nil {
		return format.Position{}, err
	}
	stop := max(0, bytes.LastIndexByte(end, '\n'))
	start := bytes.LastIndexByte(end[:stop], '\n') + 1
	seq, err := format.CheckLine(end[start:stop])
	if err != nil {
		return format.Position{}, &format.DamageError{Segment: f.Name(), Offset: from + int64(start), Reason: err.Error()}
	}
	return format.Position{Offset: from + int64(start), Seq: seq}, nil
}

// moveTorn moves what stands behind offset in a segment to the end of its
// .torn file. A crash on the way can leave it in both, never in none.
func moveTorn(path string, offset int64) (torn format.Torn, err error) {
	if torn, err = format.DescribeTorn(path, offset, io.Discard); err != nil || torn.Bytes == 0 {
		return torn, err
	}
	beside := strings.TrimSuffix(path, ".log") + ".torn"
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_APPEND|os.O_CREATE, format.FileRW)
	if err != nil {
		return torn, err
	}
	torn, err = format.DescribeTorn(path, offset, f)
	if err := errors.Join(err, f.Sync(), f.Close(), durable.SyncFolder(filepath.Dir(path))); err != nil {
		return torn, err
	}
	torn.Moved = true
	return torn, os.Truncate(path, offset)
}
