package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressd/egressd/internal/durable"
)

// A DamageError says where a log does not hold together.
type DamageError struct {
	Segment string // the path of the file
	Offset  int64  // of the line in it, in bytes
	Reason  string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("the audit log is damaged: %s at byte %d: %s; restore the file from a copy, or move the whole directory away as evidence and begin a new log",
		e.Segment, e.Offset, e.Reason)
}

// Torn describes bytes at the end of a segment that are no whole line. An interrupted write left them, and no caller
// was told that this write had succeeded.
type Torn struct {
	Segment string // the file's name, without its directory
	Offset  int64  // where in it the torn bytes began
	Bytes   int64
	SHA256  string // of these bytes, in hexadecimal digits

	// Moved reports that the bytes were moved from the segment to the end of the file with the same number
	// and the extension .torn.
	Moved bool
}

// A segment is one file of the log, open for appending.
type segment struct {
	*os.File
	number int
}

func segmentPath(dir string, number int) string {
	return filepath.Join(dir, fmt.Sprintf("%08d.log", number))
}

// Segments returns the paths of the segments in dir, the oldest first. It
// needs no lock.
func Segments(dir string) ([]string, error) {
	all, err := listFiles(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, number := range all.logs {
		paths = append(paths, segmentPath(dir, number))
	}
	return paths, nil
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
	f, err := os.OpenFile(segmentPath(dir, number), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, fileRW)
	if err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	return &segment{f, number}, nil
}

// openSegment opens a segment to go on in it, and makes durable what it holds, unless
// that is synced.
func openSegment(dir string, number int, synced bool) (*segment, error) {
	f, err := os.OpenFile(segmentPath(dir, number), os.O_WRONLY|os.O_APPEND, 0)
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
func scan(path string, from position, each func(line []byte)) (position, error) {
	c, err := openCursor(path, from)
	if err != nil {
		return from, err
	}
	defer c.Close()
	for {
		line, err := c.next()
		if err == io.EOF {
			return c.position, nil
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
	c, err := openCursor(path, position{seq: seq})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := c.next(); err == io.EOF {
		return 0, &DamageError{path, 0, "the segment holds no whole line, and a later one is there"}
	} else if err != nil {
		return 0, err
	}
	if c.position, err = lastLine(c.File); err != nil {
		return 0, err
	}
	if c.seq < seq {
		return 0, &DamageError{path, c.offset, fmt.Sprintf("the last line has number %d, the first one %d", c.seq, seq)}
	}
	c.rest = nil
	if _, err := c.next(); err != nil {
		return 0, err
	}
	return c.seq, nil
}

// lastLine returns the position of the last whole line of f. The torn bytes behind it belong to one line, which bounds
// their length.
func lastLine(f *os.File) (position, error) {
	info, err := f.Stat()
	if err != nil {
		return position{}, err
	}
	from := max(0, info.Size()-2*(maxLine+1))
	end := make([]byte, info.Size()-from)
	if _, err := f.ReadAt(end, from); err != nil {
		return position{}, err
	}
	stop := max(0, bytes.LastIndexByte(end, '\n'))
	start := bytes.LastIndexByte(end[:stop], '\n') + 1
	seq, err := checkLine(end[start:stop])
	if err != nil {
		return position{}, &DamageError{f.Name(), from + int64(start), err.Error()}
	}
	return position{offset: from + int64(start), seq: seq}, nil
}

// describeTorn reads what stands behind offset in a segment, and copies it to
// copyTo.
func describeTorn(path string, offset int64, copyTo io.Writer) (Torn, error) {
	f, err := openFile(path)
	if err != nil {
		return Torn{}, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return Torn{}, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(sum, copyTo), f)
	if err != nil {
		return Torn{}, err
	}
	return Torn{Segment: filepath.Base(path), Offset: offset, Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// moveTorn moves what stands behind offset in a segment to the end of its
// .torn file. A crash on the way can leave it in both, never in none.
func moveTorn(path string, offset int64) (torn Torn, err error) {
	if torn, err = describeTorn(path, offset, io.Discard); err != nil || torn.Bytes == 0 {
		return torn, err
	}
	beside := strings.TrimSuffix(path, ".log") + ".torn"
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_APPEND|os.O_CREATE, fileRW)
	if err != nil {
		return torn, err
	}
	torn, err = describeTorn(path, offset, f)
	if err := errors.Join(err, f.Sync(), f.Close(), durable.SyncFolder(filepath.Dir(path))); err != nil {
		return torn, err
	}
	torn.Moved = true
	return torn, os.Truncate(path, offset)
}
