package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

// An Interruption is a time in which a log admitted no records.
type Interruption struct {
	Cause    error
	Began    time.Time
	Refused  int64 // records that could not be written
	From, To int64 // the records [From, To) were written; a crash of the machine may lose them
	Torn     []format.Torn
}

// fail makes the log admit nothing more, lets the committer tell everyone who
// waits, and returns what it tells them. One of the three locks is held: so [Options.Changed]
// is called in the order of the changes.
func (l *Log) fail(err error) error {
	first, err := l.stopAdmitting(err)
	if first && l.options.Changed != nil {
		l.options.Changed(err)
	}
	return err
}

// stopAdmitting reports whether records were admitted until now, and why they are not.
func (l *Log) stopAdmitting(err error) (first bool, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false, l.err
	}
	l.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	if l.interruption.Cause == nil { // else the log failed before it could record that it goes on
		l.interruption = Interruption{Cause: err, Began: time.Now(), Refused: -l.refused.Load()}
	}
	l.answer(l.waiting, l.err)
	l.waiting = new(syncGroup)
	l.wakeCommitter()
	return true, l.err
}

// makeRoom lets n bytes be written without making the segment larger than it
// should be. It is called with writing held.
func (l *Log) makeRoom(n int) error {
	if l.end.Offset == 0 || l.end.Offset+int64(n) <= l.options.SegmentBytes {
		return nil
	}
	if err := l.rotate(); err != nil {
		return l.fail(err)
	}
	return nil
}

// rotate puts a new segment in the place of the current one, which is synced
// before: else a crash of the machine could leave a gap between the two.
func (l *Log) rotate() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err := l.sync(); err != nil {
		return err
	}
	next, err := createSegment(l.dir, l.segment.number+1)
	if err != nil {
		return err
	}
	l.replace(next, format.Torn{})
	l.wakeNotary()
	return nil
}

// replace makes next the current segment. The previous one ends with torn and waits for its seal. The caller holds
// writing and syncing. The previous segment was synced or given up, so an error of closing it adds nothing.
func (l *Log) replace(next *segment, torn format.Torn) {
	l.mu.Lock()
	last := l.segment
	l.segment = next
	if l.notary != nil && next.number > last.number {
		l.sealed = append(l.sealed, seal{l.tree, torn})
	}
	if torn.Bytes > 0 {
		l.torn = append(l.torn, torn)
	}
	l.mu.Unlock()
	l.end.Offset = 0
	l.tree.Segment, l.tree.First, l.tree.Bytes = next.number, l.end.Seq, 0
	_ = last.Close()
}

// retry goes on after err, unless that was tried a moment ago. It is called
// with writing held.
func (l *Log) retry(err error) error {
	if !l.retried.IsZero() && time.Since(l.retried) < retryAfter {
		return err
	}
	return l.goOn()
}

// Reopen goes on in a fresh segment after an error. It does nothing where the
// log admits records. An error wraps [ErrUnavailable] and says why it failed.
func (l *Log) Reopen() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.Err() == nil {
		return nil
	}
	return l.goOn()
}

// goOn leaves the failed segment as it is, and makes a fresh one the current
// one. It is called with writing held.
func (l *Log) goOn() error {
	l.syncing.Lock() // waits for a sync that was under way when the write failed
	defer l.syncing.Unlock()
	l.retried = time.Now()
	if closed, err := l.state(); closed {
		return err
	}
	number, torn, err := l.leave()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	next, err := createSegment(l.dir, number)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	l.replace(next, torn)
	if err := l.attest(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	l.admit()
	if err := l.recordRecovery(); err != nil {
		return err
	}
	if l.options.Changed != nil {
		l.options.Changed(nil)
	}
	return nil
}

// recordRecovery begins the fresh segment with the record of the interruption. It is called with
// writing and syncing held.
func (l *Log) recordRecovery() error {
	l.mu.Lock()
	over := l.interruption
	over.Refused += l.refused.Load()
	over.Torn = l.torn
	l.mu.Unlock()
	if l.options.Recovery != nil {
		record := l.options.Recovery(over)
		if err := checkRecord(record); err != nil {
			return l.fail(err)
		}
		l.stamp([][]byte{record}, time.Now())
		if _, err := l.write(1); err != nil {
			return err
		}
		l.mu.Lock()
		l.torn = nil
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interruption = Interruption{}
	return nil
}

func (l *Log) state() (closed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed, l.err
}

// leave finds the end of the log. It returns the number of the next segment and the torn end of the current one. A segment
// without a whole line is removed; otherwise every attempt on a full disk would leave another one.
//
// The file decides, not the result of the write. If lines are in the file although their write failed, readers see
// these lines, and the next line must follow them.
func (l *Log) leave() (number int, torn format.Torn, err error) {
	path := l.segment.Name()
	if info, err := os.Stat(path); err == nil && info.Size() < l.end.Offset {
		return 0, format.Torn{}, &format.DamageError{Segment: path, Offset: info.Size(), Reason: "it is shorter than what was written to it"}
	}
	tree := l.tree
	end, err := scan(path, l.end, tree.Add)
	switch {
	case l.end.Offset == 0 && errors.Is(err, fs.ErrNotExist):
		return l.segment.number, format.Torn{}, nil // an earlier attempt came as far as removing it
	case err != nil:
		return 0, format.Torn{}, err
	case end.Offset == 0:
		return l.segment.number, format.Torn{}, os.Remove(path)
	}
	l.end, l.tree = end, tree
	torn, err = format.DescribeTorn(path, end.Offset, io.Discard)
	return l.segment.number + 1, torn, err
}

// admit lets records in again.
func (l *Log) admit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = nil
	if l.durable < l.end.Seq {
		l.lost = l.lost.cover(l.durable, l.end.Seq)
		lost := span{l.interruption.From, l.interruption.To}.cover(l.durable, l.end.Seq)
		l.interruption.From, l.interruption.To = lost.from, lost.to
	}
	l.written, l.durable = l.end.Seq, l.end.Seq
	l.writtenMark, l.durableMark = l.tree, l.tree
}
