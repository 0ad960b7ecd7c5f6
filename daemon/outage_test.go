package daemon

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit"
)

// A spoken keeps what is said, with the time since the test began.
type spoken struct {
	mu    sync.Mutex
	began time.Time
	lines []string
}

func (h *spoken) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf("%s %s", time.Since(h.began), b))
	return len(b), nil
}

// A reopening log fails until it is mended.
type reopening struct{ err atomic.Pointer[error] }

func (r *reopening) Reopen() error {
	if err := r.err.Load(); err != nil {
		return *err
	}
	return nil
}

// TestAnOutageIsSaid has the log fail at once, fail again right after it went on, and last.
func TestAnOutageIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &spoken{began: time.Now()}
		full := fmt.Errorf("%w: write: %w", audit.ErrUnavailable, syscall.ENOSPC)
		log := &reopening{}
		log.err.Store(&full)
		o := newOutage()
		o.follow(said, "/var/log/egressd", log)
		time.Sleep(time.Second)
		o.changed(full)
		time.Sleep(time.Second)
		o.changed(nil)
		time.Sleep(time.Second)
		o.changed(full) // at 3 s
		time.Sleep(2 * time.Minute)
		log.err.Store(nil) // at 2 min 3 s
		o.changed(nil)
		time.Sleep(time.Hour)
		o.end()
		failed := "egressd: error: nothing new passes, and requests get 503 audit-unavailable: the audit log admits no records: write: no space left on device\n" +
			"egressd: hint: free space on the disk of /var/log/egressd, and bound the log with audit.retain; egressd tries again by itself\n"
		var want []string
		for _, at := range []string{"1s ", "1m1s ", "2m1s "} {
			want = append(want, at+failed)
		}
		want = append(want, "2m5s egressd: the audit log can be written again, and requests pass\n")
		if got := strings.Join(said.lines, ""); got != strings.Join(want, "") {
			t.Errorf("said was\n%swant\n%s", got, strings.Join(want, ""))
		}
	})
}

// TestAnOutageEndsWithoutARequest has nobody ask for anything while the log can be written again.
func TestAnOutageEndsWithoutARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &spoken{began: time.Now()}
		o := newOutage()
		o.follow(said, "/log", &reopening{})
		o.changed(errors.New("for a moment"))
		time.Sleep(time.Hour)
		o.end()
		if n := len(said.lines); n != 2 || !strings.HasPrefix(said.lines[n-1], "1m0s egressd: the audit log can be written again") {
			t.Errorf("said was %q", said.lines)
		}
	})
}

// TestEveryErrorHasARemedy: none is the one for errors that nobody has thought of.
func TestEveryErrorHasARemedy(t *testing.T) {
	known := map[string]error{}
	for _, err := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EACCES, syscall.ENOENT, syscall.EFBIG, syscall.EMFILE, syscall.EIO, &audit.DamageError{}, io.EOF} {
		text := remedy("/log", fmt.Errorf("%w: %w", audit.ErrUnavailable, err))
		if before := known[text]; before != nil {
			t.Errorf("%v and %v: %s", before, err, text)
		}
		known[text] = err
	}
}

// TestTheBoundOfTheLogIsSaid has a daemon whose policy says nothing of it, and a run.
func TestTheBoundOfTheLogIsSaid(t *testing.T) {
	dir := t.TempDir()
	writesSinks(t, dir, "")("")
	said := &spoken{began: time.Now()}
	d, err := New(said, filepath.Join(dir, "egressd.yaml"), Tailoring{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if err := d.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(said.lines, ""); !strings.Contains(text, "egressd: the audit log takes at most ") {
		t.Errorf("said was %s", text)
	}
	if o, err := d.audit.logOptions(); err != nil || o.Retain.Bytes < 4*audit.DefaultSegmentBytes {
		t.Errorf("kept are %d bytes: %v", o.Retain.Bytes, err)
	}
	d.tailor.Log = func(*audit.Options) {}
	if o, err := d.audit.logOptions(); err != nil || o.Retain.Bytes != 0 {
		t.Errorf("of a run %d bytes are kept: %v", o.Retain.Bytes, err)
	}
	if err := d.stop(0); err != nil {
		t.Fatal(err)
	}
}

// TestALogThatFailsSaysSo has the daemon's own log fail, and go on.
func TestALogThatFailsSaysSo(t *testing.T) {
	dir := t.TempDir()
	writesSinks(t, dir, "")("")
	said := &spoken{began: time.Now()}
	d, err := New(said, filepath.Join(dir, "egressd.yaml"), Tailoring{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	o, err := d.audit.logOptions()
	if err != nil {
		t.Fatal(err)
	}
	o.Changed(syscall.EIO)
	told := func() bool {
		said.mu.Lock()
		defer said.mu.Unlock()
		return strings.Contains(strings.Join(said.lines, ""), "input/output error")
	}
	for deadline := time.Now().Add(30 * time.Second); !told(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is said")
		}
	}
	record := string(o.Recovery(audit.Interruption{Cause: syscall.EIO, Began: time.Now(), Refused: 2, From: 3, To: 5, Torn: []audit.Torn{{Segment: "00000001.log", Bytes: 7}}}))
	for _, want := range []string{`"kind":"recovery"`, "refused 2 records", "records 3 to 4 were written and not synced", "Segment:00000001.log", "input/output error"} {
		if !strings.Contains(record, want) {
			t.Errorf("the record lacks %q: %s", want, record)
		}
	}
}
