package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// usage is what a process has used so far.
type usage struct {
	resident int           // KiB, now
	cpu      time.Duration // of all its threads
}

func (d *daemon) usage(t *testing.T) (u usage) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const userTicks, systemTicks, perSecond = 11, 12, 100
	for _, i := range []int{userTicks, systemTicks} {
		var ticks int
		fmt.Sscan(fields[i], &ticks)
		u.cpu += time.Duration(ticks) * time.Second / perSecond
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	fmt.Sscan(rest, &u.resident)
	return u
}

// floods are sent each over one connection, as fast as they go; an error ends
// one, since then the connection is over.
var floods = []struct {
	says string
	ends bool // the connection has to, and the log says what for
	send func(*framer) error
}{
	{"rapid reset", false, func(f *framer) error {
		for range 10_000 {
			if err := f.open(f.encode(request("/slow")...), true); err != nil {
				return err
			}
			if err := f.WriteRSTStream(f.stream, http2.ErrCodeCancel); err != nil {
				return err
			}
		}
		return nil
	}},
	{"CONTINUATION without an end", true, func(f *framer) error {
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.encode(request("/")...)})
		return repeat(100_000, func(i int) error {
			return f.WriteContinuation(1, false, f.encode(fmt.Sprintf("x-%d", i), "value"))
		})
	}},
	{"empty CONTINUATION without an end", true, func(f *framer) error {
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.encode(request("/")...)})
		return repeat(200_000, func(int) error { return f.WriteContinuation(1, false, nil) })
	}},
	{"SETTINGS", true, func(f *framer) error {
		return repeat(100_000, func(int) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
		})
	}},
	{"PING", true, func(f *framer) error {
		return repeat(100_000, func(int) error { return f.WritePing(false, [8]byte{}) })
	}},
	{"empty DATA", true, func(f *framer) error {
		f.open(f.encode(append(request("/count")[2:], ":method", "POST")...), false)
		return repeat(100_000, func(int) error { return f.WriteData(f.stream, false, nil) })
	}},
	{"DATA that ends a stream that is over", true, func(f *framer) error {
		f.open(f.encode(request("/")...), true)
		return repeat(100_000, func(int) error { return f.WriteData(f.stream, true, nil) })
	}},
	{"bytes on a stream that is over", true, func(f *framer) error {
		f.open(f.encode(request("/")...), true)
		return repeat(100_000, func(int) error { return f.WriteData(f.stream, false, []byte("x")) })
	}},
	{"more on a stream that was reset than was under way", true, func(f *framer) error {
		f.open(f.encode(with(":method", "DELETE", request("/"))...), false)
		eventually(patience, func() bool { return f.seen.reset(f.stream) })
		return repeat(20_000, func(int) error { return f.WriteData(f.stream, false, make([]byte, 1<<10)) })
	}},
	{"heads after a farewell", true, func(f *framer) error {
		f.open(f.encode(request("/slow")...), true) // which keeps the connection open
		f.WriteGoAway(0, http2.ErrCodeNo, nil)
		eventually(patience, f.seen.ended)
		return repeat(100_000, func(int) error { return f.open(f.encode(request("/slow")...), true) })
	}},
	{"WINDOW_UPDATE", true, func(f *framer) error {
		f.open(f.encode(request("/slow")...), true)
		return repeat(100_000, func(int) error { return f.WriteWindowUpdate(f.stream, 1) })
	}},
	{"PRIORITY", true, func(f *framer) error {
		return repeat(100_000, func(i int) error {
			return f.WritePriority(uint32(2*i+1), http2.PriorityParam{StreamDep: 0, Weight: 7})
		})
	}},
	{"an HPACK bomb", true, func(f *framer) error {
		large := strings.Repeat("a", 3900)
		f.open(f.encode(request("/", "x-bomb", large)...), true)
		again := make([]string, 0, 4000)
		for range cap(again) / 2 {
			again = append(again, "x-bomb", large)
		}
		return repeat(1000, func(int) error { return f.open(f.encode(request("/", again...)...), true) })
	}},
	{"a table that churns", false, func(f *framer) error {
		return repeat(3000, func(i int) error {
			var more []string
			for n := range 90 {
				more = append(more, fmt.Sprintf("x-%d-%d", i, n), "value of a field")
			}
			return f.open(f.encode(request("/", more...)...), true)
		})
	}},
	{"a header list too large", true, func(f *framer) error {
		var more []string
		for n := range 4000 {
			more = append(more, fmt.Sprintf("x-%d", n), "value of a field")
		}
		block := f.encode(request("/", more...)...)
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]})
		for block = block[16<<10:]; len(block) > 16<<10; block = block[16<<10:] {
			if err := f.WriteContinuation(1, false, block[:16<<10]); err != nil {
				return err
			}
		}
		return f.WriteContinuation(1, true, block)
	}},
	{"a thousand streams at once", true, func(f *framer) error {
		return repeat(1000, func(int) error { return f.open(f.encode(request("/slow")...), true) })
	}},
	{"malformed requests", true, func(f *framer) error {
		return repeat(10_000, func(int) error { return f.open(f.encode(request("/", "X-Upper", "v")...), true) })
	}},
	{"requests with a Connection field", true, func(f *framer) error {
		return repeat(10_000, func(int) error { return f.open(f.encode(request("/", "connection", "close")...), true) })
	}},
}

func repeat(n int, do func(int) error) error {
	for i := range n {
		if err := do(i); err != nil {
			return err
		}
	}
	return nil
}

