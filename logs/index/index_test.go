package index

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
	"github.com/google/go-cmp/cmp"
)

var began = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// A writer writes a log that holds each kind of record, as random chooses.
type writer struct {
	t      *testing.T
	random *rand.Rand
	file   *os.File
	seq    int64
	open   []record.Record
}

func (w *writer) write(r record.Record) {
	r.V, r.Seq, r.Time = 1, w.seq, began.Add(time.Duration(w.seq)*12*time.Second)
	w.seq++
	text, err := json.Marshal(&r)
	if err == nil {
		_, err = fmt.Fprintf(w.file, "%s\n", bytes.Replace(text, []byte(`Z"`), []byte(`.000000Z"`), 1))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) one() {
	pick := func(all ...string) string { return all[w.random.IntN(len(all))] }
	r := record.Record{
		Kind: record.KindOpen, Flow: record.ID(1<<45 + w.seq).String(), Sandbox: pick("a", "b"), Via: pick("connect", "socks5"), Src: pick("10.0.0.2:4000", "[fd00::2]:4001"),
		Dst:      &record.Destination{Host: pick("x.test", "y.test", "10.1.1.1"), Port: uint16(w.random.IntN(3) + 442), Addrs: []string{pick("192.0.2.1", "192.0.2.9")}},
		Process:  &record.Process{PID: w.random.IntN(9), Exe: pick("/usr/bin/curl", "/usr/bin/node"), Argv: []string{pick("npm install", "node"), "x"}},
		Decision: &record.Decision{Action: "allow", Rule: pick("r", "s"), Layer: "user", Log: w.random.IntN(2) == 0, Policy: "sha256:1"},
	}
	switch w.random.IntN(9) {
	case 0:
		r.Decision = &record.Decision{Action: "deny", Rule: "default", Layer: "builtin", Class: "default-deny", Policy: "sha256:1"}
		r.Count = int64(w.random.IntN(3) * 7)
	case 1:
		r.Kind, r.HTTP = record.KindRequest, &record.HTTP{Method: pick("GET", "POST"), Path: pick("/a", "/b/c"), QueryBytes: w.random.Int64N(3) * 700}
	case 2:
		r = record.Record{Kind: record.KindDNS, Flow: r.Flow, Sandbox: r.Sandbox, Via: pick("dns", "connect"), DNS: &record.DNS{Name: pick("x.test", "z.test"), Type: pick("A", "AAAA", "HTTPS", "TXT")}, Decision: r.Decision}
		if w.random.IntN(2) == 0 {
			r.Decision = &record.Decision{Action: "deny", Rule: "default", Layer: "builtin", Class: pick("default-deny", "ask-rejected"), Policy: "sha256:1"}
		}
	case 3, 4, 5:
		if len(w.open) == 0 {
			return
		}
		i := w.random.IntN(len(w.open))
		o := w.open[i]
		w.open = append(w.open[:i], w.open[i+1:]...)
		r = record.Record{Kind: record.KindClose, Flow: o.Flow, Bytes: &record.Bytes{Up: w.random.Int64N(9000), Down: w.random.Int64N(1 << 33)}, Duration: w.random.Int64N(9000), Outcome: record.Outcome(pick("closed", "cut", "network-dns"))}
		switch w.random.IntN(6) {
		case 2:
			r.Outcome, r.Bytes.Up, r.Bytes.Down = record.Outcome(pick("http", "named", "closed")), w.random.Int64N(2), 0
		case 3:
			r.TLS, r.Outcome = &record.TLS{SNI: pick("", "x.test"), Inspected: true}, record.Outcome(pick("closed", "client-refused-our-certificate", "network-tls"))
			r.Bytes.Up, r.Bytes.Down = 0, 0
		case 0:
			r.Decision = &record.Decision{Action: "deny", Rule: "canary", Layer: "builtin", Class: "canary"}
		case 1:
			r.HTTP = &record.HTTP{Method: "GET", Path: "/a", Status: 404, QueryBytes: w.random.Int64N(60_000)}
		}
		w.write(r)
		return
	case 6:
		if w.random.IntN(40) == 0 {
			w.open = nil
			w.write(record.Record{Kind: record.KindHeartbeat})
			w.write(record.Record{Kind: record.KindStart, Note: "started"})
			return
		}
		r.Decision.Question = []string{pick("Q1", "Q2")}
		switch w.random.IntN(3) {
		case 0:
			r.Decision.Action, r.Decision.Class = "ask", "ask-pending"
			if w.random.IntN(2) == 0 { // the question itself
				r.Flow = r.Decision.Question[0]
			}
		case 1:
			r.Decision.Action, r.Decision.Class = "deny", "ask-pending"
		}
		r.Shadow = &record.Shadow{Action: pick("allow", "deny"), Inspect: w.random.IntN(2) == 0, Rule: "t", Policy: "sha256:2"}
	}
	w.write(r)
	if r.Decision.Action == "allow" && r.Kind != record.KindDNS {
		w.open = append(w.open, r)
	}
}

func randomLog(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := &writer{t: t, random: rand.New(rand.NewPCG(3, 4)), file: f}
	for w.seq < int64(n) {
		w.one()
	}
	hold(t, dir)
	return dir
}

// hold holds the lock of a log, as the process does that writes it.
func hold(t *testing.T, dir string) (letGo func()) {
	t.Helper()
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	return func() { lock.Close() }
}

// read returns the index of a log that does not grow.
func read(t *testing.T, dir string) *Index {
	t.Helper()
	x := New()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- x.Follow(ctx, dir) }()
	for {
		p, changed := x.Progress()
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		if p.CaughtUp {
			break
		}
		<-changed
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return x
}

type sums map[logs.GroupKey][3]int64

// filters holds one for each key of a filter.
var filters = []string{
	"", "verdict:deny", "host:x.test", "-host:x.test", "port:443", "addr:192.0.2.9", "addr:10.0.0.0/8", "class:canary", "rule:r", "layer:user", "policy:sha256:1", "sandbox:a",
	"via:socks5", "src:10.0.0.2", "src:fd00::2", "method:GET", "path:/b*", "status:404", "proc:npm", "proc:curl", "shadow:inspect", "shadow:deny", "marked:yes", "marked:no", "kind:request",
	"outcome:cut", "outcome:open", "outcome:network-*", "up:>4k", "down:>1G", "took:>3s", "query:>0", "query:500..1k", "-query:>1k", "query:50k", "-up:>4k", "since:2026-11-20T10:20:00Z until:2026-11-20T13:40:00Z", "host:x.test up:1k..5k sandbox:b",
}

// TestAnswersAreThoseOfAScan compares the index with the filter of egressd log, for each key.
func TestAnswersAreThoseOfAScan(t *testing.T) {
	dir := randomLog(t, 2000)
	x := read(t, dir)
	all := slices.Concat(filters, []string{"domain:x.test", "sni:*x*", "container:c*"}, namesOf(t, dir))
	for _, key := range logs.FilterKeys {
		if key != "run" && key != "seq" && !slices.ContainsFunc(all, func(f string) bool { return strings.Contains(f, key+":") }) {
			t.Errorf("no filter has the key %s", key)
		}
	}
	for _, text := range all {
		f, err := logs.ParseFilter(logs.SplitFilter(text), began)
		if err != nil {
			t.Fatal(err)
		}
		want, got := sums{}, sums{}
		lines, err := audit.NewReader(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = logs.ScanDecisions(lines, f, logs.OutcomeOpen, func(r *record.Record) {
			if logs.Decides(r) {
				want.add(r, r.Times(), r.Bytes)
			}
		})
		lines.Close()
		if err != nil {
			t.Fatal(err)
		}
		sum := x.Sum(t.Context(), f, nil)
		var ids []uint32
		minutes := int64(0)
		for id := range sum.Totals {
			ids = append(ids, id)
		}
		for _, m := range sum.Minutes {
			minutes += m.Allowed + m.Denied + m.Asked
		}
		all := int64(0)
		x.Shapes(ids, func(id uint32, r *record.Record) {
			total := sum.Totals[id]
			all += total.Count
			got.add(r, total.Count, &record.Bytes{Up: total.Up, Down: total.Down})
		})
		if text == "" && len(want) < 20 {
			t.Fatalf("the log has %d groups, too few to compare", len(want))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("filter %q: %s", text, diff)
		}
		if minutes != all {
			t.Errorf("filter %q: the minutes hold %d decisions of %d", text, minutes, all)
		}
	}
}

// namesOf returns filters for the id of one decision of a log, and for its beginning.
func namesOf(t *testing.T, dir string) (filters []string) {
	lines, err := audit.NewReader(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	err = logs.ScanDecisions(lines, &logs.Filter{}, logs.OutcomeOpen, func(r *record.Record) {
		if logs.Decides(r) && filters == nil {
			filters = []string{"id:" + r.Flow, "flow:" + r.Flow, "id:" + r.Flow[:len(r.Flow)-2]}
		}
	})
	if err != nil || filters == nil {
		t.Fatalf("no decision: %v", err)
	}
	return filters
}

func (s sums) add(r *record.Record, count int64, b *record.Bytes) {
	key := logs.GroupKey{Action: strings.Clone(r.Decision.Action), Destination: logs.Destination(r), What: logs.What(r), Who: logs.Who(r), Why: logs.Why(r)}
	n := s[key]
	n[0] += count
	if b != nil {
		n[1], n[2] = n[1]+b.Up, n[2]+b.Down
	}
	s[key] = n
}

// TestNewestGoesBackInPages reads all decisions in pages, and finds one by its flow.
func TestNewestGoesBackInPages(t *testing.T) {
	x := read(t, randomLog(t, 2000))
	f := &logs.Filter{}
	before, seen := int64(1<<62), 0
	for {
		page := x.Newest(t.Context(), f, before, 64)
		for _, r := range page {
			if r.Seq >= before {
				t.Fatalf("record %d follows %d", r.Seq, before)
			}
			before = r.Seq
		}
		seen += len(page)
		if len(page) < 64 {
			break
		}
		if found, ok := x.ByFlow(page[3].Flow); !ok || found.Flow != page[3].Flow {
			t.Errorf("flow %s: %v, %v", page[3].Flow, found, ok)
		}
	}
	counted := 0
	x.Sum(t.Context(), f, func(*Row) { counted++ })
	for _, e := range x.Events() {
		if e.Kind == record.KindHeartbeat {
			t.Error("a heartbeat is an event")
		}
	}
	if p, _ := x.Progress(); seen != counted || seen == 0 || counted >= p.Rows {
		t.Errorf("the pages hold %d rows, and %d of %d count", seen, counted, p.Rows)
	}
}

// TestMemoryIsBounded adds more decisions and more paths than the index may hold.
func TestMemoryIsBounded(t *testing.T) {
	x := New()
	f := x.newFollowed("", nil)
	r := record.Record{Kind: record.KindRequest, Sandbox: "a", Dst: &record.Destination{Host: "x.test", Port: 443}, HTTP: &record.HTTP{Method: "GET"}, Decision: &record.Decision{Action: "deny"}}
	const differ = 3 * mostShapes
	for i := range int64(differ) {
		r.Seq, r.Time, r.HTTP.Path = i, began, fmt.Sprintf("/%d", i)
		if i > 2*mostShapes {
			r.Dst.Host = fmt.Sprintf("h%d.test", i)
		}
		if err := f.add("", &r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(mostChunks * chunkRows) {
		x.next++
		x.append(*x.at(differ - 1 + i))
	}
	p, _ := x.Progress()
	if p.Rows > mostChunks*chunkRows || p.Dropped == 0 || p.Shapes > 3*mostShapes || !p.Summed {
		t.Errorf("%+v", p)
	}
	sum := x.Sum(t.Context(), &logs.Filter{}, nil)
	all := int64(0)
	for _, total := range sum.Totals {
		all += total.Count
	}
	if all != int64(p.Rows) {
		t.Errorf("the shapes hold %d decisions of %d", all, p.Rows)
	}
}

// TestFollowEndsBeforeTheEndOfTheLog ends the index while lines are left to read.
func TestFollowEndsBeforeTheEndOfTheLog(t *testing.T) {
	dir := randomLog(t, 2000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- New().Follow(ctx, dir) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
}

// TestFlowsAreOpenWhileAProcessWritesTheLog counts flows without an end before and after the process is killed that wrote them.
func TestFlowsAreOpenWhileAProcessWritesTheLog(t *testing.T) {
	dir := randomLog(t, 200)
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	letGo := hold(t, dir)
	x := New()
	go func() { _ = x.Follow(t.Context(), dir) }()
	open := func() (n int64) {
		for _, total := range x.Sum(t.Context(), &logs.Filter{}, nil).Totals {
			n += total.Open
		}
		return n
	}
	await := func(says string, is func() bool) {
		t.Helper()
		for end := time.After(20 * time.Second); !is(); {
			select {
			case <-end:
				t.Fatalf("%s: %d are open", says, open())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	await("the log was read", func() bool { p, _ := x.Progress(); return p.CaughtUp })
	if open() == 0 {
		t.Fatal("no flow is open")
	}
	letGo()
	await("the process was killed", func() bool { return open() == 0 })
}

// TestSeveralLogsAreOneIndex reads three logs, one of which grows while another one is added, together and one by one.
func TestSeveralLogsAreOneIndex(t *testing.T) {
	parent := t.TempDir()
	var mu sync.Mutex
	var folders []string
	add := func(name string, random uint64, n int) *writer {
		t.Helper()
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(filepath.Join(dir, "00000001.log"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		w := &writer{t: t, random: rand.New(rand.NewPCG(random, 4)), file: file}
		for w.seq < int64(n) {
			w.one()
		}
		mu.Lock()
		defer mu.Unlock()
		folders = append(folders, dir)
		return w
	}
	add("run-a", 1, 300)
	growing := add("run-b", 2, 200)
	letGo := hold(t, filepath.Join(parent, "run-b"))
	x := New()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		x.FollowAll(ctx, func() []string {
			mu.Lock()
			defer mu.Unlock()
			return append([]string{filepath.Join(parent, "nowhere")}, folders...)
		})
	})
	await := func(n int64) {
		t.Helper()
		for end := time.After(20 * time.Second); ; {
			p, changed := x.Progress()
			if p.Next == n && p.CaughtUp {
				return
			}
			select {
			case <-changed:
			case <-end:
				t.Fatalf("%d records were read, want %d", p.Next, n)
			}
		}
	}
	await(500)
	add("run-c", 3, 100)
	await(600)
	for growing.seq < 260 {
		growing.one()
	}
	await(660)
	letGo()
	want := sums{}
	for _, run := range []string{"run-a", "run-b", "run-c", ""} {
		f := &logs.Filter{Run: run}
		got, own := sums{}, sums{}
		sum := x.Sum(t.Context(), f, func(r *Row) {
			if run != "" && filepath.Base(r.Log) != run {
				t.Fatalf("%s has a decision of %s", run, r.Log)
			}
		})
		x.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
			total := sum.Totals[id]
			got.add(r, total.Count, &record.Bytes{Up: total.Up, Down: total.Down})
		})
		if run != "" {
			lines, err := audit.NewReader(filepath.Join(parent, run), 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := logs.ScanDecisions(lines, &logs.Filter{}, record.OutcomeCut, func(r *record.Record) {
				if logs.Decides(r) {
					own.add(r, r.Times(), r.Bytes)
					want.add(r, r.Times(), r.Bytes)
				}
			}); err != nil {
				t.Fatal(err)
			}
			lines.Close()
		} else {
			own = want
		}
		if diff := cmp.Diff(own, got); diff != "" {
			t.Errorf("%q: %s", run, diff)
		}
	}
	seen, before := 0, int64(1<<62)
	for {
		page := x.Newest(t.Context(), &logs.Filter{}, before, 50)
		for _, r := range page {
			if r.Number >= before {
				t.Fatalf("record %d follows %d", r.Number, before)
			}
			before = r.Number
			line, err := audit.NewReader(r.Log, r.Seq)
			if err != nil {
				t.Fatal(err)
			}
			text, err := line.Next()
			line.Close()
			if err != nil || r.Flow != 0 && !bytes.Contains(text, []byte(r.Flow.String())) {
				t.Fatalf("record %d of %s, of flow %s, is %s (%v)", r.Seq, r.Log, r.Flow, text, err)
			}
		}
		if seen += len(page); len(page) < 50 {
			break
		}
	}
	if seen < 100 {
		t.Errorf("the pages hold %d rows", seen)
	}
	cancel()
	ended.Wait()
}
