package sink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/record"
)

const (
	sendWithin = 15 * time.Second // for one batch
	saveEvery  = time.Second      // minimum time between two saves while records are sent
)

// A backoff bounds the wait after failures. The wait begins at min, doubles with each failure, and never
// exceeds max.
type backoff struct{ min, max time.Duration }

var usualBackoff = backoff{500 * time.Millisecond, 30 * time.Second}

// wait returns the wait after consecutive failures. It is random, so that the sinks of many machines do
// not return at once.
func (p backoff) wait(failures int) time.Duration {
	d := p.max
	if failures < 16 {
		d = min(p.max, p.min<<max(0, failures-1))
	}
	return d/2 + rand.N(d/2+1)
}

// after is how long to wait after err, the last of failures in a row. The receiver may ask for more.
func (p backoff) after(failures int, err error) time.Duration {
	wait := p.wait(failures)
	if later, ok := errors.AsType[*laterError](err); ok {
		wait = max(wait, min(later.after, 2*p.max))
	}
	return wait
}

// A runner sends the records of the log to one sink.
type runner struct {
	config  Config
	dir     string // of the log
	origin  export.Origin
	onError func(error)
	backoff backoff

	target      target
	reader      reader
	failures    int             // consecutive
	refusals    int             // consecutive, of single records
	accepted    bool            // the receiver has accepted a record
	most        int             // records of a batch; a slow receiver gets fewer
	tried       time.Time       // the refused records were sent again
	draining    context.Context // done when the runner must send the rest and end
	unconfirmed unconfirmed

	rewound int64 // where the last rewind went back to
	rewinds int   // to there

	position
}

// run sends until ctx is done. When draining is done, run returns as soon as all records are sent.
func (s *runner) run(ctx context.Context) {
	defer s.target.close()
	for ctx.Err() == nil {
		err := s.sendAll(ctx)
		s.reader.close()
		if err == nil || ctx.Err() != nil {
			break
		}
		s.failed(err)
		if !keeps(err) {
			s.rewind(errors.Is(err, errGone))
		}
		if !s.pause(ctx, err) {
			break
		}
	}
	s.save()
}

// keeps reports whether the receiver has what it took before, after an error: it is there, and has answered.
func keeps(err error) bool {
	_, kept := errors.AsType[*keptError](err)
	_, refused := errors.AsType[*refusedError](err)
	return kept || refused
}

// sendAll sends present and future records. It returns nil when the runner may end.
func (s *runner) sendAll(ctx context.Context) error {
	for {
		if life := s.target.life(); life.Err() != nil {
			s.target.close()
			return context.Cause(life)
		}
		if err := s.retryRefused(ctx); err != nil {
			return err
		}
		last := s.draining.Err() != nil // what was recorded before that is in the log by now
		b, err := s.collect()
		if err != nil {
			return err
		}
		if b.next == s.next() {
			if last {
				return nil
			}
			if done, err := s.idle(ctx); done || err != nil {
				return err
			}
			continue
		}
		if err := s.deliver(ctx, b); err != nil {
			return err
		}
	}
}

var (
	// errGone says that the receiver closed the connection after it had read all data.
	errGone = errors.New("the receiver closed the connection")

	// errReset says that the receiver closed the connection with unread data.
	errReset = errors.New("the connection to the receiver broke")
)

// deliver sends a batch. If the receiver refuses it, deliver sends smaller parts, and finally puts the refused record
// aside. The record is sent again later.
func (s *runner) deliver(ctx context.Context, b *batch) error {
	within, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	began := time.Now()
	err := s.target.send(within, b)
	s.pace(time.Since(began))
	var refused *refusedError
	var partial *partialError
	switch {
	case err == nil:
		s.refusals = 0
		s.accepted = true
	case errors.As(err, &partial):
		s.reject(partial)
	case !errors.As(err, &refused):
		return err
	case len(b.ends) > 1:
		first, second := b.halves()
		if err := s.deliver(ctx, first); err != nil {
			return err
		}
		return s.deliver(ctx, second)
	case !s.accepted || s.refusals >= maxRefusals || s.aside() >= maxAside:
		return err // the receiver refuses more than single records
	default:
		s.refusals++
		s.putAside(b.from, err)
	}
	s.acknowledge(b)
	return nil
}

