package sink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/export"
)

// What a batch holds at most; a sink has one at a time.
const (
	batchRecords = 512
	batchBytes   = 1 << 20
)

// A batch is a run of records of the log, and the texts that come of them.
type batch struct {
	from, next int64 // seqs: of the first record, and of the one after the last
	entries    []export.Entry
	bytes      int64             // of the texts
	last       [sha256.Size]byte // of the line of the last record

	ends []recordEnd // of each record
}

// A recordEnd says which entries are those of the records up to one.
type recordEnd struct {
	seq     int64
	entries int
	sum     [sha256.Size]byte
}

// add appends a record with the lines that it gives.
func (b *batch) add(r *egress.Record, stored, text []byte) {
	for line := range bytes.Lines(text) {
		line = bytes.Clone(bytes.TrimSuffix(line, []byte("\n")))
		b.entries = append(b.entries, export.Entry{Record: r, Text: line})
		b.bytes += int64(len(line)) + 1
	}
	b.next, b.last = r.Seq+1, sha256.Sum256(stored)
	b.ends = append(b.ends, recordEnd{r.Seq, len(b.entries), b.last})
}

// halves returns two batches of about as many records. There are at least two.
func (b *batch) halves() (first, second *batch) {
	i := len(b.ends)/2 - 1
	cut := b.ends[i]
	first = &batch{from: b.from, next: cut.seq + 1, entries: b.entries[:cut.entries], last: cut.sum, ends: b.ends[:i+1]}
	second = &batch{from: cut.seq + 1, next: b.next, entries: b.entries[cut.entries:], last: b.last}
	for _, e := range b.ends[i+1:] {
		second.ends = append(second.ends, recordEnd{e.seq, e.entries - cut.entries, e.sum})
	}
	for _, half := range []*batch{first, second} {
		for _, e := range half.entries {
			half.bytes += int64(len(e.Text)) + 1
		}
	}
	return first, second
}

// A reader is where a sink is in the log.
type reader struct {
	lines *audit.Reader
	at    int64 // the seq that comes next
}

func (r *reader) close() {
	if r.lines != nil {
		r.lines.Close()
		r.lines = nil
	}
}

// open has the reader stand before the record that is to be sent next.
func (s *runner) open() error {
	if s.reader.lines != nil && s.reader.at == s.next() {
		return nil
	}
	s.reader.close()
	lines, err := audit.NewReader(s.dir, s.next())
	if err != nil {
		return err
	}
	s.reader = reader{lines, s.next()}
	return nil
}

// collect returns the records that come next, or an empty batch where there are
// none yet.
func (s *runner) collect() (*batch, error) {
	if err := s.open(); err != nil {
		return nil, err
	}
	b := &batch{from: s.next(), next: s.next()}
	var text []byte
	for len(b.ends) < batchRecords && b.bytes < batchBytes {
		line, err := s.reader.lines.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		r, err := logs.Decode(line)
		if err != nil {
			return nil, err
		}
		if r.Seq > s.reader.at && len(b.ends) > 0 { // what is behind the gap is a batch of its own
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
		text = s.encode(text[:0], r, line)
		b.add(r, line, text)
	}
	return b, nil
}

func (s *runner) encode(text []byte, r *egress.Record, line []byte) []byte {
	if encode, ok := export.Named(s.config.Format); ok {
		return encode(text, r, s.origin)
	}
	return append(append(text, line...), '\n')
}

// missed takes note that the records before to are no longer in the log. Those that were
// sent once count for nothing, nor does a gap that was met before.
func (s *runner) missed(to int64) {
	s.mu.Lock()
	n := max(0, to-max(s.state.Next, s.reached))
	s.state.Next, s.state.Missed = to, s.state.Missed+n
	s.reached = max(s.reached, to)
	s.dirty = true
	s.mu.Unlock()
	if n > 0 {
		s.complain(&missedError{s.config.Name, n})
	}
}

// follow waits for more, until ctx is done.
func (s *runner) follow(ctx context.Context) (done bool, err error) {
	err = s.reader.lines.Follow(ctx)
	if ctx.Err() != nil || err == nil {
		return errors.Is(context.Cause(ctx), errStopped), nil
	}
	return false, err
}

// errStopped is why the context of a set is done.
var errStopped = errors.New("the sink was stopped")

// lag is how far a sink is behind the end of the log in dir: how many records, and
// how old the first of them is.
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
			if r, err := logs.Decode(line); err == nil {
				age = max(0, now.Sub(r.Time))
			}
		}
		behind++
	}
}
