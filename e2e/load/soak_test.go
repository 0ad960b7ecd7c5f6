package load

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// soakVariable says how long TestSoak lasts, "1h", instead of some seconds. Each round is a
// minute then, and there are as many as it takes for a million uses of egressd in each hour. Where the machine
// has other things to do, it says how many there are in a second instead of 330, "1h@150", and
// what they come to does not matter.
const soakVariable = "EGRESSD_E2E_SOAK"

const soakSegments = 256 // that are kept

// A soak is a daemon with all listeners, and what is done to it round by round.
type soak struct {
	*world.Daemon
	*soakTraffic
	ledger ledger

	length time.Duration // of which the first sixth warms up
	least  int           // uses in a round
	lasts  time.Duration // a round, at least
	pace   time.Duration // from one use to the next
	total  int64         // uses, at least
	quiet  state         // before the first one
}

// soakPolicy has what the odd rounds of reloading allow beside, the tunnels of which are
// cut when it goes. Deadlines are short: what hangs has ended soon after a round.
func soakPolicy(odd bool) string {
	text := "version: 1\nallow:\n  - \"*.allowed.test\"\n  - \"203.0.0.0/16:443\"\n  - {host: allowed.test, methods: [GET], paths: [\"/open/**\", \"/slow\"]}\n"
	if odd {
		text += "  - cut.more.test:4444\n"
	}
	return world.WithCapture(text+"tls: {ca_dir: ca, extra_roots: [lab.pem]}\n"+
		"limits: {head_timeout: 5s, hello_timeout: 5s, dial_timeout: 2s, idle_timeout: 2s, dns_queries_per_second: 1048576, dns_name_bytes: 1073741824}\n", world.WayRedirect)
}

