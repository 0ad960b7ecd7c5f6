//go:build linux

package sink

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A lossTrial is a fault of a receiver in the middle of a stream of records.
type lossTrial struct {
	fault string
	kind  string // of the sink: otlp, tcp or file
	begin func(*lossReceiver)
	end   func(*lossReceiver)
	lost  bool // the receiver throws records away and says so
	quiet bool // nothing goes wrong
}

// A lossReceiver takes records and fails as it is told to.
type lossReceiver struct {
	*testing.T
	address string
	kept    seqs // what the receiver has stored

	mode    atomicText
	mu      sync.Mutex
	memory  []func() // what it has taken and not stored yet
	server  *httptest.Server
	streams []net.Conn
	stream  net.Listener
	held    atomic.Bool // the network passes nothing
	parts   atomic.Int64
}

func (r *lossReceiver) up() {
	l := listen(r.T, "tcp", r.address)
	if r.mode.load() == "tcp" {
		r.stream = l
		go r.acceptStreams(l)
		return
	}
	r.server = &httptest.Server{Listener: &heldListener{l, &r.held}, Config: &http.Server{Handler: http.HandlerFunc(r.answer)}}
	r.server.Start()
}

func (r *lossReceiver) acceptStreams(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		r.streams = append(r.streams, conn)
		r.mu.Unlock()
		go readCounted(r.T, &heldConn{conn, &r.held}, 1<<30, &r.kept)
	}
}

func (r *lossReceiver) down() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream != nil {
		r.stream.Close()
		for _, c := range r.streams {
			c.Close()
		}
		r.streams = nil
		return
	}
	r.server.CloseClientConnections()
	r.server.Close()
}

func (r *lossReceiver) answer(rw http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	switch r.mode.load() {
	case "400":
		http.Error(rw, `{"message":"the index is closed"}`, http.StatusBadRequest)
		return
	case "507":
		http.Error(rw, `{"message":"no space left on device"}`, http.StatusInsufficientStorage)
		return
	case "slow":
		time.Sleep(150 * time.Millisecond)
	case "partial":
		if r.parts.Add(1)%2 == 1 { // throws all of this batch away
			var lost seqs
			lost.takeRequest(r.T, body)
			fmt.Fprintf(rw, `{"partialSuccess":{"rejectedLogRecords":"%d","errorMessage":"too old"}}`, len(lost.got))
			return
		}
	case "memory": // answers before it has stored anything
		r.mu.Lock()
		r.memory = append(r.memory, func() { r.kept.takeRequest(r.T, body) })
		r.mu.Unlock()
		rw.Write([]byte("{}"))
		return
	case "204":
		r.kept.takeRequest(r.T, body)
		rw.WriteHeader(http.StatusNoContent)
		return
	}
	r.kept.takeRequest(r.T, body)
	rw.Write([]byte("{}"))
}

// A heldListener has connections through which nothing passes while they are held, as if a cable was cut.
type heldListener struct {
	net.Listener
	held *atomic.Bool
}

func (l *heldListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &heldConn{c, l.held}, nil
}

type heldConn struct {
	net.Conn
	held *atomic.Bool
}

func (c *heldConn) Read(b []byte) (int, error) {
	for c.held.Load() {
		time.Sleep(5 * time.Millisecond)
	}
	return c.Conn.Read(b)
}

var lossTrials = []lossTrial{
	{fault: "none", kind: "otlp", begin: func(*lossReceiver) {}, end: func(*lossReceiver) {}, quiet: true},
	{fault: "receiver down", kind: "otlp", begin: (*lossReceiver).down, end: (*lossReceiver).up},
	{fault: "collector killed with a second in its memory", kind: "otlp", begin: func(r *lossReceiver) {
		r.mode.store("memory")
		time.Sleep(300 * time.Millisecond)
		r.down()
		r.mu.Lock()
		r.memory = nil
		r.mu.Unlock()
		r.mode.store("")
	}, end: (*lossReceiver).up},
	{fault: "collector restarted", kind: "otlp", begin: func(r *lossReceiver) { r.server.Config.Close(); r.server.Close() }, end: (*lossReceiver).up},
	{fault: "400 for all", kind: "otlp", begin: func(r *lossReceiver) { r.mode.store("400") }, end: func(r *lossReceiver) { r.mode.store("") }},
	{fault: "partial success", kind: "otlp", begin: func(r *lossReceiver) { r.mode.store("partial") }, end: func(r *lossReceiver) { r.mode.store("") }, lost: true},
	{fault: "slow", kind: "otlp", begin: func(r *lossReceiver) { r.mode.store("slow") }, end: func(r *lossReceiver) { r.mode.store("") }, quiet: true},
	{fault: "204", kind: "otlp", begin: func(r *lossReceiver) { r.mode.store("204") }, end: func(r *lossReceiver) { r.mode.store("") }, quiet: true},
	{fault: "disk of the receiver full (507)", kind: "otlp", begin: func(r *lossReceiver) { r.mode.store("507") }, end: func(r *lossReceiver) { r.mode.store("") }},
	{fault: "network cut", kind: "otlp", begin: func(r *lossReceiver) { r.held.Store(true) }, end: func(r *lossReceiver) { r.held.Store(false) }, quiet: true},
	{fault: "receiver down", kind: "tcp", begin: (*lossReceiver).down, end: (*lossReceiver).up},
	{fault: "network cut", kind: "tcp", begin: func(r *lossReceiver) { r.held.Store(true) }, end: func(r *lossReceiver) { r.held.Store(false) }, quiet: true},
	{fault: "disk full (/dev/full)", kind: "file"},
}

