//go:build linux

package sink

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs/export"
)

var testOrigin = export.Origin{Version: "1.4.0", Host: "build-7"}

// quick makes sinks wait less than they do.
var quick = backoff{5 * time.Millisecond, 50 * time.Millisecond}

// A world is a log with sinks, and what they onError of.
type world struct {
	*testing.T
	dir string
	log *audit.Log
	set *Set

	mu    sync.Mutex
	heard []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: filepath.Join(t.TempDir(), "log")}
	var err error
	if w.log, err = audit.Create(w.dir, audit.Options{Durability: audit.Process, SegmentBytes: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	w.renew()
	t.Cleanup(func() {
		w.set.Stop(0)
		w.log.Close()
	})
	return w
}

// renew makes a Set as a new process would.
func (w *world) renew() {
	w.set = NewSet(w.dir, testOrigin, func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.heard = append(w.heard, err.Error())
	})
	w.set.backoff = quick
}

func (w *world) apply(configs ...Config) {
	w.Helper()
	if err := w.set.Apply(configs); err != nil {
		w.Fatal(err)
	}
}

// write appends n records.
func (w *world) write(n int) {
	w.Helper()
	for range n {
		if _, err := w.log.Append([]byte(`{"kind":"open","flow":"01KB6ZQ4SZ","sandbox":"ci","dst":{"host":"evil.test","port":443},"decision":{"action":"deny","class":"default-deny"}}`)); err != nil {
			w.Fatal(err)
		}
	}
}

// until waits for something that has to come.
func (w *world) until(what string, come func() bool) {
	w.Helper()
	for end := time.Now().Add(30 * time.Second); !come(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.Fatalf("never: %s; complaints %q", what, w.heard)
		}
	}
}

func (w *world) state(name string) State {
	w.Helper()
	all, err := States(w.dir)
	if err != nil {
		w.Fatal(err)
	}
	i := slices.IndexFunc(all, func(s State) bool { return s.Name == name })
	if i < 0 {
		w.Fatalf("no state of %s", name)
	}
	return all[i]
}

// seqs are what a receiver has got: how often it got each.
type seqs struct {
	mu  sync.Mutex
	got map[int64]int
	max int64
}

// take notes the stored lines, or texts that hold one.
func (s *seqs) take(t *testing.T, text string) {
	_, rest, found := strings.Cut(text, `{"v":1,"seq":`)
	digits, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseInt(digits, 10, 64)
	if !found || err != nil {
		t.Errorf("not a record: %q", text)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got == nil {
		s.got = map[int64]int{}
	}
	s.got[n]++
	s.max = max(s.max, n)
}

// whole reports whether each of n records has come.
func (s *seqs) whole(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range n {
		if s.got[i] == 0 {
			return false
		}
	}
	return true
}

func (s *seqs) twice() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, count := range s.got {
		if count > 1 {
			n++
		}
	}
	return n
}

// takeRequest notes the records of an OTLP request.
func (s *seqs) takeRequest(t *testing.T, body []byte) {
	var request logspb.LogsData
	if err := proto.Unmarshal(body, &request); err != nil {
		t.Errorf("%v in %.200q", err, body)
		return
	}
	for _, r := range request.ResourceLogs[0].ScopeLogs[0].LogRecords {
		s.take(t, r.Body.GetStringValue())
	}
}

