package source

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// A RecordReader reads the records of an audit log in order.
type RecordReader struct {
	Dir   string
	lines lines
	last  string                               // folder of the log whose end is read last
	again func(since time.Time) (lines, error) // lines from the first record on, or since that time at least
}

// lines are those of one log, or of several.
type lines interface {
	logs.Lines
	Follow(ctx context.Context) error
	Close() error
}

func readerOf(dir string, log *audit.Reader) *RecordReader {
	return &RecordReader{Dir: dir, lines: log, last: dir, again: func(since time.Time) (lines, error) {
		from, err := audit.FromTime(dir, since)
		if err != nil {
			return nil, err
		}
		return audit.NewReader(dir, from)
	}}
}

// At returns a reader of the log in dir that begins with the record numbered from.
func At(dir string, from int64) (*RecordReader, error) {
	lines, err := audit.NewReader(dir, from)
	if err != nil {
		return nil, hint.Failed(err, "keep a copy of "+dir+" as it is")
	}
	return readerOf(dir, lines), nil
}

// Origin returns the origin of the log; it is empty for several logs, and for one without a checkpoint.
func (l *RecordReader) Origin() string {
	if l.Dir != l.last {
		return ""
	}
	return verify.Origin(l.Dir)
}

// Close closes the files of the log.
func (l *RecordReader) Close() { l.lines.Close() }

// Each calls do with each record that is in the log now: its line, and the line decoded. Both are valid
// only until do returns.
func (l *RecordReader) Each(do func(string, *record.Record) error) error {
	return l.scan(do, func(do func(string, *record.Record) error) error { return logs.Scan(l.lines, do) })
}

// Some is [RecordReader.Each] for the lines for which may returns true. Goroutines call it at the same time. If until has a
// time, which do may store, Some ends after it: an hour, since a clock may be set back, and then blocksMore blocks. A
// suspended machine writes late, and first of all, what was due.
func (l *RecordReader) Some(until *atomic.Pointer[time.Time], may func(line []byte) bool, do func(string, *record.Record) error) error {
	return l.scan(do, func(do func(string, *record.Record) error) error {
		return logs.ScanSome(&linesUntil{Lines: l.lines, until: until}, may, do)
	})
}

const blocksMore = 8 // of 256 KiB

type linesUntil struct {
	logs.Lines
	until *atomic.Pointer[time.Time]
	past  int // blocks that began more than an hour after until
}

func (l *linesUntil) Take(buffer []byte) (audit.Block, error) {
	b, err := l.Lines.Take(buffer)
	if t := l.until.Load(); err == nil && t != nil && b.Began().After(t.Add(mostSetBack)) {
		if l.past++; l.past > blocksMore {
			return audit.Block{}, io.EOF
		}
	}
	return b, err
}

// Joined is [RecordReader.Each] with records that j has completed, and that f matches.
func (l *RecordReader) Joined(j *logs.Joiner, f *logs.Filter, do func(string, *record.Record) error) error {
	return l.scan(do, func(do func(string, *record.Record) error) error { return logs.ScanJoined(l.lines, j, f, do) })
}

// Decisions calls do with each request in the log that matches f, joined with the end of its flow. A flow without an end is
// open only if a process writes the log. The record is valid only until do returns.
func (l *RecordReader) Decisions(f *logs.Filter, do func(*record.Record)) error {
	return l.DecisionsUntil(context.Background(), f, do)
}

// DecisionsUntil is [RecordReader.Decisions], and ends early with ctx.
func (l *RecordReader) DecisionsUntil(ctx context.Context, f *logs.Filter, do func(*record.Record)) error {
	atEnd := logs.OutcomeOpen
	if written, err := audit.Writing(l.last); err == nil && !written {
		atEnd = record.OutcomeCut
	}
	return l.damage(logs.ScanDecisions(logs.Until(ctx, l.lines), f, atEnd, do))
}

// scan returns an error of do as it is, and adds a hint to an error of the log.
func (l *RecordReader) scan(do func(string, *record.Record) error, scan func(func(string, *record.Record) error) error) error {
	var own error
	err := scan(func(line string, r *record.Record) error {
		own = do(line, r)
		return own
	})
	if own != nil {
		return own
	}
	return l.damage(err)
}

func (l *RecordReader) damage(err error) error {
	if err == nil {
		return nil
	}
	return hint.Failed(err, "keep a copy of "+l.Dir+" as it is")
}

// Rewind starts again at the first record.
func (l *RecordReader) Rewind() error { return l.rewind(time.Time{}) }

// mostSetBack is by how much a clock may have been set back between two records.
const mostSetBack = time.Hour

// RewindTo starts again so that all records since t follow, and perhaps earlier ones. It may miss some if the clock was set
// back by more than an hour.
func (l *RecordReader) RewindTo(t time.Time) error { return l.rewind(t.Add(-mostSetBack)) }

func (l *RecordReader) rewind(since time.Time) error {
	l.lines.Close()
	lines, err := l.again(since)
	if err != nil {
		return l.damage(err)
	}
	l.lines = lines
	return nil
}

// Follow calls do with each new record, completed by j, that f matches, until ctx ends.
func (l *RecordReader) Follow(ctx context.Context, j *logs.Joiner, f *logs.Filter, do func(string, *record.Record) error) error {
	for {
		err := l.lines.Follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return hint.Failed(err, "egressd log -f")
		}
		if err := l.Joined(j, f, do); err != nil {
			return err
		}
	}
}
