//go:build linux

package sink

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs/export"
)

// newRetaining makes a world whose log keeps little, but for what sinks have not got.
func newRetaining(t *testing.T, retain audit.Retain, trouble func(error)) *world {
	t.Helper()
	w := &world{T: t, dir: filepath.Join(t.TempDir(), "log")}
	var err error
	w.log, err = audit.Create(w.dir, audit.Options{
		Durability: audit.Process, SegmentBytes: 64 << 10, Retain: retain, Trouble: trouble,
		Owed: func() (int64, bool) { return w.set.Oldest() },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.renew()
	t.Cleanup(func() {
		w.set.Stop(0)
		w.log.Close()
	})
	return w
}

// first is the seq of the first record that is there.
func (w *world) first() int64 {
	w.Helper()
	lines, err := audit.NewReader(w.dir, 0)
	if err != nil {
		w.Fatal(err)
	}
	defer lines.Close()
	line, err := lines.Next()
	if err != nil {
		w.Fatal(err)
	}
	var first struct{ Seq int64 }
	if err := json.Unmarshal(line, &first); err != nil {
		w.Fatal(err)
	}
	return first.Seq
}

// sealed writes records and has them signed, so that segments are sealed and the oldest
// removed.
func (w *world) sealed(n int) {
	w.Helper()
	for ; n > 0; n -= 200 {
		w.write(min(n, 200))
		if _, err := w.log.Checkpoint(); err != nil {
			w.Fatal(err)
		}
	}
}

// reading listens at a socket and reads all that comes.
func reading(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	ended, end := context.WithCancel(context.Background())
	t.Cleanup(func() { end(); l.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ended, func() { conn.Close() })
			all.Go(func() { io.Copy(io.Discard, conn) })
		}
	})
}

// TestWhatWasMissedIsCountedOnce has a receiver away while the oldest records are
// removed, and for some attempts more.
func TestWhatWasMissedIsCountedOnce(t *testing.T) {
	w := newRetaining(t, audit.Retain{Segments: 2}, nil)
	w.sealed(4000)
	gone := w.first()
	if gone == 0 {
		t.Fatal("nothing was removed")
	}
	path := filepath.Join(t.TempDir(), "receiver.sock")
	w.apply(Config{Name: "siem", Type: "unix", Path: path, Format: "json"})
	r := w.set.running["siem"]
	attempt := func() time.Time {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.state.ErrorAt
	}
	for range 3 {
		before := attempt()
		w.until("an attempt fails", func() bool { return attempt().After(before) })
	}
	reading(t, path)
	w.until("all is sent", func() bool { return w.state("siem").Next == 4000 })
	if s := w.state("siem"); s.Missed != gone || s.Sent != 4000-gone {
		t.Errorf("missed %d of %d records that are gone, sent %d", s.Missed, gone, s.Sent)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	said := 0
	for _, text := range w.heard {
		if strings.Contains(text, "were removed from the log before they were sent") {
			said++
		}
	}
	if said != 1 {
		t.Errorf("it was said %d times: %q", said, w.heard)
	}
}

// TestAGapBetweenRecords: the records between two that are there are removed while a sink
// reads, and what it sends then is lost with its connection.
func TestAGapBetweenRecords(t *testing.T) {
	r := &runner{onError: func(error) {}}
	r.state.Next = 10
	r.missed(30) // 10 to 29 are gone
	r.state.Next = 50
	r.rewind(false)
	r.unconfirmed.batches = []sentBatch{{from: 5}}
	r.rewind(false)
	if r.state.Next != 5 {
		t.Fatalf("it goes on with %d", r.state.Next)
	}
	r.missed(60) // 5 to 59, of which all before 50 were sent, or counted
	if r.state.Missed != 30 || r.state.Next != 60 {
		t.Errorf("missed %d, next %d", r.state.Missed, r.state.Next)
	}
}

// TestRetentionWaitsForSinks has a receiver away, within what the log keeps for it and
// beyond.
func TestRetentionWaitsForSinks(t *testing.T) {
	var mu sync.Mutex
	var early []*audit.OwedError
	w := newRetaining(t, audit.Retain{Segments: 2, OwedBytes: 600 << 10}, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		var e *audit.OwedError
		if errors.As(err, &e) {
			early = append(early, e)
		} else {
			t.Error(err)
		}
	})
	w.sealed(1000) // before anybody has said what there are for sinks
	path := filepath.Join(t.TempDir(), "receiver.sock")
	config := Config{Name: "siem", Type: "unix", Path: path, Format: "json"}
	w.apply(config)
	w.sealed(1000)
	if first := w.first(); first != 0 || len(early) > 0 {
		t.Fatalf("the log begins with %d, %v", first, early)
	}
	reading(t, path)
	w.until("all is sent", func() bool { oldest, _ := w.set.Oldest(); return oldest == 2000 })
	w.sealed(400)
	taken := w.first()
	if taken == 0 || len(early) > 0 {
		t.Fatalf("the log begins with %d, %v", taken, early)
	}
	w.set.Stop(0)
	w.sealed(1200)
	owed, _ := w.set.Oldest()
	if first := w.first(); first > owed || owed == math.MaxInt64 {
		t.Fatalf("the log begins with %d, and the sink was at %d", first, owed)
	}
	w.sealed(8000) // which is too much
	first := w.first()
	if first <= owed || len(early) == 0 || early[0].From != owed || early[len(early)-1].To != first {
		t.Fatalf("the log begins with %d, owed is %d on: %v", first, owed, early)
	}
	for i := range early[1:] {
		if early[i].To != early[i+1].From {
			t.Errorf("told of %v, and then of %v", early[i], early[i+1])
		}
	}
}

