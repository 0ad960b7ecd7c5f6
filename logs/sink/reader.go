package sink

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/record"
)

// A reader is the position of a sink in the log.
type reader struct {
	lines *audit.Reader
	at    int64 // sequence number of the next record
}

func (r *reader) close() {
	if r.lines != nil {
		r.lines.Close()
		r.lines = nil
	}
}

// open positions the reader before the record with sequence number next of the log in dir.
func (r *reader) open(dir string, next int64) error {
	if r.lines != nil && r.at == next {
		return nil
	}
	r.close()
	lines, err := audit.NewReader(dir, next)
	if err != nil {
		return err
	}
	*r = reader{lines, next}
	return nil
}

// collect returns the next records, or an empty batch if there are none yet.
func (s *runner) collect() (*batch, error) {
	if err := s.reader.open(s.dir, s.next()); err != nil {
		return nil, err
	}
	b := &batch{from: s.next(), next: s.next()}
	var text []byte
	for len(b.ends) < s.batchSize() && b.bytes < batchBytes {
		line, err := s.reader.lines.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		r, err := record.Decode(line)
		if err != nil {
			return nil, err
		}
		if r.Seq > s.reader.at && len(b.ends) > 0 { // records after a gap begin a new batch
			s.reader.close()
			break
		}
		if r.Seq > s.reader.at {
			s.missed(r.Seq)
		}
		if len(b.ends) == 0 {
			b.from = r.Seq
		}
		s.reader.at = r.Seq + 1
		text = encode(text[:0], s.config.Format, r, line, s.origin)
		b.add(r, line, text)
	}
	return b, nil
}

// single returns a batch of one record, or nil if the log no longer has it.
func (s *runner) single(seq int64) (*batch, error) {
	lines, err := audit.NewReader(s.dir, seq)
	if err != nil {
		return nil, err
	}
	defer lines.Close()
	line, err := lines.Next()
	if err == io.EOF {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := record.Decode(line)
	if err != nil || r.Seq != seq {
		return nil, err
	}
	b := &batch{from: seq, next: seq}
	b.add(r, line, encode(nil, s.config.Format, r, line, s.origin))
	return b, nil
}

func encode(text []byte, format string, r *record.Record, line []byte, origin export.Origin) []byte {
	if encode, ok := export.Named(format); ok {
		return encode(text, r, line, origin)
	}
	return export.JSON(text, r, line, origin)
}

// missed skips to the record with sequence number to and reports the records that were never sent.
func (s *runner) missed(to int64) {
	if n := s.skip(to); n > 0 {
		s.onError(&missedError{s.config.Name, n})
	}
}

// follow waits for more records until ctx is done.
func (r *reader) follow(ctx context.Context) (done bool, err error) {
	err = r.lines.Follow(ctx)
	if ctx.Err() != nil || err == nil {
		return errors.Is(context.Cause(ctx), errStopped), nil
	}
	return false, err
}

// errStopped is the cause with which a Set cancels its sinks.
var errStopped = errors.New("the sink was stopped")

// lag returns the number of records from next to the end of the log in dir, and the age of the first.
func lag(dir string, next int64, now time.Time) (behind int64, age time.Duration) {
	lines, err := audit.NewReader(dir, next)
	if err != nil {
		return 0, 0
	}
	defer lines.Close()
	for {
		line, err := lines.Next()
		if err != nil {
			return behind, age
		}
		if behind == 0 {
			if r, err := record.Decode(line); err == nil {
				age = max(0, now.Sub(r.Time))
			}
		}
		behind++
	}
}
