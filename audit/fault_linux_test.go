package audit

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

// breakDescriptor puts another file behind the descriptor of l's segment:
// /dev/full fails every write with ENOSPC, a pipe every sync with EINVAL.
func breakDescriptor(t *testing.T, l *Log, with *os.File) {
	t.Helper()
	defer with.Close()
	if err := syscall.Dup3(int(with.Fd()), int(l.segment.Fd()), syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
}

func full(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func pipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return w
}

// answered makes Durable synchronous.
func answered(l *Log, seq int64) error {
	answer := make(chan error, 1)
	l.Durable(seq, func(err error) { answer <- err })
	return <-answer
}

func TestAWriteErrorStopsTheSegmentAndNotTheLog(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	appendTo(t, l, named("before"))
	wait(t, l, 0)
	breakDescriptor(t, l, full(t))
	_, err := l.Append([]byte(named("refused")))
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append: %v", err)
	}
	if !errors.Is(l.Err(), syscall.ENOSPC) {
		t.Errorf("the log says %v", l.Err())
	}
	if err := l.Reopen(); err != nil || l.Err() != nil {
		t.Fatalf("reopen: %v, then the log says %v", err, l.Err())
	}
	if seq := appendTo(t, l, named("after")); seq != 1 {
		t.Errorf("goes on with %d, want 1", seq)
	}
	wait(t, l, 1)
	wait(t, l, 0)
	closeLog(t, l)
	if got := fmt.Sprint(names(t, dir)); got != "[before after]" {
		t.Errorf("the log holds %s", got)
	}
	if got := open(t, dir, Options{}).Recovered(); got != nil {
		t.Errorf("torn: %v, want nothing", got)
	}
}

func TestASyncErrorLosesWhatItWasFor(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	wait(t, l, appendTo(t, l, named("synced")))
	var lost []int64
	for range 2 {
		l.syncing.Lock() // keeps the committer from being faster
		seq := appendTo(t, l, named("written"))
		lost = append(lost, seq)
		breakDescriptor(t, l, pipe(t))
		l.syncing.Unlock()
		for range 2 { // from the committer, and at once
			if err := answered(l, seq); !errors.Is(err, ErrUnavailable) || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("durable: %v", err)
			}
		}
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
		wait(t, l, appendTo(t, l, named("next")))
	}
	for _, seq := range lost {
		if err := answered(l, seq); !errors.Is(err, ErrUnavailable) {
			t.Errorf("record %d after later syncs: %v", seq, err)
		}
	}
	wait(t, l, 0)
	closeLog(t, l)
	if got := fmt.Sprint(names(t, dir)); got != "[synced written next written next]" {
		t.Errorf("the log holds %s", got)
	}
	closeLog(t, open(t, dir, Options{}))
}

func TestAWriteErrorAnswersWhoWaitsForASync(t *testing.T) {
	l := create(t, t.TempDir(), Options{})
	l.syncing.Lock() // keeps the committer from being faster
	seq := appendTo(t, l, named("written"))
	answers := make(chan error, 2)
	l.Durable(seq, func(err error) { answers <- err })
	breakDescriptor(t, l, full(t))
	if _, err := l.Append([]byte(named("refused"))); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("append: %v", err)
	}
	l.syncing.Unlock()
	if err := <-answers; !errors.Is(err, ErrUnavailable) {
		t.Errorf("durable: %v", err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	if err := answered(l, seq); !errors.Is(err, ErrUnavailable) {
		t.Errorf("durable in the segment that is given up: %v", err)
	}
}

func TestASegmentThatIsGivenUpIsNotReportedWithTheNext(t *testing.T) {
	l := create(t, t.TempDir(), Options{})
	begun, release := make(chan struct{}), make(chan struct{})
	l.Durable(appendTo(t, l, named("first")), func(error) { close(begun); <-release }) // which keeps the committer
	<-begun
	seq := appendTo(t, l, named("written"))
	answer := make(chan error, 1)
	l.Durable(seq, func(err error) { answer <- err })
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("refused")))
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	close(release)
	if err := <-answer; !errors.Is(err, ErrUnavailable) {
		t.Errorf("durable: %v", err)
	}
}

