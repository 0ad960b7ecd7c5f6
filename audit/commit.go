package audit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// gatherFor is how long after the start of one sync the committer lets
// waiters gather for the next. A sync takes a fifth of that and 100 µs of CPU; with 16
// goroutines that wait for every record, gathering takes the CPU time for one
// from 21 to 14 µs, and no rate from them.
const gatherFor = 2 * time.Millisecond

// A syncGroup is all callers that wait for the same sync.
type syncGroup struct {
	size      int
	callbacks []func(error)
	done      chan struct{} // closed in the end; nil where nobody waits for it
	err       error         // set before
}

func (r *syncGroup) finish() {
	for _, done := range r.callbacks {
		done(r.err)
	}
	if r.done != nil {
		close(r.done)
	}
}

// Durable calls done once: with nil when record seq is durable, or with an error when it never will be. If the outcome is
// known, done runs before Durable returns; otherwise the committer calls it later. So done must not block, and must
// not call Append, Reopen or Close. Records become durable in the order of seq.
func (l *Log) Durable(seq int64, done func(error)) {
	l.mu.Lock()
	known, err := l.settled(seq)
	if known {
		l.mu.Unlock()
		done(err)
		return
	}
	r := l.join()
	r.callbacks = append(r.callbacks, done)
	l.mu.Unlock()
}

// Wait waits until the record numbered seq is durable. An error is ctx's, or
// says that the record will not be.
func (l *Log) Wait(ctx context.Context, seq int64) error {
	l.mu.Lock()
	known, err := l.settled(seq)
	if known {
		l.mu.Unlock()
		return err
	}
	r := l.join()
	if r.done == nil {
		r.done = make(chan struct{})
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Settled reports whether Durable would call done before it returns, and with what.
func (l *Log) Settled(seq int64) (known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled(seq)
}

// settled reports whether it is known what becomes of a record, and the error
// if it is not going to be durable. It is called with mu held.
func (l *Log) settled(seq int64) (known bool, err error) {
	switch {
	case seq < 0 || seq >= l.written:
		return true, fmt.Errorf("audit record %d was not appended", seq)
	case l.options.Durability == Process:
		return true, nil
	case l.lost.contains(seq):
		return true, fmt.Errorf("%w: record %d could not be synced", ErrUnavailable, seq)
	case seq < l.durable:
		return true, nil
	default:
		return l.err != nil, l.err
	}
}

// join returns the next syncGroup with one more caller in it. It is called with mu held.
func (l *Log) join() *syncGroup {
	l.waiting.size++
	if l.waiting.size == 1 || l.waiting.size == l.lastSize {
		l.wakeCommitter()
	}
	return l.waiting
}

func (l *Log) wakeCommitter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// flushDue is what the timer runs.
func (l *Log) flushDue() {
	l.mu.Lock()
	l.armed = false
	l.mu.Unlock()
	l.wakeCommitter()
}

// commitUntilQuit is the committer: the one goroutine that answers who waits.
func (l *Log) commitUntilQuit() {
	defer close(l.stopped)
	var begun time.Time
	for {
		select {
		case <-l.wake:
			l.gather(begun.Add(gatherFor))
			begun = time.Now()
			l.commit()
		case <-l.quit:
			l.commit()
			return
		}
	}
}

// gather waits until as many wait as last time, but not longer than until
// deadline. One who waits alone does not wait for others.
func (l *Log) gather(deadline time.Time) {
	if l.gathered() {
		return
	}
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	for !l.gathered() {
		select {
		case <-l.wake:
		case <-late.C:
			return
		case <-l.quit:
			return
		}
	}
}

func (l *Log) gathered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.size >= l.lastSize || len(l.answered) > 0
}

// commit syncs what is not yet synced, and answers everyone for whom there is
// an answer.
func (l *Log) commit() {
	l.syncing.Lock()
	_ = l.sync() // which is what the answers say
	l.measureSpace()
	l.syncing.Unlock()

	l.mu.Lock()
	answered := l.answered
	l.answered = nil
	l.mu.Unlock()
	for _, r := range answered {
		r.finish()
	}
}

// sync makes everything durable that is written when it begins, and has an
// answer for everyone who waits then. It is called with syncing held.
func (l *Log) sync() error {
	l.mu.Lock()
	r, segment, written, err := l.waiting, l.segment, l.written, l.err
	clean, mark := l.durable == written, l.writtenMark
	l.waiting, l.lastSize = new(syncGroup), r.size
	l.mu.Unlock()

	if err == nil && !clean {
		err = errors.Join(l.lasts(), syncData(segment.File), linked(segment.File, segment.Name()))
	}
	if err != nil {
		err = l.fail(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && !clean {
		l.durable, l.durableMark = written, mark
	}
	l.answer(r, err)
	return err
}

// lasts makes the names of the files of a new log durable, and its key, where that was not
// done yet.
func (l *Log) lasts() error {
	if l.founded == nil {
		return nil
	}
	return l.founded()
}

// answer leaves a syncGroup to the committer, which the caller may have to wake.
// It is called with mu held.
func (l *Log) answer(r *syncGroup, err error) {
	if r.size == 0 {
		return
	}
	r.err = err
	l.answered = append(l.answered, r)
}
