package audit

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

// A Retain says what of a log is kept. The oldest whole segments are removed while
// one of its bounds is exceeded; a bound of 0 is none. The checkpoints stay, and so do the hashes that prove the
// remaining records.
//
// If OwedBytes or OwedAge is set, a segment that a receiver still needs ([Options.Owed]) is removed only if one of
// these two bounds is exceeded as well.
type Retain struct {
	Bytes    int64         // of all segments, the one that is being written too
	Age      time.Duration // since the segment was sealed, whatever the machine's clock was set to meanwhile
	Segments int           // how many, with the one that is being written

	OwedBytes int64
	OwedAge   time.Duration
}

// An OwedError reports that retention removed the records [From, To) before every receiver had them.
type OwedError struct{ From, To int64 }

func (e *OwedError) Error() string {
	return fmt.Sprintf("records %d to %d were removed, and not every sink has them: what audit.retain keeps for sinks is full", e.From, e.To-1)
}

func (r Retain) isZero() bool { return r == Retain{} }

// retain removes the segments that are not kept. It is called with signing held.
func (l *Log) retain() {
	if l.options.Retain.isZero() {
		return
	}
	owed, known := l.owed()
	if l.unretained = !known; !known {
		return
	}
	if err := l.removeOldest(owed); err != nil && l.options.Trouble != nil {
		l.options.Trouble(fmt.Errorf("remove the oldest part of the audit log: %w", err))
	}
	if err := l.pack(); err != nil && l.options.Trouble != nil {
		l.options.Trouble(fmt.Errorf("put together what is left of removed parts of the audit log: %w", err))
	}
}

// owed returns the seq of the first record that is not to be removed yet, and whether
// that is known.
func (l *Log) owed() (seq int64, known bool) {
	r := l.options.Retain
	if l.options.Owed == nil || r.OwedBytes == 0 && r.OwedAge == 0 {
		return math.MaxInt64, true
	}
	return l.options.Owed()
}

func (l *Log) removeOldest(owed int64) (err error) {
	var early *OwedError
	defer func() {
		if early != nil {
			err = errors.Join(err, early)
		}
	}()
	files, err := format.ListFiles(l.dir)
	if err != nil {
		return err
	}
	numbers := files.Logs
	var total int64
	sizes := make([]int64, len(numbers))
	for i, number := range numbers {
		info, err := os.Stat(format.SegmentPath(l.dir, number))
		if err != nil {
			return err
		}
		sizes[i] = info.Size()
		total += sizes[i]
	}
	ages := l.age(numbers)
	for i, number := range numbers {
		if number >= l.notary.segment {
			return nil
		}
		var age time.Duration
		if ages != nil {
			age = ages.of(number)
		}
		last, err := l.past.SealOf(number)
		if err != nil {
			return err
		}
		if !l.options.Retain.exceeded(len(numbers)-i, total, age) {
			return nil
		}
		isOwed := last.Size > owed && last.First < last.Size
		if isOwed && !l.options.Retain.owedExceeded(total, age) {
			return nil
		}
		if err := removeSegment(l.past, number); err != nil {
			return err
		}
		if isOwed && early == nil {
			early = &OwedError{From: max(owed, last.First)}
		}
		if isOwed {
			early.To = last.Size
		}
		total -= sizes[i]
	}
	return nil
}

func (r Retain) exceeded(segments int, total int64, age time.Duration) bool {
	return r.Segments > 0 && segments > r.Segments || r.Bytes > 0 && total > r.Bytes ||
		r.Age > 0 && age > r.Age
}

func (r Retain) owedExceeded(total int64, age time.Duration) bool {
	return Retain{Bytes: r.OwedBytes, Age: r.OwedAge}.exceeded(0, total, age)
}

// removeSegment puts the tree of a sealed segment in the place of its lines, once it
// was seen that it leads to the same roots.
func removeSegment(past *format.Pruned, number int) error {
	dir := past.Dir
	err := durable.Rewrite(format.TreePath(dir, number), format.FileRW, func(to io.Writer) error { return writeSpans(to, past, number) })
	if err != nil {
		return err
	}
	path := format.SegmentPath(dir, number)
	if err := os.Remove(path); err != nil {
		return err
	}
	if err := os.Remove(strings.TrimSuffix(path, ".log") + ".torn"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return durable.SyncFolder(dir)
}

// writeSpans writes the tree file of a segment, as it goes along: where each second had
// a record, that is a line for each.
func writeSpans(to io.Writer, past *format.Pruned, number int) error {
	var e format.Edge
	if number > 1 {
		before, err := past.SealOf(number - 1)
		if err != nil {
			return err
		}
		if e, err = format.NewEdge(before.Size, before.Edge); err != nil {
			return err
		}
	}
	lines, err := format.OpenCursor(format.SegmentPath(past.Dir, number), format.Position{Seq: e.Size})
	if err != nil {
		return err
	}
	defer lines.Close()
	text := bufio.NewWriter(to)
	span := format.SpanTree{From: e.Size, To: e.Size}
	notes, err := past.Notes(number)
	if err != nil {
		return err
	}
	defer notes.Close()
	_, err = format.ReadNotesOf(notes, func(_ []byte, c *format.Checkpoint) error {
		for span.To < c.Size {
			line, err := lines.Next()
			if err == io.EOF {
				err = errors.New("the segment is shorter")
			}
			if err != nil {
				return err
			}
			span.AppendLine(line)
		}
		if span.From < span.To {
			writeSpan(text, &e, &span)
		}
		if e.Root() != c.Root || c.Size != e.Size {
			return errors.New("the lines of the segment are not those that were signed")
		}
		return nil
	})
	return errors.Join(err, text.Flush())
}

// writeSpan ends a span: it becomes a line of text, which keeps an error, and a part of e.
func writeSpan(text *bufio.Writer, e *format.Edge, span *format.SpanTree) {
	fmt.Fprintf(text, "%d %d", span.From, span.To)
	for _, n := range span.Next() {
		text.WriteString(" " + base64.StdEncoding.EncodeToString(n.Hash[:]))
		e.Append(n.Level, n.Hash, nil)
	}
	text.WriteByte('\n')
}