func TestCloseOfALogThatFailed(t *testing.T) {
	l := create(t, t.TempDir(), Options{})
	seq := appendTo(t, l, named("written"))
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("refused")))
	if err := l.Close(); !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EINVAL) {
		t.Errorf("close: %v, want the error because of which it failed", err)
	}
	if err := l.Wait(t.Context(), seq); !errors.Is(err, ErrUnavailable) {
		t.Errorf("wait: %v", err)
	}
}

func TestReopenOfALogThatAdmitsRecordsDoesNothing(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	appendTo(t, l, named("first"))
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	if paths, err := format.Segments(dir); err != nil || len(paths) != 1 {
		t.Errorf("%d segments, %v; want 1", len(paths), err)
	}
}

func TestAnErrorOfRotationStopsTheLog(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{SegmentBytes: 100})
	seq := appendTo(t, l, named("first"))
	breakDescriptor(t, l, pipe(t))
	if _, err := l.Append([]byte(named(strings.Repeat("x", 100)))); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("append: %v", err)
	}
	if err := answered(l, seq); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("durable: %v", err)
	}
}

func TestAttemptsToGoOnAreASecondApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := create(t, dir, Options{})
		appendTo(t, l, named("first"))
		breakDescriptor(t, l, full(t))
		obstacle := format.SegmentPath(dir, 2)
		if err := os.Mkdir(obstacle, 0o700); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := l.Append([]byte(named("refused"))); !errors.Is(err, ErrUnavailable) {
				t.Errorf("append: %v", err)
			}
		}
		if err := os.Remove(obstacle); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retryAfter - 1)
		if _, err := l.Append([]byte(named("too early"))); !errors.Is(err, ErrUnavailable) {
			t.Errorf("append within a second: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if seq := appendTo(t, l, named("second")); seq != 1 {
			t.Errorf("goes on with %d, want 1", seq)
		}
		closeLog(t, l)
	})
}

func TestFailuresInARowLeaveNoEmptySegments(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	for first := range 2 { // with the log still empty, and with a record in it
		for range 3 {
			breakDescriptor(t, l, full(t))
			if _, err := l.Append([]byte(named("refused"))); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("append: %v", err)
			}
			if err := l.Reopen(); err != nil {
				t.Fatal(err)
			}
		}
		if paths, err := format.Segments(dir); err != nil || len(paths) != 1+first {
			t.Errorf("%d segments, %v; want %d", len(paths), err, 1+first)
		}
		wait(t, l, appendTo(t, l, named("accepted"))) // so that no sync meets the next failure first
	}
	closeLog(t, l)
	if got := len(names(t, dir)); got != 2 {
		t.Errorf("%d records, want 2", got)
	}
}

func TestGoingOnSurvivesItsOwnFailure(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("refused")))
	if err := os.Remove(format.SegmentPath(dir, 1)); err != nil { // as far as the attempt before came
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	if seq := appendTo(t, l, named("first")); seq != 0 {
		t.Errorf("goes on with %d, want 0", seq)
	}
}

func TestFailuresUnderLoad(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{SegmentBytes: 3000})
	var mu sync.Mutex
	accepted := make(map[int64]string)
	var all sync.WaitGroup
	stop := make(chan struct{})
	for w := range 8 {
		all.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("%d-%d", w, i)
				seq, err := l.Append([]byte(named(name)))
				if err == nil {
					mu.Lock()
					accepted[seq] = name
					mu.Unlock()
					err = l.Wait(t.Context(), seq)
				}
				if err != nil && !errors.Is(err, ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	for range 10 {
		wait(t, l, appendTo(t, l, named("between")))
		l.writing.Lock()
		l.syncing.Lock()
		breakDescriptor(t, l, full(t))
		l.syncing.Unlock()
		l.writing.Unlock()
		l.Append([]byte(named("x"))) // meets the error, unless a writer has
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	all.Wait()
	closeLog(t, l)
	got := names(t, dir)
	for seq, name := range accepted {
		if seq >= int64(len(got)) || got[seq] != name {
			t.Errorf("record %d was accepted as %q, and is not in the log of %d", seq, name, len(got))
		}
	}
	closeLog(t, open(t, dir, Options{}))
}

// A file system that is not local can fail a write that it did all the same.
func TestLinesThatAFailedWriteLeftAreCounted(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	appendTo(t, l, named("first"))
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("second")))
	f, err := os.OpenFile(format.SegmentPath(dir, 1), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(string(l.buffer) + "to"); err != nil {
		t.Fatal(err)
	}
	if seq := appendTo(t, l, named("third")); seq != 2 {
		t.Errorf("goes on with %d, want 2", seq)
	}
	if err := answered(l, 1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("the record whose write failed is durable: %v", err)
	}
	if got := l.Recovered(); len(got) != 1 || got[0].Bytes != 2 || got[0].Moved {
		t.Errorf("recovered %v, want two bytes that stay", got)
	}
	closeLog(t, l)
	if got := fmt.Sprint(names(t, dir)); got != "[first second third]" {
		t.Errorf("the log holds %s", got)
	}
	closeLog(t, open(t, dir, Options{}))
}

func TestFollowOutlivesRecovery(t *testing.T) {
	dir := laid(t, append(filled(t, 1, Options{unsigned: true})[0], `{"v":1,"seq":1,"time":"torn`...))
	r := reader(t, dir, 0)
	follow(t, r, 1)
	atEnd(t, r)
	l := open(t, dir, Options{unsigned: true})
	appendTo(t, l, named("instead"))
	if got := follow(t, r, 1)[0]; !strings.Contains(got, "instead") {
		t.Errorf("line %s", got)
	}
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("refused")))
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	atEnd(t, r) // the reader holds an empty segment, and that is replaced
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("refused")))
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	appendTo(t, l, named("replaced"))
	if got := follow(t, r, 1)[0]; !strings.Contains(got, "replaced") {
		t.Errorf("line %s", got)
	}
}

