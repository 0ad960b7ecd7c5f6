//go:build linux

package sink

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestARefusedRecordIsSentAgain has a receiver that refuses one record until somebody has corrected it.
func TestARefusedRecordIsSentAgain(t *testing.T) {
	before := retryEvery
	retryEvery = 50 * time.Millisecond
	t.Cleanup(func() { retryEvery = before })
	w := newWorld(t)
	var got seqs
	var mode atomicText
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if mode.load() == "" && bytes.Contains(body, []byte(`"seq":100,`)) {
			rw.WriteHeader(http.StatusRequestEntityTooLarge)
			fmt.Fprintf(rw, `{"code":3,"message":"a field is too long for %s"}`, r.Header.Get("Authorization"))
			return
		}
		got.takeRequest(t, body)
	}))
	defer server.Close()
	config := Config{Name: "c", Type: "otlp", URL: server.URL, Format: "json", Headers: http.Header{"Authorization": {"Bearer hidden"}}}
	w.apply(config)
	w.write(50)
	w.until("the first", func() bool { return got.whole(50) })
	w.write(150)
	w.until("the others", func() bool { s := w.state("c"); return s.LagRecords == 0 && slices.Equal(s.Aside, []int64{100}) })
	if s := w.state("c"); !strings.Contains(s.Error, "413: a field is too long") || strings.Contains(s.Error, "hidden") || s.Lacking() != 1 {
		t.Errorf("%+v", s)
	}
	if oldest, _ := w.set.Oldest(); oldest != 100 {
		t.Errorf("the log may remove what is before %d", oldest)
	}
	w.set.Stop(time.Second)
	w.renew()
	w.apply(config) // a restart remembers it
	if s := w.state("c"); !slices.Equal(s.Aside, []int64{100}) {
		t.Errorf("after a restart: %+v", s)
	}
	mode.store("corrected")
	w.until("all", func() bool { s := w.state("c"); return got.whole(200) && s.Lacking() == 0 })
}

// TestAnswersThatAreGood has a receiver that answers 202 and 204, and one that throws some of a batch away.
func TestAnswersThatAreGood(t *testing.T) {
	w := newWorld(t)
	var got seqs
	var mode atomicText
	mode.store("202")
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got.takeRequest(t, body)
		switch mode.load() {
		case "202":
			rw.WriteHeader(http.StatusAccepted)
		case "204":
			rw.WriteHeader(http.StatusNoContent)
		case "partial":
			io.WriteString(rw, `{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"two were too old"}}`)
		case "protobuf":
			rw.Header().Set("Content-Type", "application/x-protobuf")
			partial := append([]byte{0x08, 4, 0x12, 5}, "older"...) // rejected_log_records, error_message
			rw.Write(append([]byte{0x0a, byte(len(partial))}, partial...))
		case "refusal":
			rw.Header().Set("Content-Type", "application/x-protobuf")
			rw.WriteHeader(http.StatusInternalServerError)
			rw.Write(append([]byte{0x08, 13, 0x12, 9}, "disk full"...)) // Status: code, message
		case "all":
			io.WriteString(rw, `{"partialSuccess":{"rejectedLogRecords":3}}`)
		}
	}))
	defer server.Close()
	w.apply(Config{Name: "c", Type: "otlp", URL: server.URL, Format: "json"})
	written := int64(0)
	for _, m := range []string{"202", "204", "partial", "all", "protobuf"} {
		mode.store(m)
		if _, err := w.log.Append([]byte(`{"kind":"open","flow":"01KB6ZQ4SZ"}`)); err != nil {
			t.Fatal(err)
		}
		written++
		w.until(m, func() bool { return w.state("c").Next == written })
	}
	if s := w.state("c"); s.Rejected != 9 || s.Lacking() != 9 || s.Sent != written || !strings.HasSuffix(s.Error, "older") {
		t.Errorf("%+v", s)
	}
	if got.twice() > 0 {
		t.Error("what was accepted came twice")
	}
	mode.store("refusal")
	w.write(1)
	w.until("words", func() bool { return strings.HasSuffix(w.state("c").Error, "500: disk full") })
}