// TestSoak (LC-10) uses egressd in all ways at once, round after round: by every listener, what
// is allowed, denied, cut short at each byte of each handshake, left idle, answered
// by nobody, or cut by a policy. After each round, when all that was begun is over,
// there is no more of anything than after those that warmed it up: descriptors,
// goroutines, sockets, threads, files, memory. Each flow that was opened has its end in
// the log by then, and the log verifies at the end, which has begun many segments.
//
// In the short form what is left behind shows exactly, but for memory: that has not
// warmed up, and only the loss of some tens of kilobytes in each use would be seen. It
// is in the hour that 5 % count, twice: between rounds, and after minutes without any use at
// the end of the warm-up and at the end, when it depends no more on how much was going on (decision
// 38); and retention removes segments. That each use does what it should is for other tests to
// say: one in a hundred may come to nothing where the machine has no time for it.
func TestSoak(t *testing.T) {
	s := newSoak(t)
	var states []state
	var calm state
	was, may := &s.quiet, 16
	used := time.Duration(0)
	for n := 0; n < 2 || used < s.length || s.serial.Load() < s.total; n++ {
		began := time.Now()
		s.round(t)
		states = append(states, s.rest(t, was, may))
		used += time.Since(began)
		t.Logf("round %d: %v", n+1, &states[n])
		if n == s.warm() {
			warm := states[n]
			was, may = &warm, 8
			calm = s.calm(t)
		}
	}
	t.Logf("%d uses in %v, without the minutes of calm", s.serial.Load(), used.Round(time.Second))
	s.expectSameMemory(t, states)
	s.expectCalm(t, &calm)
	s.Stop(t)
	s.expectGoodLog(t)
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{least: 420, pace: time.Millisecond}
	if text := os.Getenv(soakVariable); text != "" {
		long, rate, slower := strings.Cut(text, "@")
		length, err := time.ParseDuration(long)
		uses, errRate := strconv.Atoi(firstSet(rate, "330"))
		if err := errors.Join(err, errRate); err != nil {
			t.Fatal(err)
		}
		s.length, s.lasts, s.pace = length, time.Minute, time.Second/time.Duration(uses)
		if !slower {
			s.total = int64(length.Hours() * 1e6)
		}
	}
	trace := 300 // ms
	if s.lasts > 0 {
		trace = 2000
	}
	world.Open(t).Capture(t, world.WayRedirect)
	d := world.NewDaemon(t, soakPolicy(false))
	d.SetAudit(t, fmt.Sprintf("durability: process, segment_bytes: 65536, retain: {segments: %d}", soakSegments))
	d.PutFile(t, "tmp/.keep", "")
	d.Traced = true
	d.Run(t, exec.Command("env", fmt.Sprintf("GODEBUG=schedtrace=%d,scheddetail=1,gctrace=1", trace), "TMPDIR="+filepath.Join(d.Dir, "tmp"),
		world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() {
		if d.Alive() {
			d.Kill()
		}
	})
	s.Daemon, s.ledger = d, ledger{dir: d.Log.Dir, read: map[string]int64{}, open: map[string]bool{}}
	s.soakTraffic = newSoakTraffic(t, d)
	s.quiet = stateOf(t, s.Daemon)
	t.Logf("before: %v", &s.quiet)
	return s
}

// warm is the last round that warms up.
func (s *soak) warm() int { return max(1, s.sixth()) - 1 }

func (s *soak) sixth() int { return int(s.length / time.Minute / 6) }

// round uses egressd for a while, and waits until all users are gone.
func (s *soak) round(t *testing.T) {
	t.Helper()
	begin, over := time.Now(), make(chan struct{})
	var watching, using sync.WaitGroup
	watching.Go(func() { s.reloadUntil(t, over) })
	watching.Go(func() { s.ledger.followUntil(t, over) })
	tick := time.NewTicker(s.pace)
	defer tick.Stop()
	var uses atomic.Int64
	const users = 8
	for range users {
		using.Go(func() {
			for uses.Add(1) <= int64(s.least) || time.Since(begin) < s.lasts {
				<-tick.C
				if use, err := s.use(); err != nil {
					t.Logf("%s: %v", use, err)
					s.failed.Add(1)
				}
			}
		})
	}
	using.Wait()
	t.Logf("%d uses at a time in %v", users, time.Since(begin).Round(time.Millisecond))
	s.lingering.Wait()
	close(over)
	watching.Wait()
	s.inspected.CloseIdleConnections()
}

// reloadUntil swaps two policies a few times in a second.
func (s *soak) reloadUntil(t *testing.T, over <-chan struct{}) {
	for odd := true; ; odd = !odd {
		text := strings.Replace(string(s.settings), soakPolicy(false), soakPolicy(odd), 1)
		if err := os.WriteFile(s.Config+".new", []byte(text), 0o600); err != nil {
			t.Error(err)
		}
		if err := os.Rename(s.Config+".new", s.Config); err != nil {
			t.Error(err)
		}
		s.Cmd.Process.Signal(syscall.SIGHUP)
		select {
		case <-time.After(300 * time.Millisecond):
		case <-over:
			return
		}
	}
}

// rest waits until what was begun is over, and returns what is left: no more than there was.
func (s *soak) rest(t *testing.T, was *state, may int) state {
	t.Helper()
	var now state
	atRest := func() bool {
		now = stateOf(t, s.Daemon)
		return s.Connections() == 0 && now.noMore(was, may) == ""
	}
	if !world.Eventually(2*world.Settling, atRest) {
		t.Errorf("%d connections, and too many %s: it was %v, and is %v", s.Connections(), now.noMore(was, may), was, &now)
	}
	over := func() bool { s.ledger.follow(t); return len(s.ledger.open) == 0 }
	if !world.Eventually(world.Settling, over) {
		t.Errorf("%d flows have no end in the log", len(s.ledger.open))
		clear(s.ledger.open)
	}
	return now
}

// calm returns what is left once nothing was asked of the daemon for so long that the runtime
// has collected twice of its own accord, which it does two minutes after the last time: what
// pools keep goes with the second. There is no calm in the short form.
func (s *soak) calm(t *testing.T) state {
	t.Helper()
	if s.length == 0 {
		return state{}
	}
	from, late := len(s.Trace.String()), time.Now().Add(10*time.Minute)
	for strings.Count(s.Trace.String()[from:], world.ForcedCollection) < 2 {
		if time.Sleep(time.Second); time.Now().After(late) {
			t.Fatal("the runtime has not collected twice in ten minutes")
		}
	}
	time.Sleep(30 * time.Second) // in which it gives back what it does not need any more
	now := stateOf(t, s.Daemon)
	t.Logf("calm: %v", &now)
	return now
}

// expectCalm has the memory of a daemon that nobody uses return to what it was after the
// warm-up.
func (s *soak) expectCalm(t *testing.T, was *state) {
	t.Helper()
	if s.length == 0 {
		return
	}
	is := s.calm(t)
	t.Logf("memory: %d KiB where nothing is done after the warm-up, %d KiB at the end", was.resident, is.resident)
	if is.resident > was.resident+was.resident/20 {
		t.Errorf("%d KiB of memory where nothing is done, %d were after the warm-up", is.resident, was.resident)
	}
}

// expectSameMemory compares the middle of the last rounds with that of the first ones after
// the warm-up: where the collector stands differs from one moment to the next.
func (s *soak) expectSameMemory(t *testing.T, states []state) {
	t.Helper()
	first, last := states[s.warm()], states[len(states)-1]
	if most := first.live + 8; s.length == 0 && last.live > most {
		t.Errorf("%d MiB are in use, %d were after the first round", last.live, first.live)
	}
	if s.length == 0 {
		return
	}
	middle := func(some []state) int {
		some = slices.SortedFunc(slices.Values(some), func(a, b state) int { return a.resident - b.resident })
		return some[len(some)/2].resident
	}
	some := max(1, s.sixth())
	was, is := middle(states[s.warm():s.warm()+some]), middle(states[len(states)-some:])
	t.Logf("memory: %d KiB after the warm-up, %d KiB at the end", was, is)
	if is > was+was/20 {
		t.Errorf("%d KiB of memory, %d were after the warm-up", is, was)
	}
}

// expectGoodLog has both verifiers read the log, and looks whether there was something
// of each kind.
func (s *soak) expectGoodLog(t *testing.T) {
	t.Helper()
	s.ledger.follow(t)
	if s.ledger.segments < 4 || len(s.ledger.open) > 0 {
		t.Errorf("%d segments, %d flows without an end", s.ledger.segments, len(s.ledger.open))
	}
	for _, outcome := range []string{"closed", "reset", "cut", "idle-timeout", "network-timeout", "network-refused", "client-left"} {
		if s.ledger.outcomes[outcome] == 0 {
			t.Errorf("no flow ended with %s: %v", outcome, s.ledger.outcomes)
		}
	}
	key := strings.TrimSpace(s.ExpectExit(t, 0, "log", "verify", "--print-key", "--config", s.Config))
	s.ExpectExit(t, 0, "log", "verify", s.Log.Dir, "--key", key)
	out, err := exec.Command("python3", world.Source("docs", "verify", "verify.py"), "--key", key, s.Log.Dir).CombinedOutput()
	if err != nil {
		t.Errorf("verify.py: %v: %s", err, out)
	}
	t.Logf("%d records in %d segments, ends %v, uses %v", s.ledger.records, s.ledger.segments, s.ledger.outcomes, s.used())
	if failed := s.failed.Load(); failed > s.serial.Load()/100 {
		t.Errorf("%d of %d uses came to nothing", failed, s.serial.Load())
	}
}