// Bounds of what one flood may cost.
const (
	floodMemory  = 48 << 10 // KiB more than before
	floodCPU     = 8 * time.Second
	floodRecords = 70 // of what was malformed
)

// TestHTTP2Floods sends one flood after the other. The connection ends, or
// stays within bounds, and another client is served meanwhile.
func TestHTTP2Floods(t *testing.T) {
	covers(t, "H2-07")
	d := startInside(t, "")
	d.usual(t) // what is made once is made
	for _, flood := range floods {
		t.Run(flood.says, func(t *testing.T) {
			mark, err := d.log.mark()
			if err != nil {
				t.Fatal(err)
			}
			f := d.frames(t)
			w := d.watch(t)
			sent := flood.send(f)
			ended := f.settles()
			w.judge(t)
			if flood.ends && !ended {
				t.Errorf("the connection did not end (%v)", sent)
			}
			f.conn.Close()
			if n := d.expectBounded(t, f.src, mark); flood.ends && n == 0 {
				t.Error("the log does not say that anything was malformed")
			}
		})
	}
	d.usual(t)
	d.settled(t)
}

// A watch looks at what a flood costs egressd and another client.
type watch struct {
	daemon *daemon
	began  time.Time
	before usage
	stop   func() (int, time.Duration)
}

func (d *daemon) watch(t *testing.T) *watch {
	t.Helper()
	return &watch{daemon: d, began: time.Now(), before: d.usage(t), stop: d.askMeanwhile(t)}
}

func (w *watch) judge(t *testing.T) {
	t.Helper()
	served, slowest := w.stop()
	after := w.daemon.usage(t)
	memory, cpu := after.resident-w.before.resident, after.cpu-w.before.cpu
	t.Logf("%v; resident %d KiB more; %v of processor; %d others were served, the slowest in %v",
		time.Since(w.began).Round(time.Millisecond), memory, cpu, served, slowest)
	if memory > floodMemory {
		t.Errorf("egressd holds %d KiB more than before", memory)
	}
	if cpu > floodCPU {
		t.Errorf("egressd used %v of processor time", cpu)
	}
}

// settles waits until the connection ends, or answers a PING: then all that
// was sent before is dealt with.
func (f *framer) settles() (ended bool) {
	f.WritePing(false, lastPing)
	select {
	case <-f.over:
		return true
	case <-f.answered:
		return false
	}
}

var lastPing = [8]byte{1}

// usual has an ordinary client ask.
func (d *daemon) usual(t *testing.T) {
	t.Helper()
	if err := d.askOnce(d.h2Client(t)); err != nil {
		t.Errorf("an ordinary client: %v", err)
	}
}

func (d *daemon) h2Client(t *testing.T) *http.Client {
	t.Helper()
	c := d.browser(nil)
	transport := c.Transport.(*http.Transport)
	transport.DisableKeepAlives = false
	transport.TLSClientConfig.RootCAs = d.trusts(t)
	transport.ForceAttemptHTTP2 = true
	t.Cleanup(transport.CloseIdleConnections)
	return c
}

func (d *daemon) askOnce(c *http.Client) error {
	resp, err := c.Get("https://allowed.test/meanwhile")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.ProtoMajor != 2 || !strings.Contains(string(body), "/meanwhile")) {
		err = fmt.Errorf("%s %s %q", resp.Proto, resp.Status, body)
	}
	return err
}

// askMeanwhile has another client ask again and again until stop is called,
// which says how often, and how long the slowest took.
func (d *daemon) askMeanwhile(t *testing.T) (stop func() (int, time.Duration)) {
	t.Helper()
	client := d.h2Client(t)
	var over atomic.Bool
	var asking sync.WaitGroup
	served, slowest := 0, time.Duration(0)
	asking.Go(func() {
		pause := time.NewTicker(5 * time.Millisecond) // the flood is to have the machine
		defer pause.Stop()
		for served == 0 || !over.Load() {
			<-pause.C
			began := time.Now()
			if err := d.askOnce(client); err != nil {
				t.Errorf("another client, meanwhile: %v", err)
				return
			}
			served, slowest = served+1, max(slowest, time.Since(began))
		}
	})
	return func() (int, time.Duration) {
		over.Store(true)
		asking.Wait()
		return served, slowest.Round(time.Millisecond)
	}
}

// expectBounded checks what the log says of one connection, and returns how
// many records say that something was malformed.
func (d *daemon) expectBounded(t *testing.T, src string, mark int) (malformed int) {
	t.Helper()
	var records []record.Record
	over := func() bool {
		records, _ = d.log.of(src, mark)
		opened, closed := 0, 0
		for _, r := range records {
			switch {
			case r.Kind == record.KindClose:
				closed++
			case r.Decision.Action == "allow":
				opened++
			}
		}
		return opened > 0 && opened == closed
	}
	if !eventually(settling, over) {
		t.Error("flows of the connection are not closed")
	}
	kinds := map[string]int{}
	for _, r := range records {
		class := ""
		if r.Decision != nil {
			class = r.Decision.Class
		}
		kinds[string(r.Kind)+" "+class]++
	}
	t.Logf("records: %v", kinds)
	malformed = kinds[string(record.KindRefused)+" "+string(policy.MalformedRequest)]
	if malformed > floodRecords {
		t.Errorf("%d records of what was malformed", malformed)
	}
	return malformed
}

// settled checks the log as a whole, and that everything was given back.
func (d *daemon) settled(t *testing.T) {
	t.Helper()
	for _, p := range d.log.flawed() {
		t.Errorf("the audit log: %s", p)
	}
	d.oncePerFlow(t)
}
