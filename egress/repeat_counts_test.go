package egress

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// timesOf sums what the records of denials stand for, by what they are about.
func (w *world) timesOf(t *testing.T) map[string]int64 {
	t.Helper()
	sum := map[string]int64{}
	for _, r := range w.records(t, "") {
		if r.Decision == nil || r.Decision.Action != "deny" {
			continue
		}
		what := string(r.Kind) + " " + r.Via
		if r.DNS != nil {
			what += " " + r.DNS.Name
		}
		if r.Dst != nil {
			what += " " + r.Dst.Host
		}
		sum[what] += r.Times()
	}
	return sum
}

// TestAFloodIsCountedExactly has many programs be denied in every way at once,
// while the policy changes again and again.
func TestAFloodIsCountedExactly(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	w.config.NameLimits = names.Limits{PerSecond: 1e6}
	const workers, each = 20, 1_000
	ways := []func(i int) error{
		func(i int) error {
			_, err := w.Open(context.Background(), peerAt(i), ask(t, "evil.test:443"))
			return err
		},
		func(i int) error {
			_, err := w.Open(context.Background(), peerAt(i), ask(t, "evil.test:80"))
			return err
		},
		func(i int) error {
			r := ask(t, "evil.test:80")
			r.Via, r.HTTP = policy.ViaHTTP, &policy.HTTPRequest{Method: "GET", Path: "/"}
			_, err := w.Open(context.Background(), peerAt(i), r)
			return err
		},
		func(i int) error {
			r := ask(t, fmt.Sprintf("s%d.test:1080", i%3))
			r.Via = policy.ViaSOCKS5
			_, err := w.Open(context.Background(), peerAt(i), r)
			return err
		},
		func(i int) error {
			return w.Refuse(peerAt(i), policy.ViaHTTP, []byte("GET"), policy.MalformedRequest, "bad")
		},
		func(i int) error {
			return w.Deny(peerAt(i), ask(t, "evil.test:22"), policy.NotTLS, "the way in says no")
		},
		func(i int) error {
			_, err := w.Resolve(context.Background(), peerAt(i), policy.DNSQuery{Name: "evil.test", Type: "A"})
			return err
		},
	}
	var ids sync.Map
	var denied, changed sync.WaitGroup
	done := make(chan struct{})
	changed.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			if err := w.SetPolicy(context.Background(), policy.New(opinion(deny)), fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
		}
	})
	for worker := range workers {
		denied.Go(func() {
			for i := range each {
				err := ways[(worker+i)%len(ways)](i)
				refusal, ok := err.(*Refusal)
				if !ok {
					t.Errorf("way %d: %v", (worker+i)%len(ways), err)
					return
				}
				ids.Store(refusal.ID.String(), true)
			}
		})
	}
	denied.Wait()
	close(done)
	changed.Wait()
	w.Records.Settle()
	sum, total := w.timesOf(t), int64(0)
	for _, n := range sum {
		total += n
	}
	if total != workers*each {
		t.Errorf("the records stand for %d denials of %d: %v", total, workers*each, sum)
	}
	all := w.records(t, "")
	known := map[string]bool{}
	for _, r := range all {
		known[r.Flow] = true
	}
	for id := range ids.Range {
		if !known[id.(string)] {
			t.Fatalf("the reply %s is in no record", id)
		}
	}
	if len(all) > workers*each/4 {
		t.Errorf("%d records of %d denials", len(all), workers*each)
	}
}

// peerAt is the peer of one connection of many.
func peerAt(i int) sandbox.Peer {
	return sandbox.Peer{Addr: netip.AddrPortFrom(peer.Addr.Addr(), uint16(1024+i%60_000)), Process: &policy.Process{PID: i, Exe: "/usr/bin/curl", Argv: []string{"curl", fmt.Sprint(i)}}}
}