const (
	maxRefusals = 16   // consecutive records that may be put aside
	maxAside    = 1024 // records that may be put aside
)

const (
	slowSend  = 5 * time.Second // a batch that takes longer is too large
	quickSend = time.Second
)

// pace adapts the size of batches to the time that the last one took.
func (s *runner) pace(took time.Duration) {
	switch {
	case took >= slowSend:
		s.most = max(1, s.batchSize()/2)
	case took < quickSend:
		s.most = min(batchRecords, 2*s.batchSize())
	}
}

// batchSize returns how many records a batch may have.
func (s *runner) batchSize() int {
	if s.most == 0 {
		return batchRecords
	}
	return s.most
}

// retryEvery is the time between two attempts to send refused records again. Tests replace it.
var retryEvery = time.Minute

// retryRefused sends the records again that the receiver refused, each by itself: somebody may have corrected what the receiver
// takes.
func (s *runner) retryRefused(ctx context.Context) error {
	if s.aside() == 0 || time.Since(s.tried) < retryEvery {
		return nil
	}
	s.tried = time.Now()
	for _, seq := range s.refused() {
		b, err := s.single(seq)
		if err != nil {
			return err
		}
		if b == nil {
			s.change(func(p *State) { p.takeBack(seq); p.Missed++ })
			continue
		}
		within, cancel := context.WithTimeout(ctx, sendWithin)
		err = s.target.send(within, b)
		cancel()
		var refused *refusedError
		switch {
		case errors.As(err, &refused):
			s.change(func(p *State) { p.Error, p.ErrorAt = clean(err.Error()), now() })
		case err != nil:
			return err
		default:
			s.change(func(p *State) { p.takeBack(seq); p.Sent++; p.SentAt = now() })
		}
	}
	s.saveIfDue()
	return nil
}

// idle waits for more records. It returns true when the runner must end.
func (s *runner) idle(ctx context.Context) (done bool, err error) {
	wait := time.Hour
	if s.aside() > 0 {
		wait = max(time.Millisecond, retryEvery-time.Since(s.tried))
	}
	if left := s.saveDue(); left > 0 {
		wait = min(wait, left)
	} else if left == 0 {
		s.save()
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer context.AfterFunc(s.target.life(), cancel)()
	defer context.AfterFunc(s.draining, cancel)()
	return s.reader.follow(ctx)
}

// pause waits after a failure. It returns false if the runner must end.
func (s *runner) pause(ctx context.Context, err error) bool {
	return rest(ctx, s.draining, s.backoff.after(s.failures, err))
}

// rest waits. It returns false if ctx or draining ended before.
func rest(ctx, draining context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-draining.Done():
		return false
	case <-ctx.Done():
		return false
	}
}

// failed records an error. The operator is told about the first of several consecutive errors.
func (s *runner) failed(err error) {
	s.failures++
	if s.failures == 1 && !errors.Is(err, errGone) {
		s.onError(fmt.Errorf("sink %s: %w; what it does not get stays in the log, and is sent later", s.config.Name, err))
	}
	s.change(func(p *State) { p.Error, p.ErrorAt = clean(err.Error()), now() })
	s.saveIfDue()
}

// putAside records that the receiver refused a record, which is sent again later.
func (s *runner) putAside(seq int64, err error) {
	first := false
	s.change(func(p *State) {
		first = len(p.Aside) == 0
		p.Aside = append(p.Aside, seq)
		p.Error, p.ErrorAt = clean(err.Error()), now()
	})
	if first {
		s.tried = time.Now()
		s.onError(fmt.Errorf("sink %s: record %d: %w; it is sent again every %s, and the others go on", s.config.Name, seq, err, retryEvery))
	}
}

