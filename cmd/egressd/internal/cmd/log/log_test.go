package log

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
)

// TestFollowWhileTheLogIsWritten has a log that is open for writing followed:
// the last lines first, then each record as it comes.
func TestFollowWhileTheLogIsWritten(t *testing.T) {
	dir := t.TempDir() + "/audit"
	log, err := audit.Create(dir, audit.Options{SegmentBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	write := func(host string) {
		t.Helper()
		record := fmt.Sprintf(`{"kind":"open","flow":"F","via":"connect","dst":{"host":%q,"port":443},"decision":{"action":"deny","class":"default-deny"}}`, host)
		if _, err := log.Append([]byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		write(fmt.Sprintf("h%d.test", i))
		write("other.example")
	}
	ctx, cancel := context.WithCancel(t.Context())
	read, written := io.Pipe()
	ended := make(chan error, 1)
	o := logOptions{logFlags: &logFlags{Source: source.Source{Dir: dir}}, follow: true, tail: 2}
	go func() {
		ended <- o.run(ctx, written, io.Discard, []string{"host:*.test"})
		written.Close()
	}()
	lines := bufio.NewScanner(read)
	for _, want := range []string{"h18.test:443", "h19.test:443", "new.test:443", "newer.test:443"} {
		if strings.HasPrefix(want, "new") {
			write("other.example")
			write(strings.TrimSuffix(want, ":443"))
		}
		if !lines.Scan() || !strings.Contains(lines.Text(), "✗  deny  "+want) {
			t.Fatalf("got %q, want a line about %s", lines.Text(), want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("following ended with %v", err)
	}
}

// TestFollowEndsWithTheRun follows the log of a run that is under way until that has ended.
func TestFollowEndsWithTheRun(t *testing.T) {
	folder := t.TempDir()
	dir := filepath.Join(folder, "runs", "20260101-000000.000-aaaaaa")
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	log, err := audit.Create(dir, audit.Options{Keys: filepath.Join(folder, "keys")})
	if err != nil {
		t.Fatal(err)
	}
	write := func(host string) {
		t.Helper()
		if _, err := log.Append([]byte(fmt.Sprintf(`{"kind":"open","flow":"F","via":"connect","dst":{"host":%q,"port":443},"decision":{"action":"deny","class":"default-deny"}}`, host))); err != nil {
			t.Fatal(err)
		}
	}
	write("first.test")
	read, written := io.Pipe()
	ended := make(chan error, 1)
	o := logOptions{logFlags: &logFlags{Source: source.Source{Daemon: filepath.Join(folder, "audit"), Run: "last"}}, follow: true, tail: 10}
	go func() {
		ended <- o.run(t.Context(), written, io.Discard, nil)
		written.Close()
	}()
	lines := bufio.NewScanner(read)
	for _, want := range []string{"first.test:443", "last.test:443"} {
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("got %q, want a line about %s (%v)", lines.Text(), want, <-ended)
		}
		if want == "first.test:443" {
			write("last.test")
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if lines.Scan() {
		t.Errorf("more: %q", lines.Text())
	}
	if err := <-ended; err != nil {
		t.Errorf("following ended with %v", err)
	}
}

func TestFollowStopsWhereNobodyReads(t *testing.T) {
	s := streamer{filter: &logs.Filter{}, out: bufio.NewWriter(broken{}), live: true}
	if err := s.add(`{}`, opened("A", "a.test", "deny")); err == nil {
		t.Error("a failed write went unnoticed")
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestStreamHoldsOnlyTheTail keeps memory flat however long the log is.
func TestStreamHoldsOnlyTheTail(t *testing.T) {
	var out bytes.Buffer
	s := streamer{filter: &logs.Filter{}, out: bufio.NewWriter(&out), json: true, held: []string{}, tail: 3}
	for i := range 100 {
		if err := s.add(fmt.Sprintf("%d", i), opened("A", "a.test", "deny")); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.held) != 3 {
		t.Errorf("%d lines are held back, want 3", len(s.held))
	}
	if err := s.release(); err != nil || out.String() != "97\n98\n99\n" {
		t.Errorf("released %q, %v", out.String(), err)
	}
}

// TestStreamFindsTheEndOfAFlowByItsBeginning has an end that says only which
// flow it is of.
func TestStreamFindsTheEndOfAFlowByItsBeginning(t *testing.T) {
	f, err := source.ParseFilter([]string{"host:a.test", "verdict:allow", "up:>1k"}, filterNow)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() + "/audit"
	log, err := audit.Create(dir, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	const opens = `{"kind":"open","flow":"%s","dst":{"host":"%s","port":443},"decision":{"action":"allow"}}`
	const closes = `{"kind":"close","flow":"%s","bytes":{"up":5000,"down":0}}`
	a, b := "01KB6ZQ4SA", "01KB6ZQ4SB"
	for _, text := range []string{fmt.Sprintf(opens, a, "a.test"), fmt.Sprintf(opens, b, "b.test"), fmt.Sprintf(closes, b), fmt.Sprintf(closes, a), fmt.Sprintf(closes, a)} {
		if _, err := log.Append([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := (&source.Source{Dir: dir}).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var out bytes.Buffer
	s := streamer{filter: f, out: bufio.NewWriter(&out), json: true, live: true}
	if err := reader.Joined(&s.joiner, s.filter, s.add); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), `"seq":3,`) || !strings.Contains(out.String(), a) {
		t.Errorf("printed %q, want the first end of A alone", out.String())
	}
}
