package story

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
)

// writtenLog is an audit log that holds these records, open for reading.
func writtenLog(t *testing.T, records []*record.Record) *source.RecordReader {
	t.Helper()
	dir := t.TempDir() + "/audit"
	log, err := audit.Create(dir, audit.Options{Durability: audit.Process})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for _, r := range records {
		members := map[string]any{"kind": r.Kind, "flow": r.Flow, "dst": r.Dst, "decision": r.Decision}
		if r.Shared {
			members["shared"] = true
		}
		if r.Count > 0 {
			members["count"], members["names"] = r.Count, r.Names
		}
		text, err := json.Marshal(members)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Append(text); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := (&source.Source{Dir: dir}).Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Close)
	return reader
}

// TestStoryKeepsWhatItReads has the records of a flow stand far apart, and
// more of them than are kept.
func TestStoryKeepsWhatItReads(t *testing.T) {
	request := opened("X", "x.test", "allow")
	request.Kind = record.KindRequest
	records := []*record.Record{opened("X", "x.test", "allow")}
	for i := range maxRecords + 50 {
		records = append(records, request, opened(fmt.Sprintf("Y%d", i), "y.test", "deny"))
	}
	records = append(records, closed(request, 0, 0, "closed"))
	s, err := Find(writtenLog(t, records), "X")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Lines) != maxRecords+1 || s.LeftOut != 51 || s.End == nil {
		t.Errorf("kept %d, left out %d, end %v; want %d, 51 and the end", len(s.Lines), s.LeftOut, s.End, maxRecords+1)
	}
	for i, text := range s.Lines {
		if !strings.Contains(string(text), `"flow":"X"`) || !json.Valid(text) {
			t.Fatalf("record %d of flow X is %s", i, text)
		}
	}
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
}

// TestAStoryTellsOfWhatItsSumHolds has a denial, and a sum of other names that were counted with it.
func TestAStoryTellsOfWhatItsSumHolds(t *testing.T) {
	first := opened("X", "a.evil.test", "deny")
	first.Decision.Reason = "no rule allows a.evil.test:443"
	sum := opened("X", "*.evil.test", "deny")
	sum.Count, sum.Names = 40, &record.Names{First: "b.evil.test:443", Last: "z.evil.test:443"}
	s, err := Find(writtenLog(t, []*record.Record{first, sum, sum}), "X")
	if err != nil {
		t.Fatal(err)
	}
	if logs.Host(s.Decisive) != "a.evil.test" || s.Decision.Reason != first.Decision.Reason || s.Times != 81 {
		t.Errorf("the story is of %s, %d times: %+v", logs.Host(s.Decisive), s.Times, s.Decision)
	}
}

func TestAmbiguousIDsAreNamedAndBounded(t *testing.T) {
	var records []*record.Record
	for i := range 50 {
		records = append(records, opened(fmt.Sprintf("A%02d", i), "y.test", "deny"))
	}
	_, err := Find(writtenLog(t, records), "A")
	var f *hint.Error
	if !errors.As(err, &f) || f.Code != hint.CodeUsage || strings.Count(f.Error(), " A0") != maxCandidates {
		t.Errorf("got %v, want exit code 2 and %d ids", err, maxCandidates)
	}
}

// timedLog is the folder of a log that holds these records, with their times.
func timedLog(t *testing.T, all []*record.Record) string {
	t.Helper()
	dir := t.TempDir()
	var lines []byte
	for i, r := range all {
		text, err := json.Marshal(map[string]any{"kind": r.Kind, "flow": r.Flow, "sandbox": r.Sandbox, "via": r.Via, "dst": r.Dst, "decision": r.Decision})
		if err != nil {
			t.Fatal(err)
		}
		lines = fmt.Appendf(lines, `{"v":1,"seq":%d,"time":%q,%s`+"\n", i, r.Time.UTC().Format("2006-01-02T15:04:05.000000Z"), text[1:])
	}
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), lines, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func opened(flow, host, action string) *record.Record {
	r := &record.Record{
		Kind: record.KindOpen, Flow: flow, Sandbox: "ci", Via: "connect", Time: noon,
		Dst:      &record.Destination{Host: host, Port: 443},
		Decision: &record.Decision{Action: action, Rule: "r1", Layer: "user"},
	}
	if action == "deny" {
		r.Decision = &record.Decision{Action: "deny", Rule: "default", Layer: "builtin", Class: "default-deny"}
	}
	return r
}

func closed(of *record.Record, up, down int64, outcome record.Outcome) *record.Record {
	r := *of
	r.Kind, r.Bytes, r.Outcome = record.KindClose, &record.Bytes{Up: up, Down: down}, outcome
	return &r
}