// TestTheLastMinuteIsSentAgain has a collector that is killed with what it had in memory, while nothing is sent, and comes back.
func TestTheLastMinuteIsSentAgain(t *testing.T) {
	w := newWorld(t)
	address := keptPort(t)
	var first, second seqs
	start := func(into *seqs) *httptest.Server {
		s := &httptest.Server{Listener: listen(t, "tcp", address), Config: &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			into.takeRequest(t, body)
		})}}
		s.Start()
		return s
	}
	killed := start(&first)
	w.apply(Config{Name: "c", Type: "otlp", URL: "http://" + address, Format: "json"})
	w.write(300)
	w.until("the first", func() bool { return first.whole(300) && w.state("c").LagRecords == 0 })
	killed.CloseClientConnections()
	killed.Close()
	defer start(&second).Close()
	w.until("the records that the first one had in memory", func() bool { return second.whole(300) })
	w.write(10)
	w.until("the next ones", func() bool { return second.whole(310) })
	if n := second.twice(); n > 0 {
		t.Errorf("%d came twice", n)
	}
}

// TestConnectionsThatEndEarlyGetOn has a receiver that ends each connection after some records.
func TestConnectionsThatEndEarlyGetOn(t *testing.T) {
	r := &runner{onError: func(error) {}}
	for connection := range 40 { // each gets 100 records further than where it began
		from := r.state.Next
		for i := range int64(10) {
			b := &batch{from: from + 10*i, next: from + 10*i + 10, bytes: 100}
			r.unconfirmed.add(b, unsureBytes)
			r.state.Next = b.next
		}
		if connection == 39 {
			break
		}
		r.rewind(true)
	}
	if r.state.Next < 500 {
		t.Errorf("after 40 connections of 100 records it is at %d", r.state.Next)
	}
}

// TestASlowReceiverGetsSmallerBatches, and a quick one larger ones again.
func TestASlowReceiverGetsSmallerBatches(t *testing.T) {
	r := new(runner)
	for range 20 {
		r.pace(slowSend)
	}
	if r.batchSize() != 1 {
		t.Errorf("%d", r.batchSize())
	}
	r.pace(2 * quickSend)
	if r.pace(0); r.batchSize() != 2 {
		t.Errorf("%d", r.batchSize())
	}
	for range 20 {
		r.pace(0)
	}
	if r.batchSize() != batchRecords {
		t.Errorf("%d", r.batchSize())
	}
}

// TestAReceiverThatRefusesAllLosesNothing has one that is set up wrong.
func TestAReceiverThatRefusesAllLosesNothing(t *testing.T) {
	w := newWorld(t)
	var got seqs
	var mode atomicText
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if mode.load() == "" {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		got.takeRequest(t, body)
	}))
	defer server.Close()
	w.apply(Config{Name: "c", Type: "otlp", URL: server.URL, Format: "json"})
	w.write(100)
	w.until("an error", func() bool { s := w.state("c"); return s.Failing() })
	mode.store("good")
	w.until("all", func() bool { return got.whole(100) })
	if s := w.state("c"); s.Lacking() > 0 {
		t.Errorf("%d refused", s.Lacking())
	}
}

// TestReload changes, adds and removes sinks.
func TestReload(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	a := Config{Name: "a", Type: "file", Path: filepath.Join(dir, "a"), Format: "json"}
	b := Config{Name: "b", Type: "file", Path: filepath.Join(dir, "b"), Format: "ecs"}
	w.write(10)
	w.apply(a, b)
	w.until("both", func() bool { oldest, ok := w.set.Oldest(); return ok && oldest == 10 })
	first := w.set.running["a"]
	moved := b
	moved.Path = filepath.Join(dir, "c")
	w.write(10)
	w.apply(a, moved)
	if w.set.running["a"] != first {
		t.Error("a sink that did not change began anew")
	}
	w.until("both", func() bool { oldest, ok := w.set.Oldest(); return ok && oldest == 20 })
	if n := len(linesOf(t, b.Path)) + len(linesOf(t, moved.Path)); n != 20 {
		t.Errorf("%d events", n)
	}
	if err := w.set.Apply([]Config{a, {Name: "x", Type: "syslog", Address: "smoke:signals", Format: "json"}}); err == nil {
		t.Error("a wrong address is taken")
	}
	if len(w.set.running) != 2 {
		t.Error("an error changed something")
	}
	w.apply()
	if oldest, known := w.set.Oldest(); !known || oldest != math.MaxInt64 || len(w.set.running) != 0 {
		t.Error("a sink is left")
	}
}