// TestNothingIsLostOverOutages has a collector that misbehaves in every way while
// records are written. EGRESSD_E2E_SINK=60s makes the outage that long.
func TestNothingIsLostOverOutages(t *testing.T) {
	outage, err := time.ParseDuration(firstOf(os.Getenv("EGRESSD_E2E_SINK"), "300ms"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	var got seqs
	var mode atomicText
	var met atomic.Int64 // requests
	answer := func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		defer met.Add(1)
		switch mode.load() {
		case "500":
			rw.WriteHeader(500)
		case "429":
			rw.Header().Set("Retry-After", "1")
			rw.WriteHeader(429)
		case "redirect":
			http.Redirect(rw, r, "http://"+r.Host+"/elsewhere", http.StatusTemporaryRedirect)
		case "slow":
			time.Sleep(50 * time.Millisecond)
			fallthrough
		case "good":
			got.takeRequest(t, body)
			rw.Write([]byte("{}"))
		case "closes":
			conn, _, _ := rw.(http.Hijacker).Hijack()
			conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"))
			conn.Close()
		}
	}
	address := keptPort(t)
	mode.store("good")
	server := &httptest.Server{Listener: listen(t, "tcp", address), Config: &http.Server{Handler: http.HandlerFunc(answer)}}
	server.Start()
	w.apply(Config{Name: "c", Type: "otlp", URL: "http://" + address + "/v1/logs?key=hidden", Format: "json"})
	w.write(700)
	w.until("the first records", func() bool { return got.whole(700) })
	written := int64(700)
	for _, bad := range []string{"500", "closes", "slow", "redirect", "429"} {
		mode.store(bad)
		w.write(300)
		written += 300
		before := met.Load()
		w.until("a request", func() bool { return met.Load() > before })
		time.Sleep(outage / 5)
	}
	mode.store("good")
	w.until("the records of the outage", func() bool { return got.whole(written) })
	server.Close() // and nobody listens
	w.write(300)
	written += 300
	time.Sleep(outage)
	w.until("an error", func() bool { s := w.state("c"); return s.Failing() && s.LagRecords >= 300 })
	if s := w.state("c"); strings.Contains(s.Error+s.To, "hidden") {
		t.Errorf("the state holds the query: %s %s", s.Error, s.To)
	}
	again := &httptest.Server{Listener: listen(t, "tcp", address), Config: &http.Server{Handler: http.HandlerFunc(answer)}}
	again.Start()
	defer again.Close()
	w.until("the last records", func() bool { return got.whole(written) })
	w.until("a state without lag", func() bool { s := w.state("c"); return s.LagRecords == 0 && !s.Failing() })
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.heard {
		if strings.Contains(text, "hidden") {
			t.Errorf("a complaint holds the query: %s", text)
		}
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

type atomicText struct {
	mu   sync.Mutex
	text string
}

func (a *atomicText) store(s string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = s
}

func (a *atomicText) load() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text
}

// TestAStreamIsResentWhatItsReceiverDidNotRead has a syslog server that reads some
// messages of each connection, and breaks off when its kernel has taken all.
func TestAStreamIsResentWhatItsReceiverDidNotRead(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var got seqs
	var readers sync.WaitGroup
	defer readers.Wait()
	defer l.Close()
	defer w.set.Stop(0)
	breakOff := make(chan struct{})
	readers.Go(func() {
		for i := range 4 {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if i < 3 {
				readCounted(t, conn, 10, &got)
				<-breakOff
				conn.Close() // with something unread, so that the other side gets a reset
				continue
			}
			readCounted(t, conn, 1<<20, &got)
			conn.Close()
		}
	})
	w.apply(Config{Name: "s", Type: "syslog", Address: "tcp:" + l.Addr().String(), Format: "json"})
	for i := range int64(3) {
		w.write(50)
		w.until("the kernel has them", func() bool { oldest, _ := w.set.Oldest(); return oldest == 50*(i+1) })
		breakOff <- struct{}{}
	}
	w.until("all", func() bool { return got.whole(150) })
	w.set.Stop(time.Second)
}

// readCounted reads so many messages with their length in front.
func readCounted(t *testing.T, conn net.Conn, most int, got *seqs) {
	r := bufio.NewReader(conn)
	for range most {
		digits, err := r.ReadString(' ')
		if err != nil {
			return
		}
		n, err := strconv.Atoi(strings.TrimSuffix(digits, " "))
		if err != nil || n < 1 || n > 64<<10 {
			t.Errorf("the length is %q", digits)
			return
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(r, text); err != nil {
			return
		}
		got.take(t, string(text))
	}
}

func TestRestartsGoOnWhereTheyWere(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "events.json")
	config := Config{Name: "f", Type: "file", Path: path, Format: "json"}
	for i := range 5 {
		w.apply(config)
		if i == 2 { // somebody moves the file away
			w.write(1)
			w.until("what there is", func() bool { oldest, _ := w.set.Oldest(); return oldest == 221 })
			if err := os.Rename(path, path+".1"); err != nil {
				t.Fatal(err)
			}
		}
		w.write(100)
		w.set.Stop(10 * time.Second)
		w.write(10) // while there is no sink
		w.renew()
	}
	w.apply(config)
	w.set.Stop(10 * time.Second)
	var got seqs
	for _, name := range []string{path + ".1", path} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			got.take(t, line)
		}
	}
	if !got.whole(551) || got.twice() > 0 || got.max != 550 {
		t.Errorf("%d records, %d of them twice", got.max+1, got.twice())
	}
	if n := len(linesOf(t, path+".1")); n != 221 {
		t.Errorf("%d records went to the file that was moved away", n)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
}

// TestWhatIsGoneFromTheLog has a log that a crash took the end of, and then another
// log in its place.
func TestWhatIsGoneFromTheLog(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "events.json")
	config := Config{Name: "f", Type: "file", Path: path, Format: "json"}
	w.write(50)
	w.apply(config)
	w.set.Stop(10 * time.Second)
	state := statePath(w.dir, "f")
	text, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	// A record was acknowledged that the crash took; an older one is there.
	s.Marks = []Mark{{Seq: 55, SHA256: "0"}, s.Marks[0]}
	s.Marks[1].Seq, s.Marks[1].SHA256, s.Next = 40, hashOf(t, w.dir, 40), 56
	if text, err = json.Marshal(s); err == nil {
		err = os.WriteFile(state, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.renew()
	w.write(10)
	w.apply(config)
	w.set.Stop(10 * time.Second)
	if got := linesOf(t, path); len(got) != 50+19 || !strings.Contains(got[50], `"seq":41,`) || len(w.heard) > 0 {
		t.Errorf("%d lines, complaints %q", len(got), w.heard)
	}
	// None of the marks is there: another log.
	s.Marks = []Mark{{Seq: 3, SHA256: "0"}}
	if text, err = json.Marshal(s); err == nil {
		err = os.WriteFile(state, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.renew()
	w.apply(config)
	w.set.Stop(10 * time.Second)
	if got := linesOf(t, path); len(got) != 50+19+60 || len(w.heard) != 1 || !strings.Contains(w.heard[0], "begins with the oldest record") {
		t.Errorf("%d lines, complaints %q", len(got), w.heard)
	}
}

func hashOf(t *testing.T, dir string, seq int64) string {
	t.Helper()
	r, err := audit.NewReader(dir, seq)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	line, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	b := new(batch)
	b.add(recordAt(seq), line, nil)
	s := new(State)
	s.mark(seq, b.last)
	return s.Marks[0].SHA256
}

func linesOf(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