// TestFindBeginsWhereTheIDWasGiven has a log of three segments, a day each. Damage in a segment from before the id was given
// is not seen; a record that stands before the time of its id, since the clock was set back, is found.
func TestFindBeginsWhereTheIDWasGiven(t *testing.T) {
	dir := t.TempDir()
	id := func(day, minute int) string {
		return record.ID(time.Date(2026, 11, day, 12, minute, 0, 0, time.UTC).UnixNano() / int64(record.IDTick)).String()
	}
	line := func(seq, day int, flow string) string {
		return fmt.Sprintf(`{"v":1,"seq":%d,"time":"2026-11-%dT12:00:00.000000Z","kind":"open","flow":"%s","dst":{"host":"h%d.test","port":443},"decision":{"action":"deny","class":"default-deny"}}`+"\n", seq, day, flow, seq)
	}
	early := line(2, 20, id(20, 1))
	for number, text := range []string{
		line(0, 20, id(20, 0)) + line(1, 20, id(23, 30)) + early,
		line(3, 21, id(21, 0)) + line(4, 21, id(20, 1)), // a count, written late
		line(5, 22, id(22, 0)) + line(6, 22, id(22, 1)),
	} {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%08d.log", number+1)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	find := func(prefix string) (*Story, error) {
		log, err := (&source.Source{Dir: dir}).Open()
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		return Find(log, prefix)
	}
	for flow, want := range map[string]int{id(20, 0): 1, id(20, 1): 2, id(21, 0): 1, id(22, 1): 1, id(23, 30): 1} {
		if s, err := find(flow); err != nil || len(s.Records) != want {
			t.Errorf("%s: %+v, %v; want %d records", flow, s, err, want)
		}
	}
	if _, err := find(id(22, 0)[:3]); err == nil || !strings.Contains(err.Error(), "several ids begin with") {
		t.Errorf("a prefix of two: %v", err)
	}
	first, err := os.OpenFile(filepath.Join(dir, "00000001.log"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := first.WriteAt([]byte{'x'}, int64(len(line(0, 20, id(20, 0))))); err != nil {
		t.Fatal(err)
	}
	if s, err := find(id(22, 1)); err != nil || len(s.Records) != 1 {
		t.Errorf("behind the damage: %+v, %v", s, err)
	}
	var damage *audit.DamageError
	if _, err := find(id(20, 1)); !errors.As(err, &damage) {
		t.Errorf("within the damage: %v", err)
	}
}

// TestAnEndedFlowIsNotSoughtForLong writes the records of one flow hours apart, which egressd does only for a flow that is open.
func TestAnEndedFlowIsNotSoughtForLong(t *testing.T) {
	const id = "FZ3KQ6S7V2"
	flow, ok := record.ParseID(id)
	if !ok {
		t.Fatal("no id")
	}
	for first, want := range map[string]int{
		`"kind":"open","decision":{"action":"allow"}`: 3,
		`"kind":"open","decision":{"action":"ask"}`:   3,
		`"kind":"open","decision":{"action":"deny"}`:  2,
		`"kind":"close","outcome":"closed"`:           2,
	} {
		log := writtenLog(t, nil)
		var text bytes.Buffer
		seq := 0
		line := func(after time.Duration, members string) {
			fmt.Fprintf(&text, `{"v":1,"seq":%d,"time":"%s",%s}`+"\n", seq, flow.Time().Add(after).UTC().Format("2006-01-02T15:04:05.000000Z"), members)
			seq++
		}
		others := func(after time.Duration) {
			for range 5000 { // more than is read ahead
				line(after, `"kind":"request","flow":"OTHER","note":"`+strings.Repeat("x", 1000)+`"`)
			}
		}
		line(0, `"flow":"`+id+`",`+first)
		others(time.Minute)
		line(50*time.Minute, `"kind":"request","flow":"`+id+`"`)
		others(50 * time.Minute)
		others(2 * time.Hour)
		line(2*time.Hour, `"kind":"request","flow":"`+id+`"`)
		segments, err := audit.Segments(log.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(segments[0], text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Find(log, id); err != nil || len(s.Records) != want {
			t.Errorf("after %s: %d records, %v; want %d", first, len(s.Records), err, want)
		}
	}
}

// TestASharedIDOpensNothing reads the story of an id that several requests were answered with.
func TestASharedIDOpensNothing(t *testing.T) {
	first := opened("X", "x.test", "deny")
	first.Shared, first.Decision.Class = true, "default-deny"
	sum := opened("X", "*", "deny")
	sum.Count, sum.Names = 9, &record.Names{First: "y.test:443", Last: "z.test:443", Domains: 9}
	s, err := From(writtenLog(t, []*record.Record{first, sum}), "X", 100)
	if err != nil || !s.Shared || s.Fix != "" || s.Change == "" || s.Times != 10 {
		t.Errorf("%+v, %v", s, err)
	}
	first.Shared = false
	if s, err = From(writtenLog(t, []*record.Record{first}), "X", 100); err != nil || s.Shared || s.Fix == "" {
		t.Errorf("an id of one request: %+v, %v", s, err)
	}
}