// reject records that the receiver has thrown away records of a batch, and does not say which ones.
func (s *runner) reject(partial *partialError) {
	first := false
	s.change(func(p *State) {
		first = p.Rejected == 0
		p.Rejected += partial.count
		p.Error, p.ErrorAt = clean(partial.Error()), now()
	})
	if first {
		s.onError(fmt.Errorf("sink %s: %w; the log has them, see egressd log verify --rows", s.config.Name, partial))
	}
}

// acknowledge records that the receiver has the batch.
func (s *runner) acknowledge(b *batch) {
	s.failures = 0
	s.unconfirmed.add(b, s.target.unsure())
	s.change(func(p *State) {
		p.Next, p.Sent, p.SentAt = b.next, p.Sent+int64(len(b.entries)), now()
		p.mark(b.next-1, b.last)
	})
	s.saveIfDue()
}

// rewind moves back to the first batch that may be lost with the connection. After maxRewinds times to the same batch it goes on: each
// connection ends then before the batch could be confirmed.
func (s *runner) rewind(clean bool) {
	from, ok := s.unconfirmed.start(clean, time.Now())
	s.unconfirmed = unconfirmed{}
	if !ok {
		return
	}
	if from > s.rewound {
		s.rewound, s.rewinds = from, 0
	}
	if s.rewinds++; s.rewinds <= maxRewinds {
		s.backTo(from)
	}
}

const maxRewinds = 5

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// clean returns text as printable ASCII of at most 300 bytes, for files and terminals.
func clean(text string) string {
	var out []byte
	for i := 0; i < len(text) && len(out) < 300; i++ {
		c := text[i]
		if c < ' ' || c > '~' {
			c = '?'
		}
		out = append(out, c)
	}
	return string(out)
}

// An unconfirmed lists the batches that may be lost with the current connection. The transport confirms
// only that the receiver's kernel has the bytes, not that the program has read them.
type unconfirmed struct {
	sent    int64 // bytes sent over this connection
	batches []sentBatch
}

type sentBatch struct {
	from int64     // first sequence number
	end  int64     // value of sent after the batch
	at   time.Time // time of sending
}

// storeTime is the time that a receiver may need to store data that it has read: a collector has a queue in memory.
const storeTime = time.Minute

func (t *unconfirmed) add(b *batch, unsure int64) {
	if unsure == 0 {
		return
	}
	t.sent += b.bytes
	t.batches = append(t.batches, sentBatch{b.from, t.sent, time.Now()})
	drop := 0
	for drop < len(t.batches) && t.sent-t.batches[drop].end >= unsure && time.Since(t.batches[drop].at) > storeTime {
		drop++
	}
	t.batches = append(t.batches[:0], t.batches[drop:]...)
}

// start returns the sequence number to resend from. A cleanly closed connection was read completely, and the last minute of it may
// have been in memory only.
func (t *unconfirmed) start(clean bool, now time.Time) (int64, bool) {
	for _, b := range t.batches {
		if !clean || now.Sub(b.at) < storeTime {
			return b.from, true
		}
	}
	return 0, false
}

// Maximum size of a batch. A sink has one batch at a time.
const (
	batchRecords = 512
	batchBytes   = 1 << 20
)

// A batch is a sequence of records and the texts encoded from them.
type batch struct {
	from, next int64 // sequence numbers of the first record and of the record after the last
	entries    []export.EncodedRecord
	bytes      int64             // length of the texts
	last       [sha256.Size]byte // hash of the last record's line

	ends []recordEnd // one for each record
}

// A recordEnd marks the end of a record's entries.
type recordEnd struct {
	seq     int64
	entries int
	sum     [sha256.Size]byte
}

// add appends a record; each line of text is an entry.
func (b *batch) add(r *record.Record, stored, text []byte) {
	for line := range bytes.Lines(text) {
		line = bytes.Clone(bytes.TrimSuffix(line, []byte("\n")))
		b.entries = append(b.entries, export.EncodedRecord{Record: r, Text: line})
		b.bytes += int64(len(line)) + 1
	}
	b.next, b.last = r.Seq+1, sha256.Sum256(stored)
	b.ends = append(b.ends, recordEnd{r.Seq, len(b.entries), b.last})
}

// halves splits a batch of at least two records into two.
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
