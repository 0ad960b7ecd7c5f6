package load

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

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"golang.org/x/net/http2"
)

// usage is what a process has used so far.
type usage struct {
	resident int           // KiB, now
	cpu      time.Duration // of all its threads
}

func usageOf(t *testing.T, d *world.Daemon) (u usage) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.Cmd.Process.Pid))
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
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Cmd.Process.Pid))
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
	send func(*world.Framer) error
}{
	{"rapid reset", false, func(f *world.Framer) error {
		for range 10_000 {
			if err := f.Open(f.Encode(world.RequestFields("/slow")...), true); err != nil {
				return err
			}
			if err := f.WriteRSTStream(f.Stream, http2.ErrCodeCancel); err != nil {
				return err
			}
		}
		return nil
	}},
	{"CONTINUATION without an end", true, func(f *world.Framer) error {
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.Encode(world.RequestFields("/")...)})
		return repeat(100_000, func(i int) error {
			return f.WriteContinuation(1, false, f.Encode(fmt.Sprintf("x-%d", i), "value"))
		})
	}},
	{"empty CONTINUATION without an end", true, func(f *world.Framer) error {
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.Encode(world.RequestFields("/")...)})
		return repeat(200_000, func(int) error { return f.WriteContinuation(1, false, nil) })
	}},
	{"SETTINGS", true, func(f *world.Framer) error {
		return repeat(100_000, func(int) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
		})
	}},
	{"PING", true, func(f *world.Framer) error {
		return repeat(100_000, func(int) error { return f.WritePing(false, [8]byte{}) })
	}},
	{"empty DATA", true, func(f *world.Framer) error {
		f.Open(f.Encode(append(world.RequestFields("/count")[2:], ":method", "POST")...), false)
		return repeat(100_000, func(int) error { return f.WriteData(f.Stream, false, nil) })
	}},
	{"DATA that ends a stream that is over", true, func(f *world.Framer) error {
		f.Open(f.Encode(world.RequestFields("/")...), true)
		return repeat(100_000, func(int) error { return f.WriteData(f.Stream, true, nil) })
	}},
	{"bytes on a stream that is over", true, func(f *world.Framer) error {
		f.Open(f.Encode(world.RequestFields("/")...), true)
		return repeat(100_000, func(int) error { return f.WriteData(f.Stream, false, []byte("x")) })
	}},
	{"more on a stream that was reset than was under way", true, func(f *world.Framer) error {
		f.Open(f.Encode(world.ReplaceField(":method", "DELETE", world.RequestFields("/"))...), false)
		world.Eventually(world.Patience, func() bool { return f.Seen.Reset(f.Stream) })
		return repeat(20_000, func(int) error { return f.WriteData(f.Stream, false, make([]byte, 1<<10)) })
	}},
	{"heads after a farewell", true, func(f *world.Framer) error {
		f.Open(f.Encode(world.RequestFields("/slow")...), true) // which keeps the connection open
		f.WriteGoAway(0, http2.ErrCodeNo, nil)
		world.Eventually(world.Patience, f.Seen.Ended)
		return repeat(100_000, func(int) error { return f.Open(f.Encode(world.RequestFields("/slow")...), true) })
	}},
	{"WINDOW_UPDATE", true, func(f *world.Framer) error {
		f.Open(f.Encode(world.RequestFields("/slow")...), true)
		return repeat(100_000, func(int) error { return f.WriteWindowUpdate(f.Stream, 1) })
	}},
	{"PRIORITY", true, func(f *world.Framer) error {
		return repeat(100_000, func(i int) error {
			return f.WritePriority(uint32(2*i+1), http2.PriorityParam{StreamDep: 0, Weight: 7})
		})
	}},
	{"an HPACK bomb", true, func(f *world.Framer) error {
		large := strings.Repeat("a", 3900)
		f.Open(f.Encode(world.RequestFields("/", "x-bomb", large)...), true)
		again := make([]string, 0, 4000)
		for range cap(again) / 2 {
			again = append(again, "x-bomb", large)
		}
		return repeat(1000, func(int) error { return f.Open(f.Encode(world.RequestFields("/", again...)...), true) })
	}},
	{"a table that churns", false, func(f *world.Framer) error {
		return repeat(3000, func(i int) error {
			var more []string
			for n := range 90 {
				more = append(more, fmt.Sprintf("x-%d-%d", i, n), "value of a field")
			}
			return f.Open(f.Encode(world.RequestFields("/", more...)...), true)
		})
	}},
	{"a header list too large", true, func(f *world.Framer) error {
		var more []string
		for n := range 4000 {
			more = append(more, fmt.Sprintf("x-%d", n), "value of a field")
		}
		block := f.Encode(world.RequestFields("/", more...)...)
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]})
		for block = block[16<<10:]; len(block) > 16<<10; block = block[16<<10:] {
			if err := f.WriteContinuation(1, false, block[:16<<10]); err != nil {
				return err
			}
		}
		return f.WriteContinuation(1, true, block)
	}},
	{"a thousand streams at once", true, func(f *world.Framer) error {
		return repeat(1000, func(int) error { return f.Open(f.Encode(world.RequestFields("/slow")...), true) })
	}},
	{"malformed requests", true, func(f *world.Framer) error {
		return repeat(10_000, func(int) error { return f.Open(f.Encode(world.RequestFields("/", "X-Upper", "v")...), true) })
	}},
	{"requests with a Connection field", true, func(f *world.Framer) error {
		return repeat(10_000, func(int) error { return f.Open(f.Encode(world.RequestFields("/", "connection", "close")...), true) })
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
	world.Covers(t, "H2-07")
	d := world.StartInspecting(t, "")
	usual(t, d) // what is made once is made
	for _, flood := range floods {
		t.Run(flood.says, func(t *testing.T) {
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			f := d.Frames(t)
			w := startWatch(t, d)
			sent := flood.send(f)
			ended := settles(f)
			w.judge(t)
			if flood.ends && !ended {
				t.Errorf("the connection did not end (%v)", sent)
			}
			f.Conn.Close()
			if n := expectBounded(t, d, f.Src, mark); flood.ends && n == 0 {
				t.Error("the log does not say that anything was malformed")
			}
		})
	}
	usual(t, d)
	d.Settled(t)
}

// A watch looks at what a flood costs egressd and another client.
type watch struct {
	daemon *world.Daemon
	began  time.Time
	before usage
	stop   func() (int, time.Duration)
}

func startWatch(t *testing.T, d *world.Daemon) *watch {
	t.Helper()
	return &watch{daemon: d, began: time.Now(), before: usageOf(t, d), stop: askMeanwhile(t, d)}
}

func (w *watch) judge(t *testing.T) {
	t.Helper()
	served, slowest := w.stop()
	after := usageOf(t, w.daemon)
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
func settles(f *world.Framer) (ended bool) {
	f.WritePing(false, world.LastPing)
	select {
	case <-f.Over:
		return true
	case <-f.Answered:
		return false
	}
}

// usual has an ordinary client ask.
func usual(t *testing.T, d *world.Daemon) {
	t.Helper()
	if err := askOnce(d, d.H2Client(t)); err != nil {
		t.Errorf("an ordinary client: %v", err)
	}
}

func askOnce(d *world.Daemon, c *http.Client) error {
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
func askMeanwhile(t *testing.T, d *world.Daemon) (stop func() (int, time.Duration)) {
	t.Helper()
	client := d.H2Client(t)
	var over atomic.Bool
	var asking sync.WaitGroup
	served, slowest := 0, time.Duration(0)
	asking.Go(func() {
		pause := time.NewTicker(5 * time.Millisecond) // the flood is to have the machine
		defer pause.Stop()
		for served == 0 || !over.Load() {
			<-pause.C
			began := time.Now()
			if err := askOnce(d, client); err != nil {
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
func expectBounded(t *testing.T, d *world.Daemon, src string, mark int) (malformed int) {
	t.Helper()
	var records []record.Record
	over := func() bool {
		records, _ = d.Log.Of(src, mark)
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
	if !world.Eventually(world.Settling, over) {
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
