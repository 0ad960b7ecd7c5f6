package audit

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func (l *Log) marks() (written, durable int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written, l.durable
}

func TestDurableOnDiskComesAfterTheSync(t *testing.T) {
	l := create(t, t.TempDir(), Options{})
	answers := make(chan int64, 100)
	for range 100 {
		seq := appendTo(t, l, named("x"))
		l.Durable(seq, func(err error) {
			if _, durable := l.marks(); err != nil || durable <= seq {
				t.Errorf("record %d reported with %v while %d are durable", seq, err, durable)
			}
			answers <- seq
		})
	}
	for want := range int64(100) {
		if got := <-answers; got != want {
			t.Fatalf("answer for %d, want %d", got, want)
		}
	}
	at := false
	l.Durable(99, func(err error) { at = err == nil })
	if !at {
		t.Error("what is durable already is not reported at once")
	}
}

func TestDurableInProcessNeedsNoSync(t *testing.T) {
	l := create(t, t.TempDir(), Options{Durability: Process})
	seq := appendTo(t, l, named("x"))
	at := false
	l.Durable(seq, func(err error) { at = err == nil })
	if _, durable := l.marks(); !at || durable != 0 {
		t.Errorf("reported at once: %v, with %d records synced; want true, 0", at, durable)
	}
}

func TestDurableKnowsWhatWasNotAppended(t *testing.T) {
	for _, d := range []Durability{Disk, Process} {
		l := create(t, t.TempDir(), Options{Durability: d})
		for _, seq := range []int64{-1, 0} {
			if err := l.Wait(t.Context(), seq); err == nil {
				t.Errorf("record %d of an empty log is durable", seq)
			}
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	l := create(t, t.TempDir(), Options{})
	seq := appendTo(t, l, named("x"))
	l.syncing.Lock() // no sync ends
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Wait(ctx, seq); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
	l.syncing.Unlock()
	wait(t, l, seq)
}

func TestRecordsAreSyncedThoughNobodyWaits(t *testing.T) {
	for _, d := range []Durability{Disk, Process} {
		synctest.Test(t, func(t *testing.T) {
			l := create(t, t.TempDir(), Options{Durability: d})
			time.Sleep(time.Hour)
			for want := range int64(3) {
				appendTo(t, l, named("x"))
				synctest.Wait()
				if _, durable := l.marks(); durable != want {
					t.Fatalf("%d records are synced, want %d: nobody asked", durable, want)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if _, durable := l.marks(); durable != want+1 {
					t.Fatalf("%d records are synced a second later, want %d", durable, want+1)
				}
			}
			closeLog(t, l)
		})
	}
}

// TestACrowdGathersAndOneAloneDoesNot is what the rates of docs/explanation/performance.md rest on:
// who wait at once share a sync.
func TestACrowdGathersAndOneAloneDoesNot(t *testing.T) {
	covers(t, "AU-29")
	synctest.Test(t, func(t *testing.T) {
		l := create(t, t.TempDir(), Options{})
		wait(t, l, appendTo(t, l, named("alone")))
		for _, row := range []struct {
			before, now int
			waits       time.Duration
		}{
			{before: 1, now: 1, waits: 0},
			{before: 5, now: 5, waits: 0},
			{before: 5, now: 4, waits: gatherFor},
		} {
			l.mu.Lock()
			l.lastSize = row.before
			l.mu.Unlock()
			start := time.Now()
			var all sync.WaitGroup
			all.Add(row.now)
			for range row.now {
				l.Durable(appendTo(t, l, named("x")), func(error) { all.Done() })
				synctest.Wait() // the committer has seen it
			}
			all.Wait()
			if waited := time.Since(start); waited != row.waits {
				t.Errorf("%d waited after %d: %v, want %v", row.now, row.before, waited, row.waits)
			}
		}
		closeLog(t, l)
	})
}

func TestCloseSyncsAndAnswers(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	seq := appendTo(t, l, named("x"))
	var answer error = errors.New("none")
	l.Durable(seq, func(err error) { answer = err })
	closeLog(t, l)
	if written, durable := l.marks(); answer != nil || durable != written {
		t.Errorf("answer %v, %d of %d synced", answer, durable, written)
	}
	wait(t, l, seq)
	if _, err := l.Append([]byte(named("late"))); !errors.Is(err, ErrUnavailable) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	if err := l.Reopen(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("reopen after close: %v", err)
	}
	if err := l.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("close after close: %v", err)
	}
	if got := lines(t, dir); len(got) != 1 {
		t.Errorf("%d lines, want 1", len(got))
	}
}

// TestProcessSyncsWithinATenthOfASecond appends now and then, and looks how soon each record is synced by itself. The
// fastest of some counts: the machine may be busy.
func TestProcessSyncsWithinATenthOfASecond(t *testing.T) {
	l := create(t, t.TempDir(), Options{Durability: Process})
	fastest := time.Hour
	for range 5 {
		began := time.Now()
		seq := appendTo(t, l, named("x"))
		for {
			if _, durable := l.marks(); durable > seq {
				break
			}
			time.Sleep(time.Millisecond)
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest > 250*time.Millisecond {
		t.Errorf("synced after %s", fastest)
	}
}
