package verify

import (
	"bufio"
	"errors"
	"io"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/egressd/egressd/audit/internal/format"
)

// A lineSource is what there is of a segment.
type lineSource interface {
	// step adds the next line, or the next span of lines, to the walker's tree. It
	// returns io.EOF at the end and a *DamageError for what is malformed.
	step(w *walker) error
	// rest is how many bytes stand behind so many, or behind the last step.
	rest(offset int64) (int64, error)
	// sum is the SHA-256 of what stands behind so many bytes, in hexadecimal digits.
	sum(offset int64) (string, error)
	removed() bool
	io.Closer
}

type segmentLines struct{ cursor *format.Cursor }

func (s *segmentLines) step(w *walker) error {
	line, err := s.cursor.Next()
	if err != nil {
		return err
	}
	h := tlog.RecordHash(line)
	if w.found != nil {
		w.found(w.tree.Size, line)
	}
	w.tree.Append(0, h, w.seen)
	w.tree.Bytes += int64(len(line) + 1)
	w.compare(false)
	return nil
}

func (s *segmentLines) rest(offset int64) (int64, error) {
	info, err := s.cursor.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size() - offset, nil
}

func (s *segmentLines) sum(offset int64) (string, error) {
	torn, err := format.DescribeTorn(s.cursor.Name(), offset, io.Discard)
	return torn.SHA256, err
}

func (s *segmentLines) removed() bool { return false }
func (s *segmentLines) Close() error  { return s.cursor.Close() }

// A spanFile is the tree of a segment that was removed.
type spanFile struct {
	*format.Part
	lines *bufio.Reader
}

func newSpanFile(f *format.Part) *spanFile {
	return &spanFile{f, bufio.NewReaderSize(f, 16<<10)} // 126 hashes in a line at most
}

var errSpan = errors.New("the line is not a part of a tree")

func (s *spanFile) step(w *walker) error {
	text, err := s.lines.ReadSlice('\n')
	if err != nil && err != io.EOF && err != bufio.ErrBufferFull {
		return err
	}
	to, hashes, ok := parseSpan(string(text), w.tree.Size)
	if err != nil || !ok || w.tree.AppendSpan(to, hashes, w.seen) != nil {
		return &format.DamageError{Segment: s.Name(), Offset: 0, Reason: errSpan.Error()}
	}
	w.compare(false)
	return nil
}

// parseSpan reads a line of a tree file.
func parseSpan(line string, from int64) (to int64, hashes []tlog.Hash, ok bool) {
	line, ok = strings.CutSuffix(line, "\n")
	fields := strings.Split(line, " ")
	if !ok || len(fields) < 3 {
		return 0, nil, false
	}
	at, fromOK := format.ParseNumber(fields[0])
	to, toOK := format.ParseNumber(fields[1])
	if !fromOK || !toOK || at != from || to <= from {
		return 0, nil, false
	}
	for _, field := range fields[2:] {
		b, err := format.Decode64(field)
		if err != nil || len(b) != tlog.HashSize {
			return 0, nil, false
		}
		hashes = append(hashes, tlog.Hash(b))
	}
	return to, hashes, true
}

func (s *spanFile) rest(int64) (int64, error) { return io.Copy(io.Discard, s.lines) }

func (s *spanFile) sum(int64) (string, error) { return "", nil }
func (s *spanFile) removed() bool             { return true }

// noLines are those of a segment that is gone.
type noLines struct{}

func (noLines) step(*walker) error        { return io.EOF }
func (noLines) rest(int64) (int64, error) { return 0, nil }
func (noLines) sum(int64) (string, error) { return "", nil }
func (noLines) removed() bool             { return false }
func (noLines) Close() error              { return nil }
