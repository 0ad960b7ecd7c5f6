package logs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/record"
)

// given are lines that are there already. They come in blocks of a thousand.
type given struct {
	lines []string
	err   error
	seq   int64
}

func (g *given) Take(buffer []byte) (b audit.Block, err error) {
	if len(g.lines) == 0 {
		return b, g.err
	}
	n := min(len(g.lines), 1000)
	b.Seq, b.Rest = g.seq, append(buffer[:0], strings.Join(g.lines[:n], "\n")+"\n"...)
	g.seq, g.lines = g.seq+int64(n), g.lines[n:]
	return b, nil
}

// readAll reads a log line by line with encoding/json, and keeps all of it.
func readAll(t *testing.T, dir string) (lines []string, all []*record.Record) {
	t.Helper()
	reader, err := audit.NewReader(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for {
		line, err := reader.Next()
		if err == io.EOF {
			return lines, all
		}
		r := &record.Record{}
		if err != nil || json.Unmarshal(line, r) != nil {
			t.Fatal(string(line), err)
		}
		lines, all = append(lines, string(line)), append(all, r)
	}
}

func opening(t *testing.T, dir string) *audit.Reader {
	t.Helper()
	reader, err := audit.NewReader(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	return reader
}

// TestScanIsReadingLineByLine compares what is decoded in parallel, joined and
// counted in borrowed memory with what comes of records that are kept.
func TestScanIsReadingLineByLine(t *testing.T) {
	dir := t.TempDir()
	newLogWriter(t, dir).ordinary(6_000, 50)
	lines, all := readAll(t, dir)
	n := 0
	if err := Scan(opening(t, dir), func(line string, r *record.Record) error {
		if line != lines[n] || !reflect.DeepEqual(r, all[n]) {
			return fmt.Errorf("record %d is %+v of %s", n, r, line)
		}
		n++
		return nil
	}); err != nil || n != len(all) {
		t.Fatalf("%d of %d records: %v", n, len(all), err)
	}
	var want, got []*record.Record
	slow := DecisionJoiner{Emit: func(r *record.Record) { want = append(want, r) }}
	for _, r := range all {
		slow.Add(r)
	}
	slow.Flush(OutcomeOpen)
	if err := ScanDecisions(opening(t, dir), &Filter{}, OutcomeOpen, func(r *record.Record) { got = append(got, r.Clone()) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d decisions, want %d", len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("decision %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	var joiner, keeping Joiner
	n = 0
	if err := ScanJoined(opening(t, dir), &joiner, &Filter{}, func(_ string, whole *record.Record) error {
		if !reflect.DeepEqual(whole, keeping.Complete(all[n])) {
			return fmt.Errorf("record %d joined is %+v", n, whole)
		}
		keeping.Follow(all[n])
		n++
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestDecisionsLendTheirStrings: a string that was kept for too long holds no text of another record.
func TestDecisionsLendTheirStrings(t *testing.T) {
	dir := t.TempDir()
	newLogWriter(t, dir).ordinary(200, 5)
	kept := ""
	if err := ScanDecisions(opening(t, dir), &Filter{}, OutcomeOpen, func(r *record.Record) { kept = cmp.Or(kept, r.Sandbox) }); err != nil {
		t.Fatal(err)
	}
	if kept == "" || strings.Trim(kept, "\x00") != "" {
		t.Errorf("the string is %q", kept)
	}
}

func TestScanEndsAtTheFirstError(t *testing.T) {
	many := make([]string, 20_000)
	for i := range many {
		many[i] = fmt.Sprintf(`{"v":1,"seq":%d,"time":"2026-11-20T09:51:38.362114Z","kind":"start","note":"n"}`, i)
	}
	damaged := errors.New("damaged")
	for _, row := range []struct {
		name  string
		lines []string
		err   error
		seen  int
	}{
		{"nothing", nil, io.EOF, 0},
		{"a line of another form", []string{many[0], many[1], "{", many[3]}, io.EOF, 2},
		{"a line that is no record", []string{many[0], strings.Replace(many[1], `"n"`, `n`, 1), many[2]}, io.EOF, 1},
		{"a line that is missing", []string{many[0], many[1], many[3]}, io.EOF, 2},
		{"an error of the log", many[:3], damaged, 3},
	} {
		n := 0
		err := Scan(&given{lines: row.lines, err: row.err}, func(string, *record.Record) error { n++; return nil })
		if n != row.seen || (err == nil) != (row.name == "nothing") || row.err == damaged && !errors.Is(err, damaged) {
			t.Errorf("%s: %d lines, %v", row.name, n, err)
		}
	}
	enough := errors.New("enough")
	before := runtime.NumGoroutine()
	for range 5 {
		n := 0
		err := Scan(&given{lines: many, err: io.EOF}, func(string, *record.Record) error {
			if n++; n == 8_000 {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) || n != 8_000 {
			t.Errorf("%d lines, %v", n, err)
		}
	}
	for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) { // one that is over counts until it has gone
		if time.Now().After(end) {
			t.Fatalf("%d goroutines were left behind", runtime.NumGoroutine()-before)
		}
	}
}
