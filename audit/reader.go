package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

// pollInterval is how often Follow looks for more.
const pollInterval = 200 * time.Millisecond

// A Reader goes over the lines of a log, from segment to segment. It needs no
// lock and works while the log is being written, by this process or another.
// It is not safe for concurrent use. Close it.
type Reader struct {
	dir    string
	from   int64
	number int            // of the segment
	seq    int64          // of the next line
	cursor *format.Cursor // nil while the segment is not open
	final  bool           // the segment has a successor, and so does not grow
	ahead  []byte         // what Follow found, and Next has not yet returned
	past   *format.Pruned
}

// NewReader returns a Reader of the log in dir that begins with the record
// numbered from, which may be one that is yet to come, or with the first that
// retention has left. An error wraps
// [fs.ErrNotExist] where there is no log.
func NewReader(dir string, from int64) (*Reader, error) {
	all, err := format.ListFiles(dir)
	if err != nil {
		return nil, err
	}
	if len(all.Logs) == 0 {
		return nil, &fs.PathError{Op: "read audit log", Path: dir, Err: fs.ErrNotExist}
	}
	past := &format.Pruned{Dir: dir}
	if err := all.Consecutive(dir, past); err != nil {
		return nil, err
	}
	r := &Reader{dir: dir, from: from, number: all.Logs[0], past: past}
	before := int64(-1)
	for i, number := range all.Logs {
		path := format.SegmentPath(dir, number)
		seq, err := firstSeq(path)
		if err != nil {
			return nil, err
		}
		if seq >= 0 && seq <= before { // else what stands before it would be passed over
			return nil, &format.DamageError{Segment: path, Offset: 0, Reason: fmt.Sprintf("it begins with number %d, and a segment before it with %d", seq, before)}
		}
		before = max(before, seq)
		// Segments before the first one were pruned.
		first := i == 0 && r.number > 1
		if seq > from && !first {
			break
		}
		if seq >= 0 {
			r.number, r.seq = number, seq
		}
	}
	return r, nil
}

// firstSeq returns the number of the first line of a segment, or -1 where it
// has no whole line.
func firstSeq(path string) (int64, error) {
	f, err := format.OpenFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil // it was empty, and is being replaced
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	head := make([]byte, format.MaxLine+1)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return 0, err
	}
	line, _, ok := bytes.Cut(head[:n], []byte("\n"))
	if !ok {
		return -1, nil
	}
	seq, err := format.CheckLine(line)
	if err != nil {
		return 0, &format.DamageError{Segment: path, Offset: 0, Reason: err.Error()}
	}
	return seq, nil
}

// Next returns the next line without its newline; it is valid until the next
// call. The error is [io.EOF] at the end of the log, where a line that is torn
// or still being written does not count, and a later call may find more. It is
// a [*DamageError] where the log does not hold together.
func (r *Reader) Next() ([]byte, error) {
	if line := r.ahead; line != nil {
		r.ahead = nil
		return line, nil
	}
	for {
		line, err := r.next()
		if err != nil || r.seq > r.from {
			return line, err
		}
	}
}

// Follow waits until Next has a line to return, and returns nil then. It looks
// a few times a second.
func (r *Reader) Follow(ctx context.Context) error {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		line, err := r.Next()
		if err != io.EOF {
			r.ahead = line
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close lets go of the segment that is being read.
func (r *Reader) Close() error {
	if r.cursor == nil {
		return nil
	}
	err := r.cursor.Close()
	r.cursor = nil
	return err
}

func (r *Reader) next() ([]byte, error) {
	for {
		if err := r.open(); err != nil {
			return nil, err
		}
		line, err := r.cursor.Next()
		r.seq = r.cursor.Seq
		if err != io.EOF {
			return line, err
		}
		if err := r.advance(); err != nil {
			return nil, err
		}
	}
}

func (r *Reader) open() (err error) {
	if r.cursor != nil {
		return nil
	}
	r.cursor, err = format.OpenCursor(format.SegmentPath(r.dir, r.number), format.Position{Seq: r.seq})
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	is, err := r.past.WasRemoved(r.number)
	switch {
	case err != nil:
		return err
	case is:
		return r.skip()
	}
	return io.EOF // it was empty, and is being replaced
}

// skip goes on to the first segment that is there: those before were removed since
// the Reader was made.
func (r *Reader) skip() error {
	next, err := NewReader(r.dir, r.from)
	if err != nil {
		return err
	}
	if next.number <= r.number {
		return io.EOF
	}
	r.number, r.seq = next.number, next.seq
	return r.open()
}

// advance goes on to the next segment, or returns io.EOF where there is none.
// Once there is one, this one does not grow: what it got since it was last
// looked at has to be read first.
func (r *Reader) advance() error {
	complete := r.final
	if !complete {
		var err error
		if r.final, err = r.followed(); err != nil {
			return err
		}
	}
	// A segment in which there is no line yet may be replaced by another file.
	if complete || r.cursor.Offset == 0 {
		if err := r.Close(); err != nil {
			return err
		}
	}
	switch {
	case complete:
		r.number++
		r.final = false
	case !r.final:
		return io.EOF
	}
	return nil
}

// followed reports whether the segment has a successor. Where it has none, it has to
// be the file that was read: who follows a log that is gone waits for nothing.
func (r *Reader) followed() (bool, error) {
	is, err := r.successor()
	if is || err != nil || r.cursor.Offset == 0 {
		return is, err
	}
	lost := r.cursor.Lost()
	if lost == nil {
		return false, nil
	}
	if is, err = r.successor(); is { // retention may remove this one once there is another
		return true, nil
	}
	return false, errors.Join(lost, err)
}

func (r *Reader) successor() (bool, error) {
	_, err := os.Stat(format.SegmentPath(r.dir, r.number+1))
	if errors.Is(err, fs.ErrNotExist) {
		return r.past.WasRemoved(r.number + 1) // since
	}
	return err == nil, err
}