// TestUnixAndDatagrams has the receivers that are not TCP.
func TestUnixAndDatagrams(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	var lines, local, udp seqs
	stream, err := net.Listen("unix", filepath.Join(dir, "stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	go func() {
		for {
			conn, err := stream.Accept()
			if err != nil {
				return
			}
			for in := bufio.NewScanner(conn); in.Scan(); {
				lines.take(t, in.Text())
			}
		}
	}()
	packet := func(network, address string, into *seqs) net.PacketConn {
		conn, err := net.ListenPacket(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			buffer := make([]byte, 64<<10)
			for {
				n, _, err := conn.ReadFrom(buffer)
				if err != nil {
					return
				}
				into.take(t, string(buffer[:n]))
			}
		}()
		return conn
	}
	packet("unixgram", filepath.Join(dir, "log"), &local)
	server := packet("udp", "127.0.0.1:0", &udp)
	w.apply(
		Config{Name: "stream", Type: "unix", Path: filepath.Join(dir, "stream"), Format: "json"},
		Config{Name: "local", Type: "syslog", Address: "unix:" + filepath.Join(dir, "log"), Format: "json"},
		Config{Name: "udp", Type: "syslog", Address: "udp:" + server.LocalAddr().String(), Format: "json"},
	)
	for range 10 {
		w.write(5)
		time.Sleep(time.Millisecond)
	}
	w.until("lines", func() bool { return lines.whole(50) })
	w.until("messages on the socket", func() bool { return local.whole(50) })
	w.until("datagrams", func() bool { return udp.whole(50) })
}

// TestAHangingReceiverHoldsNobodyBack has one that accepts and never answers.
func TestAHangingReceiverHoldsNobodyBack(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path := filepath.Join(t.TempDir(), "events")
	w.apply(Config{Name: "hangs", Type: "otlp", URL: "http://" + l.Addr().String(), Format: "json"},
		Config{Name: "goes", Type: "file", Path: path, Format: "json"})
	w.write(1000)
	w.until("the other sink", func() bool { return w.state("goes").LagRecords == 0 })
	if s := w.state("hangs"); s.LagRecords != 1000 {
		t.Errorf("%d behind", s.LagRecords)
	}
	if oldest, ok := w.set.Oldest(); !ok || oldest != 0 {
		t.Error("the log may remove what the sink has not sent:", oldest)
	}
	begun := time.Now()
	w.set.Stop(50 * time.Millisecond)
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it took %s to stop", took)
	}
}

// TestProxyVariablesAreIgnored has variables that lead to somebody else.
func TestProxyVariablesAreIgnored(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it went to the proxy") }))
	defer other.Close()
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, other.URL)
	}
	c, err := newCollector(&Config{URL: "http://192.0.2.1/", Format: "json"}, testOrigin)
	if err != nil {
		t.Fatal(err)
	}
	if c.client.Transport.(*http.Transport).Proxy != nil {
		t.Error("the client asks for a proxy")
	}
}

func TestPatience(t *testing.T) {
	for failures := 1; failures < 100; failures++ {
		d := usualBackoff.wait(failures)
		if d < usualBackoff.min/2 || d > usualBackoff.max {
			t.Fatalf("%s after %d", d, failures)
		}
	}
	if usualBackoff.wait(50) < usualBackoff.max/2 {
		t.Error("it does not grow")
	}
}

// TestHalves checks that no record falls between two batches.
func TestHalves(t *testing.T) {
	for _, lines := range []int{0, 1, 2} {
		b := &batch{from: 7, next: 7}
		for seq := int64(7); seq < 12; seq++ {
			b.add(recordAt(seq), []byte(fmt.Sprint(seq)), bytes.Repeat([]byte("x\n"), lines))
		}
		first, second := b.halves()
		if first.from != 7 || first.next != second.from || second.next != 12 || second.last != b.last {
			t.Errorf("%+v %+v", first, second)
		}
		if len(first.entries) != lines*len(first.ends) || len(second.entries) != lines*len(second.ends) || len(first.ends)+len(second.ends) != 5 || first.bytes+second.bytes != b.bytes {
			t.Errorf("%d and %d entries", len(first.entries), len(second.entries))
		}
	}
}

func TestStoppedContextEndsARun(t *testing.T) {
	w := newWorld(t)
	w.apply(Config{Name: "f", Type: "file", Path: filepath.Join(t.TempDir(), "missing", "events"), Format: "json"})
	w.write(1)
	w.until("an error", func() bool { s := w.state("f"); return s.Failing() })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() { w.set.Stop(time.Millisecond); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		t.Error("it does not end")
	}
}

func recordAt(seq int64) *record.Record { return &record.Record{Seq: seq} }
