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

// An OwedError reports that the records from From to before To were removed before every receiver had them.
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
	if err := l.fold(); err != nil && l.options.Trouble != nil {
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
	files, err := listFiles(l.dir)
	if err != nil {
		return err
	}
	numbers := files.logs
	var total int64
	sizes := make([]int64, len(numbers))
	for i, number := range numbers {
		info, err := os.Stat(segmentPath(l.dir, number))
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
		last, err := l.past.sealOf(number)
		if err != nil {
			return err
		}
		if !l.options.Retain.exceeded(len(numbers)-i, total, age) {
			return nil
		}
		isOwed := last.size > owed && last.first < last.size
		if isOwed && !l.options.Retain.owedExceeded(total, age) {
			return nil
		}
		if err := removeSegment(l.past, number); err != nil {
			return err
		}
		if isOwed && early == nil {
			early = &OwedError{From: max(owed, last.first)}
		}
		if isOwed {
			early.To = last.size
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
func removeSegment(past *remains, number int) error {
	dir := past.dir
	err := durable.Rewrite(treePath(dir, number), fileRW, func(to io.Writer) error { return writeSpans(to, past, number) })
	if err != nil {
		return err
	}
	path := segmentPath(dir, number)
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
func writeSpans(to io.Writer, past *remains, number int) error {
	var e edge
	if number > 1 {
		before, err := past.sealOf(number - 1)
		if err != nil {
			return err
		}
		if e, err = newEdge(before.size, before.edge); err != nil {
			return err
		}
	}
	lines, err := openCursor(segmentPath(past.dir, number), position{seq: e.size})
	if err != nil {
		return err
	}
	defer lines.Close()
	text := bufio.NewWriter(to)
	span := spanTree{from: e.size, to: e.size}
	notes, err := past.notes(number)
	if err != nil {
		return err
	}
	defer notes.Close()
	_, err = readNotesOf(notes, func(_ []byte, c *checkpoint) error {
		for span.to < c.size {
			line, err := lines.next()
			if err == io.EOF {
				err = errors.New("the segment is shorter")
			}
			if err != nil {
				return err
			}
			span.appendLine(line)
		}
		if span.from < span.to {
			writeSpan(text, &e, &span)
		}
		if e.root() != c.root || c.size != e.size {
			return errors.New("the lines of the segment are not those that were signed")
		}
		return nil
	})
	return errors.Join(err, text.Flush())
}

// writeSpan ends a span: it becomes a line of text, which keeps an error, and a part of e.
func writeSpan(text *bufio.Writer, e *edge, span *spanTree) {
	fmt.Fprintf(text, "%d %d", span.from, span.to)
	for _, n := range span.next() {
		text.WriteString(" " + base64.StdEncoding.EncodeToString(n.hash[:]))
		e.append(n.level, n.hash, nil)
	}
	text.WriteByte('\n')
}
