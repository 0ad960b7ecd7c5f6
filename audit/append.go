package audit

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

const (
	maxStamp = len(format.StampVersion) + len("9223372036854775807") + len(format.StampTime) + len(format.TimeLayout) + len(format.StampEnd)

	// MaxRecord is the largest record that Append accepts, in bytes. The number and time that Append adds fill the
	// line up to 8 KiB.
	MaxRecord = format.MaxLine - maxStamp + len("{")
)

// A batch holds the lines of one write. The first caller that gets writing writes the batch for every caller that
// added a line.
type batch struct {
	records [][]byte // theirs: they wait, and so do not change it

	// These fields are guarded by writing.
	written  bool
	first    int64 // the seq of records[0]
	admitted int   // so many of records are in the log
	err      error // why the others are not
	left     int   // so many of records have no result yet that somebody asked for
}

// Append writes record as the next line of the log and returns its number.
// The line is in the hands of the kernel then: it survives the end of this
// process, but not yet that of the machine.
//
// A record is one JSON object without the members v, seq and time, in
// Printable ASCII on one line, at most MaxRecord bytes; Append puts those
// three in front of the others. It checks the outer form only. An error that
// wraps [ErrUnavailable] concerns the log, any other one this record alone;
// either way it was not accepted.
//
// After an error of the log Append tries to go on in a fresh segment, at most
// once a second.
func (l *Log) Append(record []byte) (seq int64, err error) {
	seq, _, err = l.AppendAll([][]byte{record})
	return seq, err
}

// AppendAll is Append for records that come together: they have the numbers from
// first on. Beside an error, n is how many of them were accepted, from the first on;
// none is where one of them is no record.
func (l *Log) AppendAll(records [][]byte) (first int64, n int, err error) {
	for _, record := range records {
		if err := checkRecord(record); err != nil {
			return 0, 0, err
		}
	}
	if len(records) == 0 {
		return 0, 0, nil
	}
	b, i := l.enqueue(records)
	l.writing.Lock()
	defer l.writing.Unlock()
	if !b.written {
		l.writeQueue() // which b is: batches are written in order
	}
	defer l.release(b, len(records))
	n = min(max(b.admitted-i, 0), len(records))
	if n < len(records) {
		err = b.err
	}
	if n == 0 {
		return 0, 0, err
	}
	return b.first + int64(i), n, err
}

func checkRecord(record []byte) error {
	switch {
	case len(record) > MaxRecord:
		return fmt.Errorf("audit record has %d bytes, more than %d", len(record), MaxRecord)
	case !bytes.HasPrefix(record, []byte(`{"`)) || record[len(record)-1] != '}':
		return errors.New("audit record is not a JSON object with members")
	case !format.Printable(record):
		return errors.New("audit record is not one line of printable ASCII")
	}
	return nil
}

func (l *Log) enqueue(records [][]byte) (b *batch, first int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b = l.queue
	first = len(b.records)
	b.records = append(b.records, records...)
	return b, first
}

// release gives b back once all n records in it have a result. It is called with
// writing held.
func (l *Log) release(b *batch, n int) {
	b.left -= n
	if b.left == 0 {
		clear(b.records)
		*b = batch{records: b.records[:0]}
		l.reserved = b
	}
}

// takeQueue returns the batch to write, and leaves an empty one in its place.
func (l *Log) takeQueue() (*batch, error) {
	next := l.reserved
	l.reserved = nil
	if next == nil {
		next = new(batch)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.queue
	l.queue = next
	b.left = len(b.records)
	return b, l.err
}

// writeQueue writes what was queued up, and sets its result. It is called with
// writing held.
func (l *Log) writeQueue() {
	b, err := l.takeQueue()
	b.written = true
	if err != nil {
		err = l.retry(err)
	}
	if err == nil {
		b.first = l.end.Seq
		l.stamp(b.records, time.Now())
		err = l.makeRoom(len(l.buffer))
	}
	if err == nil {
		b.admitted, err = l.write(len(b.records))
	}
	if b.err = err; err != nil {
		l.refused.Add(int64(len(b.records) - b.admitted))
	}
}

// stamp fills the buffer with the lines of records.
func (l *Log) stamp(records [][]byte, now time.Time) {
	if cap(l.buffer) > keepBuffer {
		l.buffer = nil
	}
	buf := l.buffer[:0]
	l.date = now.UTC().AppendFormat(l.date[:0], format.TimeLayout)
	for i, record := range records {
		buf = append(buf, format.StampVersion...)
		buf = strconv.AppendInt(buf, l.end.Seq+int64(i), 10)
		buf = append(buf, format.StampTime...)
		buf = append(buf, l.date...)
		buf = append(buf, format.StampEnd...)
		buf = append(buf, record[len("{"):]...)
		buf = append(buf, '\n')
	}
	l.buffer = buf
}

// write writes the buffer, which holds n lines. A line that was written whole
// is acknowledged even where a later one was not.
func (l *Log) write(n int) (admitted int, err error) {
	size, err := l.segment.Write(l.buffer)
	if err != nil {
		n = bytes.Count(l.buffer[:size], []byte("\n"))
		size = bytes.LastIndexByte(l.buffer[:size], '\n') + 1
	}
	l.end.Offset += int64(size)
	l.end.Seq += int64(n)
	l.grow(l.buffer[:size])
	l.acknowledge()
	if err != nil {
		err = l.fail(err)
	}
	return n, err
}

// acknowledge makes known that everything before l.end is written, and sees to
// it that it is synced in due time.
func (l *Log) acknowledge() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written = l.end.Seq
	l.writtenMark = l.tree
	if !l.armed {
		l.armed = true
		l.flush.Reset(flushAfter)
	}
	l.armNotary()
}