// TestNothingIsLostUnsaid writes 500 records a second, has a receiver fail for a while, and compares what it has in the end
// with what the state of the sink says. EGRESSD_SINK_LOSS=10s makes each third of a trial that long, with 2,000 a second; -v prints the
// table.
func TestNothingIsLostUnsaid(t *testing.T) {
	third, err := time.ParseDuration(firstOf(os.Getenv("EGRESSD_SINK_LOSS"), "300ms"))
	if err != nil {
		t.Fatal(err)
	}
	before := retryEvery
	retryEvery = 200 * time.Millisecond
	t.Cleanup(func() { retryEvery = before })
	rows := make([]string, len(lossTrials))
	t.Run("trials", func(t *testing.T) {
		for i, trial := range lossTrials {
			t.Run(trial.kind+" "+trial.fault, func(t *testing.T) {
				if third < time.Second { // else they would slow each other down
					t.Parallel()
				}
				rows[i] = trial.run(t, third)
			})
		}
	})
	t.Log("\n| fault | sink | a second | sent | arrived | again | said to be lost | state meanwhile |\n|---|---|---|---|---|---|---|---|\n" + strings.Join(rows, ""))
}

// run returns the row of the trial in the table.
func (trial lossTrial) run(t *testing.T, third time.Duration) (row string) {
	wanted := 2000.0 // records a second
	if third < time.Second {
		wanted = 500
	}
	w := newWorld(t)
	r := &lossReceiver{T: t, address: keptPort(t)}
	config := Config{Name: "c", Type: "otlp", URL: "http://" + r.address + "/v1/logs", Format: "json"}
	path := filepath.Join(t.TempDir(), "events")
	switch trial.kind {
	case "tcp":
		r.mode.store("tcp")
		config = Config{Name: "c", Type: "syslog", Address: "tcp:" + r.address, Format: "json"}
	case "file":
		config = Config{Name: "c", Type: "file", Path: path, Format: "json"}
		trial.begin = func(*lossReceiver) { full := config; full.Path = "/dev/full"; w.apply(full) }
		trial.end = func(*lossReceiver) { w.apply(config) }
	}
	if trial.kind != "file" {
		r.up()
	}
	w.apply(config)
	var stop, written atomic.Int64
	var writer sync.WaitGroup
	began := time.Now()
	writer.Go(func() {
		for stop.Load() == 0 {
			due := int64(time.Since(began).Seconds() * wanted)
			for ; written.Load() < due; written.Add(1) {
				if _, err := w.log.Append([]byte(`{"kind":"open","flow":"01KB6ZQ4SZ","sandbox":"ci","dst":{"host":"evil.test","port":443}}`)); err != nil {
					t.Error(err)
					return
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	time.Sleep(third)
	trial.begin(r)
	time.Sleep(third)
	if !trial.quiet && !trial.lost {
		w.until(trial.fault+" shows", func() bool { s := w.state("c"); return s.Failing() })
	}
	meanwhile := w.state("c")
	trial.end(r)
	time.Sleep(third)
	stop.Store(1)
	writer.Wait()
	rate := float64(written.Load()) / time.Since(began).Seconds()
	w.until(trial.fault+": all is sent", func() bool { s := w.state("c"); return s.LagRecords == 0 && len(s.Aside) == 0 })
	if trial.kind == "tcp" { // the kernel has it; the receiver reads it now
		w.until("all is read", func() bool { return r.kept.whole(written.Load()) })
	}
	if trial.kind == "file" {
		for _, line := range linesOf(t, path) {
			r.kept.take(t, line)
		}
	}
	after := w.state("c")
	r.kept.mu.Lock()
	arrived, again := int64(len(r.kept.got)), 0
	for _, n := range r.kept.got {
		again += n - 1
	}
	r.kept.mu.Unlock()
	if arrived+after.Lacking() < written.Load() {
		t.Errorf("%s, %s: %d written, %d arrived, and the state says that %d are lacking", trial.kind, trial.fault, written.Load(), arrived, after.Lacking())
	}
	if !trial.lost && arrived != written.Load() {
		t.Errorf("%s, %s: %d of %d arrived", trial.kind, trial.fault, arrived, written.Load())
	}
	if trial.lost && after.Lacking() == 0 {
		t.Errorf("%s: nobody says that %d were thrown away", trial.fault, written.Load()-arrived)
	}
	said := fmt.Sprintf("%d behind", meanwhile.LagRecords)
	if meanwhile.Failing() {
		said = "failing: " + strings.ReplaceAll(meanwhile.Error, r.address, "ADDRESS") + "; " + said
	} else if n := meanwhile.Lacking(); n > 0 {
		said += fmt.Sprintf(", lacks %d", n)
	}
	row = fmt.Sprintf("| %s | %s | %.0f | %d | %d | %d | %d | %s |\n", trial.fault, trial.kind, rate, written.Load(), arrived, again, after.Lacking(), said)
	w.set.Stop(0)
	r.held.Store(false)
	if trial.kind != "file" {
		r.down()
	}
	return row
}
