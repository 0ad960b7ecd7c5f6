// Package sink sends the records of an audit log on, as they are written, to where
// an operator wants them: an OpenTelemetry collector, a syslog server, a file or a
// socket.
//
//	sinks := sink.NewSet(dir, origin, complain)
//	err := sinks.Apply([]sink.Config{{Name: "siem", Type: "otlp", URL: "http://127.0.0.1:4318/v1/logs"}})
//	…
//	sinks.Stop(3 * time.Second)
//
// The log on disk is the queue. A sink is a reader of it like any other: it takes no
// lock, nobody waits for it, and one that hangs holds back itself alone. Where it
// is stands in a file below the folder of the log, so that it goes on there after a
// restart of either side. A record that was sent may be sent again, in its order
// and with the same seq, by which a receiver tells; none is left out.
//
// The connections are egressd's own and no sandbox's: they go where the
// configuration says, follow no redirect, and take no notice of proxy variables.
package sink

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/logs/export"
)

// Config says where records go, and how.
type Config struct {
	Name   string // of the sink, and of the file that says where it is
	Type   string // "otlp", "syslog", "file" or "unix"
	URL    string // of "otlp"
	Format string // of the text: a name of [export.Formats], or "json" for the stored lines

	// Address of "syslog": "udp:host:port", "tcp:host:port", "tls:host:port" or
	// "unix:/path".
	Address string

	// Path of the file or the socket.
	Path string

	// Headers are added to the requests of "otlp". They are in no error.
	Headers http.Header

	// Roots are the authorities for TLS; nil means the system's.
	Roots *x509.CertPool
}

// place says where the sink sends to, for people: without the query, which may
// hold a credential.
func (c *Config) place() string {
	switch c.Type {
	case "otlp":
		place, _, _ := strings.Cut(c.URL, "?")
		return place
	case "syslog":
		return c.Address
	default:
		return c.Path
	}
}

const (
	sendWithin = 15 * time.Second // for one batch
	saveEvery  = time.Second      // at most so often, as long as there is something to send
)

// patience is how long a sink waits after failures: the first time up to least,
// doubled each time, never more than most.
type patience struct{ least, most time.Duration }

var usualPatience = patience{500 * time.Millisecond, 30 * time.Second}

// wait returns how long to wait after so many failures in a row, with as much
// chance in it as keeps sinks of many machines from coming back at once.
func (p patience) wait(failures int) time.Duration {
	d := p.most
	if failures < 16 {
		d = min(p.most, p.least<<max(0, failures-1))
	}
	return d/2 + rand.N(d/2+1)
}

// A runner is one sink at work.
type runner struct {
	config   Config
	dir      string // of the log
	origin   export.Origin
	complain func(error)
	patience patience

	target   target
	reader   reader
	failures int             // in a row
	refusals int             // in a row, of single records
	accepted bool            // the receiver has taken something
	draining context.Context // done once no more is to be waited for
	trail    trail

	mu      sync.Mutex
	state   State
	reached int64     // the largest Next that it had
	dirty   bool      // since it was saved
	saved   time.Time // the last time
}

// run sends until ctx is done, or until all is sent once draining is done.
func (s *runner) run(ctx context.Context) {
	defer s.target.close()
	for ctx.Err() == nil {
		err := s.pump(ctx)
		s.reader.close()
		if err == nil || ctx.Err() != nil {
			break
		}
		s.failed(err)
		s.rewind(errors.Is(err, errGone))
		if !s.pause(ctx, err) {
			break
		}
	}
	s.save()
}