// A stuck target hangs as a file system can: it takes no notice of its context.
type stuck struct {
	target
	begun, free chan struct{}
}

func (s *stuck) send(context.Context, *batch) error {
	close(s.begun)
	<-s.free
	return errors.New("it was stuck")
}

func (s *stuck) life() context.Context { return context.Background() }
func (s *stuck) close()                {}

// TestAReceiverThatHangsHoldsUpNobody changes a sink whose receiver hangs, and ends the
// set: each has to return while it still does.
func TestAReceiverThatHangsHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	hangs := &stuck{begun: make(chan struct{}), free: make(chan struct{})}
	w.set.newTarget = func(c *Config, from export.Origin) (target, error) {
		if c.Path == "/hangs" {
			return hangs, nil
		}
		return newTarget(c, from)
	}
	good := Config{Name: "a", Type: "file", Path: filepath.Join(t.TempDir(), "a"), Format: "json"}
	better := good
	better.Path += "2"
	w.apply(Config{Name: "a", Type: "file", Path: "/hangs", Format: "json"})
	w.write(10)
	<-hangs.begun
	w.apply(good)
	w.apply(better) // and again
	if oldest, known := w.set.Oldest(); oldest != 0 || !known {
		t.Errorf("retention may remove what is before %d", oldest)
	}
	if s := w.state("a"); s.Sent != 0 {
		t.Errorf("the sink goes on beside the one that hangs: %+v", s)
	}
	close(hangs.free)
	w.until("the new file has all", func() bool { oldest, _ := w.set.Oldest(); return oldest == 10 })
	if n := len(linesOf(t, better.Path)); n != 10 {
		t.Errorf("%d records", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !strings.Contains(strings.Join(w.heard, "\n"), "hangs") {
		t.Errorf("nobody was told: %q", w.heard)
	}
}

// TestASocketThatNobodyReadsCanBeLeft sends datagrams to a socket until it is full.
func TestASocketThatNobodyReadsCanBeLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.sock")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := newSyslogOf("unix:"+path, nil, func(b []byte, e export.EncodedRecord) []byte { return append(b, e.Text...) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	ctx, cancel := context.WithCancel(t.Context())
	sent, ended := make(chan struct{}, 1<<16), make(chan error)
	go func() {
		for {
			if err := s.send(ctx, &batch{entries: []export.EncodedRecord{{Text: []byte("x")}}}); err != nil {
				ended <- err
				return
			}
			sent <- struct{}{}
		}
	}()
	<-sent
	cancel() // it hangs by now, or will before long
	if err := <-ended; err == nil {
		t.Error("a socket that is full took everything")
	}
}