// TestWhatDiffersIsNotSummed denies as often what differs in something that counts.
func TestWhatDiffersIsNotSummed(t *testing.T) {
	requests := map[string]func(i int) (sandbox.Peer, policy.Request){
		"host": func(i int) (sandbox.Peer, policy.Request) { return peer, ask(t, fmt.Sprintf("h%d.test:443", i)) },
		"port": func(i int) (sandbox.Peer, policy.Request) { return peer, ask(t, fmt.Sprintf("evil.test:%d", i+1)) },
		"program": func(i int) (sandbox.Peer, policy.Request) {
			p := peerAt(i)
			p.Process.Exe = fmt.Sprint("/bin/", i)
			return p, ask(t, "evil.test:443")
		},
		"machine": func(i int) (sandbox.Peer, policy.Request) {
			return sandbox.Peer{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 99)}, ask(t, "evil.test:443")
		},
		"path": func(i int) (sandbox.Peer, policy.Request) {
			r := ask(t, "evil.test:80")
			r.HTTP = &policy.HTTPRequest{Method: "GET", Path: fmt.Sprint("/", i)}
			return peer, r
		},
	}
	for _, what := range slices.Sorted(maps.Keys(requests)) {
		w := newWorld(t, policy.New(opinion(deny)))
		for i := range 100 {
			p, r := requests[what](i)
			if _, err := w.Open(t.Context(), p, r); err == nil {
				t.Fatal("was not denied")
			}
		}
		w.Records.Settle()
		records := append(w.records(t, record.KindOpen), w.records(t, record.KindRequest)...)
		if len(records) != 100 {
			t.Errorf("%s: %d records of 100 denials that differ", what, len(records))
		}
	}
}

// TestWhatPassesIsNeverSummed opens the same flow many times.
func TestWhatPassesIsNeverSummed(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	for range 200 {
		f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:443"))
		if err != nil {
			t.Fatal(err)
		}
		f.Close(End{Outcome: "closed"})
	}
	if n := len(w.records(t, record.KindOpen)); n != 200 {
		t.Errorf("%d records of 200 flows", n)
	}
}

// TestKindsBeyondCountingAreCounted denies more kinds than are told apart,
// twelve times each.
func TestKindsBeyondCountingAreCounted(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	for range repeatsFrom + 2 {
		for i := range repeatsMost + 50 {
			if _, err := w.Open(t.Context(), peer, ask(t, fmt.Sprintf("h%d.test:443", i))); err == nil {
				t.Fatal("was not denied")
			}
		}
	}
	if n := len(w.accounts.of("default").repeats.kinds); n > repeatsMost+sumsMost+1 {
		t.Errorf("%d kinds are kept", n)
	}
	w.Records.Settle()
	total := int64(0)
	for _, n := range w.timesOf(t) {
		total += n
	}
	if want := int64(repeatsFrom+2) * (repeatsMost + 50); total != want {
		t.Errorf("the records stand for %d denials, want %d", total, want)
	}
}

// TestASumIsWrittenWhenItsSecondIsOver waits for it, and for nothing to be left.
func TestASumIsWrittenWhenItsSecondIsOver(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	var last *Refusal
	for range 50 {
		_, err := w.Open(t.Context(), peer, ask(t, "evil.test:443"))
		last = refusalOf(t, err, policy.RuleDeny)
	}
	s := &w.accounts.of("default").repeats
	left := func() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.kinds) }
	for left() > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	records := w.records(t, record.KindOpen)
	total := int64(0)
	for _, r := range records {
		total += r.Times()
	}
	if total != 50 || records[len(records)-1].Flow != last.ID.String() && len(records) < 50 {
		t.Errorf("%d records stand for %d denials", len(records), total)
	}
}

// TestSumsAreWrittenTogether holds who is denied meanwhile up for one write, however many sums there are. The log begins
// a segment with each write.
func TestSumsAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which no second passes
		w := newWorldOf(t, policy.New(opinion(deny)), audit.Options{SegmentBytes: 1}, nil)
		for range repeatsFrom + 2 {
			for _, host := range []string{"one.test:443", "two.test:443", "three.test:443"} {
				if _, err := w.Open(t.Context(), peer, ask(t, host)); err == nil {
					t.Fatal("was not denied")
				}
			}
		}
		segments := func() int {
			all, err := audit.Segments(w.dir)
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		written, before := w.config.Log.State().Written, segments()
		w.Records.Settle()
		if sums, writes := w.config.Log.State().Written-written, segments()-before; sums != 3 || writes != 1 {
			t.Errorf("%d sums came in %d writes", sums, writes)
		}
	})
}