// pump sends what there is and what comes. It returns nil when it may end.
func (s *runner) pump(ctx context.Context) error {
	for {
		if life := s.target.life(); life.Err() != nil {
			s.target.close()
			return context.Cause(life)
		}
		b, err := s.collect()
		if err != nil {
			return err
		}
		if b.next == s.next() {
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
	// errGone says that the other side has closed the connection after it had read
	// all that its kernel had for it.
	errGone = errors.New("the receiver closed the connection")

	// errReset says that it has not.
	errReset = errors.New("the connection to the receiver broke")
)

// deliver sends a batch. Where the receiver will not take it as it is, it sends it
// in parts, and leaves out the one record that is not taken.
func (s *runner) deliver(ctx context.Context, b *batch) error {
	within, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	err := s.target.send(within, b)
	var refused *refusedError
	var partial *partialError
	switch {
	case err == nil:
		s.refusals = 0
		s.accepted = true
	case errors.As(err, &partial):
		s.refuse(b.from, err)
	case !errors.As(err, &refused):
		return err
	case len(b.ends) > 1:
		first, second := b.halves()
		if err := s.deliver(ctx, first); err != nil {
			return err
		}
		return s.deliver(ctx, second)
	case !s.accepted || s.refusals >= refusalsMost:
		return err // it is not the record that is wrong, but more than that
	default:
		s.refusals++
		s.refuse(b.from, err)
	}
	s.acknowledge(b)
	return nil
}

// refusalsMost is how many records in a row are left out because a receiver that
// took others does not take them.
const refusalsMost = 16

// idle waits until there may be more. It returns true when the sink is to end.
func (s *runner) idle(ctx context.Context) (done bool, err error) {
	wait := time.Hour
	if left := s.saveDue(); left > 0 {
		wait = left
	} else if left == 0 {
		s.save()
	}
	if s.draining.Err() != nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer context.AfterFunc(s.target.life(), cancel)()
	defer context.AfterFunc(s.draining, cancel)()
	return s.follow(ctx)
}

// pause waits after a failure, and returns whether to go on.
func (s *runner) pause(ctx context.Context, err error) bool {
	wait := s.patience.wait(s.failures)
	var later *laterError
	if errors.As(err, &later) {
		wait = max(wait, min(later.after, 2*s.patience.most))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.draining.Done():
		return false
	case <-ctx.Done():
		return false
	}
}

// failed takes note of an error, and tells the operator of the first in a row.
func (s *runner) failed(err error) {
	s.failures++
	if s.failures == 1 && !errors.Is(err, errGone) {
		s.complain(fmt.Errorf("sink %s: %w; what it does not get stays in the log, and is sent later", s.config.Name, err))
	}
	s.mu.Lock()
	s.state.Error, s.state.ErrorAt = clean(err.Error()), now()
	s.dirty = true
	s.mu.Unlock()
	if s.saveDue() <= 0 {
		s.save()
	}
}

// refuse takes note of something in or behind a record that the receiver will never
// take.
func (s *runner) refuse(seq int64, err error) {
	s.mu.Lock()
	s.state.Refused++
	first := s.state.Refused == 1
	s.state.Error, s.state.ErrorAt = clean(err.Error()), now()
	s.mu.Unlock()
	if first {
		s.complain(fmt.Errorf("sink %s: record %d: %w; it is left out there", s.config.Name, seq, err))
	}
}

// acknowledge takes note of what the receiver has.
func (s *runner) acknowledge(b *batch) {
	if s.failures > 0 {
		s.failures = 0
	}
	s.trail.add(b, s.target.unsure())
	s.mu.Lock()
	s.state.Next, s.state.Sent, s.state.SentAt = b.next, s.state.Sent+int64(len(b.entries)), now()
	s.state.at(b.next-1, b.last)
	s.dirty = true
	s.mu.Unlock()
	if s.saveDue() <= 0 {
		s.save()
	}
}

// rewind goes back to what the receiver may have lost with its connection.
func (s *runner) rewind(clean bool) {
	from, ok := s.trail.start(clean, time.Now())
	s.trail = trail{}
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reached = max(s.reached, s.state.Next)
	s.state.Next = min(s.state.Next, from)
}

func (s *runner) next() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Next
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// clean is an error as it may stand in a file and on a terminal.
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

// A trail is what was sent over the connection at hand and may still be lost with
// it: a transport tells that the other side's kernel has the bytes, not that its
// program has read them.
type trail struct {
	sent    int64 // bytes over this connection
	batches []trailed
}

type trailed struct {
	from int64     // the seq that it began with
	end  int64     // bytes that were sent after it
	at   time.Time // when it was sent
}

// unstored is how long a program that has read something may need to put it away.
const unstored = 5 * time.Second

func (t *trail) add(b *batch, unsure int64) {
	if unsure == 0 {
		return
	}
	t.sent += b.bytes
	t.batches = append(t.batches, trailed{b.from, t.sent, time.Now()})
	drop := 0
	for drop < len(t.batches) && t.sent-t.batches[drop].end >= unsure {
		drop++
	}
	t.batches = append(t.batches[:0], t.batches[drop:]...)
}

// start is the seq to go back to. Of a connection that ended cleanly all was read.
func (t *trail) start(clean bool, now time.Time) (int64, bool) {
	for _, b := range t.batches {
		if !clean || now.Sub(b.at) < unstored {
			return b.from, true
		}
	}
	return 0, false
}
