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
		seq, _, err := firstLine(path)
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

// firstLine returns the number and the time of the first line of a segment. The number is -1 where there is no whole line.
func firstLine(path string) (seq int64, time string, err error) {
	f, err := format.OpenFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, "", nil // it was empty, and is being replaced
	}
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	head := make([]byte, format.MaxLine+1)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return 0, "", err
	}
	line, _, ok := bytes.Cut(head[:n], []byte("\n"))
	if !ok {
		return -1, "", nil
	}
	seq, err = format.CheckLine(line)
	if err != nil {
		return 0, "", &format.DamageError{Segment: path, Offset: 0, Reason: err.Error()}
	}
	return seq, format.TimeOf(line), nil
}

// FromTime returns where to begin to read for the records since t: the number of the first record of a segment, from which
// on all are that were written since t, unless the clock was set back.
func FromTime(dir string, t time.Time) (from int64, err error) {
	segments, err := format.Segments(dir)
	if err != nil {
		return 0, err
	}
	since := t.UTC().Format(format.TimeLayout)
	for _, path := range segments {
		seq, began, err := firstLine(path)
		if err != nil {
			return 0, err
		}
		if seq < 0 || began >= since {
			break
		}
		from = seq
	}
	return from, nil
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

// A Block is a part of a segment that [Reader.Take] has read. Its method Next returns the lines, and checks each.
type Block = format.Block

// Take is Next for as many lines as fit into buffer, which it reads them into. It checks none of them: Next of the
// [Block] does, which another goroutine may call.
func (r *Reader) Take(buffer []byte) (b Block, err error) {
	if line := r.ahead; line != nil {
		r.ahead = nil
		b.Seq, b.Rest = r.seq-1, append(append(buffer[:0], line...), '\n')
		return b, nil
	}
	for {
		err := r.read(func(c *format.Cursor) (err error) {
			b, err = c.Take(buffer)
			return err
		})
		for err == nil && b.Seq < r.from && len(b.Rest) > 0 {
			_, err = b.Next()
		}
		if err != nil || len(b.Rest) > 0 {
			return b, err
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

func (r *Reader) next() (line []byte, err error) {
	err = r.read(func(c *format.Cursor) (err error) {
		line, err = c.Next()
		return err
	})
	return line, err
}

// read has take read from the segment that has something to read.
func (r *Reader) read(take func(*format.Cursor) error) error {
	for {
		if err := r.open(); err != nil {
			return err
		}
		err := take(r.cursor)
		r.seq = r.cursor.Seq
		if err != io.EOF {
			return err
		}
		if err := r.advance(); err != nil {
			return err
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