// TestAFreshSegmentBeginsWithItsRecovery has a write and then a sync fail.
func TestAFreshSegmentBeginsWithItsRecovery(t *testing.T) {
	dir := t.TempDir()
	var changes []string
	var over []Interruption
	l := create(t, dir, Options{
		Changed: func(err error) {
			changes = append(changes, map[bool]string{true: "goes on", false: "stops"}[err == nil])
		},
		Recovery: func(i Interruption) []byte { over = append(over, i); return []byte(named("recovery")) },
	})
	wait(t, l, appendTo(t, l, named("before")))
	breakDescriptor(t, l, full(t))
	if _, err := l.Append([]byte(named("refused"))); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	wait(t, l, appendTo(t, l, named("between")))
	seq := appendTo(t, l, named("unsynced"))
	breakDescriptor(t, l, pipe(t))
	if err := answered(l, seq); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	wait(t, l, appendTo(t, l, named("after")))
	closeLog(t, l)
	if got, want := fmt.Sprint(names(t, dir)), "[before recovery between unsynced recovery after]"; got != want {
		t.Errorf("the log holds %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(changes), "[stops goes on stops goes on]"; got != want {
		t.Errorf("changes: %s, want %s", got, want)
	}
	if len(over) != 2 || !errors.Is(over[0].Cause, syscall.ENOSPC) || over[0].Refused != 1 || over[0].From != over[0].To ||
		!errors.Is(over[1].Cause, syscall.EINVAL) || over[1].Refused != 0 || over[1].From != 3 || over[1].To != 4 {
		t.Errorf("interruptions: %+v", over)
	}
	closeLog(t, open(t, dir, Options{}))
}

// TestAFailedRecoveryIsTriedAgain has no room for the record either, the first time.
func TestAFailedRecoveryIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	failing, stops := true, 0
	var l *Log
	l = create(t, dir, Options{
		Changed: func(err error) {
			if err != nil {
				stops++
			}
		},
		Recovery: func(i Interruption) []byte {
			if !errors.Is(i.Cause, syscall.ENOSPC) || i.Refused != 1 {
				t.Errorf("interruption: %+v", i)
			}
			if failing {
				breakDescriptor(t, l, full(t))
			}
			failing = false
			return []byte(named("recovery"))
		},
	})
	wait(t, l, appendTo(t, l, named("before")))
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("refused")))
	if err := l.Reopen(); !errors.Is(err, syscall.ENOSPC) || !errors.Is(l.Err(), syscall.ENOSPC) {
		t.Errorf("reopen: %v, the log says %v", err, l.Err())
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	closeLog(t, l)
	if got, want := fmt.Sprint(names(t, dir)), "[before recovery]"; got != want {
		t.Errorf("the log holds %s, want %s", got, want)
	}
	if stops != 2 {
		t.Errorf("%d stops were told, want 2", stops)
	}
}
