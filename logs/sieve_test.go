package logs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// mixedLog writes n records in several segments: flows that open, are asked for more, are denied late, are counted, end or
// never end, over several starts. Ends repeat all, some or nothing of what opened them. The last line is torn.
func mixedLog(t *testing.T, n int) string {
	t.Helper()
	dir, random := t.TempDir(), rand.New(rand.NewPCG(5, 6))
	pick := func(all ...string) string { return all[random.IntN(len(all))] }
	var text strings.Builder
	var open []record.Record
	segment := 0
	write := func(seq int, r record.Record) {
		r.V, r.Seq, r.Time = 1, int64(seq), time.Date(2026, 11, 20, 9, 0, seq/4, 1000*(seq+1), time.UTC)
		line, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		stamp, rest, _ := strings.Cut(string(line), `Z",`)
		at := strings.LastIndexByte(stamp, '"')
		fmt.Fprintf(&text, "%s%s\",%s\n", stamp[:at+1], r.Time.Format("2006-01-02T15:04:05.000000Z"), rest)
	}
	for seq := range n {
		r := record.Record{
			Kind: record.KindOpen, Flow: record.ID(1<<45 + seq).String(), Sandbox: pick("a", "Build"), Via: pick("connect", "socks5"),
			Dst:      &record.Destination{Host: pick("x.test", "Y.test", `q".test`, "z.test"), Port: 443},
			Process:  &record.Process{PID: 7, Exe: pick("/usr/bin/curl", "/usr/bin/node (deleted)"), Argv: []string{pick("npm install", "node"), "x"}},
			Decision: &record.Decision{Action: "allow", Rule: pick("r", "s\\"), Layer: "user", Policy: "sha256:1"},
		}
		if random.IntN(20) == 0 {
			r.Flow = fmt.Sprintf("flow %d", seq) // of another program
		}
		switch k := random.IntN(12); {
		case k == 0:
			r.Decision = &record.Decision{Action: "deny", Rule: "default", Class: "default-deny"}
			r.Count = int64(random.IntN(3) * 7)
		case k == 1:
			r.Kind, r.HTTP = record.KindRequest, &record.HTTP{Method: pick("GET", "POST"), Path: pick("/a", "/b/C")}
			if len(open) > 0 && random.IntN(2) == 0 {
				r.Flow = open[random.IntN(len(open))].Flow
			}
		case k == 2:
			r = record.Record{Kind: record.KindDNS, Flow: r.Flow, Sandbox: r.Sandbox, Via: pick("dns", "dns", "connect"), DNS: &record.DNS{Name: pick("x.test", "Y.test", "w.test"), Type: pick("A", "AAAA", "TXT")}, Decision: r.Decision}
			if random.IntN(2) == 0 {
				r.Decision = &record.Decision{Action: "deny", Rule: "default", Class: "default-deny"}
				r.Count = int64(random.IntN(3) * 2)
			}
			if r.Via == "connect" && len(open) > 0 { // a lookup for a flow
				r.Flow, r.DNS.Name = open[random.IntN(len(open))].Flow, "looked.test"
			}
		case k == 11 && random.IntN(3) == 0:
			r.Decision = &record.Decision{Action: pick("ask", "deny", "allow"), Rule: "asks", Question: []string{pick("Q", "R")}}
			if r.Decision.Action == "ask" && random.IntN(2) == 0 { // the question itself
				r.Flow = r.Decision.Question[0]
			}
		case k < 8 && len(open) > 0:
			i := random.IntN(len(open))
			o := open[i]
			open = append(open[:i], open[i+1:]...)
			r = record.Record{Kind: record.KindClose, Flow: o.Flow, Bytes: &record.Bytes{Up: int64(seq)}, Duration: 5, Outcome: record.Outcome(pick("closed", "cut"))}
			switch random.IntN(4) {
			case 0:
				r.Decision = &record.Decision{Action: "deny", Rule: "canary", Class: "canary"}
			case 1:
				r.Sandbox, r.Dst, r.Process, r.Decision = o.Sandbox, o.Dst, o.Process, o.Decision
			case 2:
				r.HTTP = &record.HTTP{Method: "GET", Path: "/a", Status: 404}
			}
		case k == 9 && random.IntN(50) == 0:
			open, r = nil, record.Record{Kind: record.KindStart, Note: "started"}
		case k == 10:
			r = record.Record{Kind: record.KindAdmin, Note: "x.test"}
		}
		write(seq, r)
		if r.Kind == record.KindOpen && r.Decision.Action == "allow" {
			open = append(open, r)
		}
		if (seq+1)%(n/3) == 0 || seq == n-1 {
			segment++
			if seq == n-1 {
				text.WriteString(`{"v":1,"seq":`)
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%08d.log", segment)), []byte(text.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			text.Reset()
		}
	}
	return dir
}

// sieved holds filters with each key that reads bytes before records, and some that do not.
var sieved = []string{
	"", "host:x.test", "host:y.TEST", "host:x*", "host:*.test", `host:"q\".test"`, "-host:x.test", "x", "verdict:deny", "verdict:deny host:z.test", "class:canary", "class:canary host:x.test",
	"rule:canary", "rule:r", "rule:r verdict:allow", `rule:"s\\"`, "layer:user", "sandbox:build", "via:socks5", "method:POST", "path:/B/*", "proc:npm", "proc:node", "kind:request", "kind:close", "policy:sha256:1",
	"sandbox:a proc:curl", "host:x.test host:z.test", "outcome:open", "outcome:cut verdict:allow", "status:404", "flow:flow", "since:2026-11-20T09:00:20Z verdict:deny", "via:dns", "via:dns verdict:allow", "via:dns verdict:deny", "host:w.test", "verdict:ask", "verdict:deny rule:asks", "host:nowhere.test",
}

// TestAFilterReadsWhatItWouldIfEveryLineWereDecoded compares filters that skip lines by their bytes with filters of records
// that were all decoded and joined before.
func TestAFilterReadsWhatItWouldIfEveryLineWereDecoded(t *testing.T) {
	dir := mixedLog(t, 1200)
	lines, all := readAll(t, dir)
	for _, words := range sieved {
		f, err := ParseFilter(SplitFilter(words), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var want, got []*record.Record
		slow := DecisionJoiner{Emit: func(r *record.Record) {
			if f.Match(r) {
				want = append(want, r.Clone())
			}
		}}
		for _, r := range all {
			slow.Add(r)
		}
		slow.Flush(OutcomeOpen)
		if err := ScanDecisions(opening(t, dir), f, OutcomeOpen, func(r *record.Record) { got = append(got, r.Clone()) }); err != nil {
			t.Fatal(err)
		}
		for _, all := range [][]*record.Record{got, want} { // a name that waited comes when another line is read
			slices.SortStableFunc(all, func(a, b *record.Record) int { return cmp.Compare(a.Seq, b.Seq) })
		}
		sameRecords(t, "decisions of "+words, got, want)

		var keeping, joiner Joiner
		var wantLines, gotLines []string
		want, got = nil, nil
		for i, r := range all {
			if whole := keeping.Complete(r); f.Match(whole) {
				want, wantLines = append(want, whole), append(wantLines, lines[i])
			}
			keeping.Follow(r)
		}
		if err := ScanJoined(opening(t, dir), &joiner, f, func(line string, whole *record.Record) error {
			got, gotLines = append(got, whole.Clone()), append(gotLines, line)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		sameRecords(t, "records of "+words, got, want)
		if !reflect.DeepEqual(gotLines, wantLines) {
			t.Errorf("%q: the lines differ", words)
		}
	}
}

func sameRecords(t *testing.T, what string, got, want []*record.Record) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d, want %d", what, len(got), len(want))
		return
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("%s: number %d is %+v, want %+v", what, i, got[i], want[i])
			return
		}
	}
}

// TestLinesThatAFilterPassesOverAreFew proves that the bytes of lines decide, and not records alone.
func TestLinesThatAFilterPassesOverAreFew(t *testing.T) {
	dir := t.TempDir()
	newLogWriter(t, dir).ordinary(5000, 50)
	_, all := readAll(t, dir)
	for words, most := range map[string]int{"host:h7.npm.test": len(all) / 20, "verdict:deny": len(all) / 4, "flow:" + all[9].Flow: 3} {
		f, err := ParseFilter([]string{words}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		decoded := 0
		if err := ScanSome(opening(t, dir), f.sieve(), func(string, *record.Record) error { decoded++; return nil }); err != nil {
			t.Fatal(err)
		}
		if decoded == 0 || decoded > most {
			t.Errorf("%s decodes %d of %d lines, more than %d", words, decoded, len(all), most)
		}
	}
}

// TestOpenFlowsThatAreNotDecodedAreBounded has flows be opened, passed over and never end.
func TestOpenFlowsThatAreNotDecodedAreBounded(t *testing.T) {
	j := Joiner{max: 10_000}
	for i := range 1000 {
		line := fmt.Appendf(nil, `{"v":1,"seq":%d,"time":"2026-11-20T09:50:00.000000Z","kind":"open","flow":"%s","decision":{"action":"allow"}}`, i, record.ID(i))
		s, use := skim(line)
		if use != ofFlow {
			t.Fatalf("%s is of use %d", line, use)
		}
		if r, err := j.pass(line, s); r != nil || err != nil {
			t.Fatal(r, err)
		}
		j.retain()
		sum := 0
		for _, kept := range j.passed {
			sum += len(kept)
		}
		if sum != j.passedBytes || sum > j.max+len(line) || len(j.passed) == 0 {
			t.Fatalf("%d bytes of %d lines, counted as %d", sum, len(j.passed), j.passedBytes)
		}
	}
}

// FuzzSieve has a filter match no record whose line its sieve does not let through.
func FuzzSieve(f *testing.F) {
	for _, key := range []string{"host", "proc", "sandbox", "rule", "path", "flow"} {
		f.Add(key, "x.Test", "X.test")
		f.Add(key, `a"b\c`, "*b*")
		f.Add(key, "K/\u212a (deleted)", "k*")
		f.Add(key, "node", "*")
	}
	f.Fuzz(func(t *testing.T, key, text, pattern string) {
		filter, err := ParseFilter([]string{term{key: key, value: pattern}.String()}, time.Now())
		if err != nil || !verbatim[key] {
			return
		}
		e := record.Encoder{}
		e.Open("")
		e.Line = append(e.Line, `"v":1,"seq":0,"time":"2026-11-20T09:51:38.362114Z"`...)
		e.Text("kind", "open")
		e.Text("flow", text)
		e.Text("sandbox", text)
		e.Open("container")
		e.Text("id", text)
		e.Close()
		e.Text("via", text)
		e.Open("dst")
		e.Text("host", text)
		e.Close()
		e.Open("tls")
		e.Text("sni", text)
		e.Close()
		e.Open("http")
		e.Text("method", text)
		e.Text("path", text)
		e.Close()
		e.Open("process")
		e.Text("exe", text)
		e.List("argv", []string{text})
		e.Close()
		e.Open("decision")
		e.Text("action", text)
		e.Text("rule", text)
		e.Text("layer", text)
		e.Text("class", text)
		e.Text("policy", text)
		e.Close()
		e.Close()
		r, err := record.Decode(e.Line)
		if err != nil {
			t.Fatal(err)
		}
		if sieve := filter.sieve(); filter.Match(r) && sieve != nil && !sieve(e.Line) {
			t.Errorf("%s matches %s, and its sieve does not", filter, e.Line)
		}
	})
}