// TestWhatCannotBeWrittenIsKept loses the log between a denial and the sum.
func TestWhatCannotBeWrittenIsKept(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	for range repeatsFrom + 5 {
		w.Open(t.Context(), peer, ask(t, "evil.test:443"))
	}
	w.config.Log.Close()
	w.Records.Settle()
	more := int64(0)
	for _, k := range w.accounts.of("default").repeats.kinds {
		more += k.more
		k.began -= time.Minute // and so its second is over
	}
	if more == 0 {
		t.Error("what could not be written was forgotten")
	}
	_, err := w.Open(t.Context(), peer, ask(t, "evil.test:443"))
	refusalOf(t, err, policy.AuditUnavailable)
}

// TestASumHidesNoCanary sends one canary until its refusals are summed, and then
// another one, in what a record does not hold.
func TestASumHidesNoCanary(t *testing.T) {
	first, second := "AKIAQ3EGCANARY77xZ9kLm", "ghp_4bD8sXwq0PmzT2vLrY6u"
	c, err := secret.NewCanaries([]secret.Canary{{Name: "first", Text: []byte(first)}, {Name: "second", Text: []byte(second)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, refuse := range []func(w *world, text string){
		func(w *world, text string) {
			r := ask(t, "allowed.test:80")
			r.HTTP = &policy.HTTPRequest{Method: "GET", Path: "/", Query: text}
			_, err := w.Open(t.Context(), peer, r)
			refusalOf(t, err, policy.Canary)
		},
		func(w *world, text string) {
			w.Refuse(peer, policy.ViaHTTP, []byte("GET "+text), policy.MalformedRequest, "bad")
		},
	} {
		w := newWorld(t, policy.New(opinion(allow)))
		var alarms []Alarm
		w.config.Alarm = func(a Alarm) { alarms = append(alarms, a) }
		w.SetCanaries(c)
		for range 3 * repeatsFrom {
			refuse(w, first)
		}
		refuse(w, second)
		w.Records.Settle()
		known := map[string]bool{}
		for _, r := range w.records(t, "") {
			if r.Kind != record.KindSignal {
				known[r.Flow] = true
			}
		}
		named := map[string]int{}
		for _, r := range w.records(t, record.KindSignal) {
			named[r.Signal.Name]++
			if !known[r.Flow] {
				t.Errorf("the signal of %s is about a flow that is in no record", r.Signal.Name)
			}
		}
		if named["second"] != 1 || named["first"] == 0 {
			t.Errorf("signals: %v", named)
		}
		if len(alarms) == 0 || alarms[len(alarms)-1].Canary != "second" {
			t.Errorf("alarms: %+v", alarms)
		}
	}
}

// TestNothingIsCountedOnceTheGateIsShut denies when the last sum may be written.
func TestNothingIsCountedOnceTheGateIsShut(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	w.Shut()
	w.Records.Settle()
	for range 5 * repeatsFrom {
		w.Open(t.Context(), peer, ask(t, "evil.test:443"))
	}
	w.config.Log.Close()
	if n := len(w.records(t, record.KindOpen)); n != 5*repeatsFrom {
		t.Errorf("%d records of %d denials", n, 5*repeatsFrom)
	}
}

// TestHowManyDenialsHaveRecords: ten of a kind in a second, or one where they are a crowd.
func TestHowManyDenialsHaveRecords(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	for want, r := range map[int]recordOf{repeatsFrom: {kind: record.KindOpen}, 1: {kind: record.KindOpen, flood: true}} {
		var s repeatCounts
		got := 0
		for range 2 * repeatsFrom {
			f := w.newFlow(peer, ask(t, "a.test:443"))
			key, _, one := s.count(f, &r)
			if one {
				got++
				s.wrote(key, f.id)
			}
			for _, k := range s.kinds {
				k.began = time.Hour // so that the second is not over, however long this takes
			}
		}
		if got != want {
			t.Errorf("%d of %d denials have records of their own, want %d", got, 2*repeatsFrom, want)
		}
		s.timer.Stop()
	}
}
