package egress

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// A frugal evaluator looks at usage.
type frugal func(policy.Usage) bool

func (f frugal) Evaluate(_ context.Context, r *policy.Request) (policy.Decision, error) {
	if r.Usage == nil {
		return policy.Decision{}, errors.New("nobody has counted")
	}
	if !f(*r.Usage) {
		return deny(r), nil
	}
	return allow(r), nil
}

func (frugal) ReadsUsage() bool { return true }

// TestAWindowCountsTheLastMinute compares it with a list of everything that happened.
func TestAWindowCountsTheLastMinute(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var w lastMinute
	var at []int64
	now := int64(0)
	for range 20_000 {
		now += []int64{0, 0, 0, 1, 1, 2, 30, 60, 61, 200}[random.IntN(10)]
		second := w.advance(now)
		w.add(second, flowsDenied, 1)
		at = append(at, second)
		if random.IntN(4) == 0 { // what was counted at some time may be taken back
			w.add(second, flowsDenied, -1)
			at = at[:len(at)-1]
		}
		want := int64(0)
		for i := len(at) - 1; i >= 0 && now-at[i] < windowSeconds; i-- {
			want++
		}
		if w.sum[flowsDenied] != want {
			t.Fatalf("at second %d: %d, want %d", now, w.sum[flowsDenied], want)
		}
	}
	if earlier := w.advance(now - 5); earlier != now {
		t.Errorf("time went back to %d", earlier)
	}
}

func TestWhatIsTakenBackLateIsNotMissedTwice(t *testing.T) {
	var s account
	p, _, _, _ := s.charge(3*time.Second, true, 10)
	s.denied(70 * time.Second) // by now the flow has left the window
	s.refund(p)
	if u := s.usage(); u.FlowsMinute != 0 || u.RequestsMinute != 0 || u.FlowsOpen != 0 || u.DeniedMinute != 1 {
		t.Errorf("%+v", u)
	}
}

// TestOfManyAtOnceNoMoreThanMayPass opens flows side by side under rules about what
// is open and what was opened lately.
func TestOfManyAtOnceNoMoreThanMayPass(t *testing.T) {
	for name, few := range map[string]frugal{
		"open":        func(u policy.Usage) bool { return u.FlowsOpen < 5 },
		"in a minute": func(u policy.Usage) bool { return u.FlowsMinute < 5 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, policy.New(few))
			w.config.FlowsPerSandbox = 1000
			var all sync.WaitGroup
			flows := make(chan *Flow, 40)
			for range cap(flows) {
				all.Go(func() {
					if f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:8443")); err == nil {
						flows <- f
					}
				})
			}
			all.Wait()
			if len(flows) == 0 || len(flows) > 5 {
				t.Errorf("%d flows were let through", len(flows))
			}
			for len(flows) > 0 {
				f := <-flows
				if err := f.Narrow(t.Context(), func(r *policy.Request) { r.Protocol = policy.ProtocolOpaque }); err != nil {
					t.Errorf("one that was let through is refused when more is known of it: %v", err)
				}
				f.Close(End{Outcome: "closed"})
			}
		})
	}
}

func TestUsageIsWhatTheSandboxHasUsed(t *testing.T) {
	var seen policy.Usage
	w := newWorld(t, policy.New(frugal(func(u policy.Usage) bool {
		seen = u
		return u.DeniedMinute < 2 && u.BytesUp < 1000
	})))
	open := func(r policy.Request) *Flow {
		t.Helper()
		f, err := w.Open(t.Context(), peer, r)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	tunnel := open(ask(t, "93.184.216.34:8443"))
	if seen != (policy.Usage{}) {
		t.Errorf("the first flow sees %+v", seen)
	}
	request := ask(t, "93.184.216.34:80")
	request.Via, request.HTTP = policy.ViaHTTP, &policy.HTTPRequest{Method: "GET", Path: "/"}
	open(request).Close(End{Outcome: "closed"})
	tunnel.Meter().Up.Add(10)
	tunnel.Meter().Down.Add(20)
	w.Refuse(peer, policy.ViaConnect, nil, policy.MalformedRequest, "test")
	open(ask(t, "93.184.216.34:8443")).Close(End{Outcome: "closed"})
	if want := (policy.Usage{FlowsOpen: 1, FlowsMinute: 2, RequestsMinute: 1, DeniedMinute: 1, BytesUp: 10, BytesDown: 20}); seen != want {
		t.Errorf("saw %+v, want %+v", seen, want)
	}
	tunnel.Meter().Up.Add(990)
	_, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:8443"))
	refusalOf(t, err, policy.RuleDeny)
	_, err = w.Open(t.Context(), peer, ask(t, "93.184.216.34:8443"))
	refusalOf(t, err, policy.RuleDeny)
	if seen.DeniedMinute != 2 || seen.FlowsOpen != 1 || seen.FlowsMinute != 3 {
		t.Errorf("after a refusal it saw %+v", seen)
	}
}

// TestUsageReachesOpenFlowsWithThePolicy: use alone cuts nothing, a reload does.
func TestUsageReachesOpenFlowsWithThePolicy(t *testing.T) {
	few := frugal(func(u policy.Usage) bool { return u.BytesUp < 100 && u.FlowsOpen == 0 && u.FlowsMinute == 0 })
	w := newWorld(t, policy.New(few))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+origin(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	told := make(chan struct{})
	f.OnCut(func() { close(told) })
	if err := w.SetPolicy(t.Context(), policy.New(few), "again"); err != nil || f.WasCut() {
		t.Fatalf("%v; a flow counts itself: cut %v", err, f.WasCut())
	}
	f.Meter().Up.Add(100)
	conn, err := f.Dial(t.Context())
	if err != nil {
		t.Fatalf("the policy that decided is asked again: %v", err)
	}
	if err := w.SetPolicy(t.Context(), policy.New(few), "again"); err != nil {
		t.Fatal(err)
	}
	<-told
	io.Copy(io.Discard, conn)
}

func TestAPolicyThatDoesNotLookAtUsageIsGivenNone(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.Usage != nil {
			t.Errorf("given %+v", r.Usage)
		}
		return allow(r)
	})))
	f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:8443"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close(End{})
}

// TestUsageIsNotKept: what was counted for a flow does not stay with it once it stands.
func TestUsageIsNotKept(t *testing.T) {
	w := newWorld(t, policy.New(frugal(func(policy.Usage) bool { return true })))
	f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:8443"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	if err := f.Narrow(t.Context(), func(r *policy.Request) { r.Protocol = policy.ProtocolOpaque }); err != nil {
		t.Fatal(err)
	}
	if used := f.request.Usage; used != nil {
		t.Errorf("%+v", used)
	}
}

func budget(n int64) opinion {
	return func(r *policy.Request) policy.Decision {
		d := allow(r)
		d.Spend(n, "test", policy.User)
		return d
	}
}

func TestAnotherBudgetIsToldAndNoCut(t *testing.T) {
	w := newWorld(t, policy.New(budget(100)))
	f, err := w.Open(t.Context(), peer, ask(t, "93.184.216.34:8443"))
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan int64, 3)
	f.OnChange(func() { told <- f.Budget() })
	for _, n := range []int64{10, 10, 0} {
		if err := w.SetPolicy(t.Context(), policy.New(budget(n)), "another"); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := <-told, <-told; a != 10 || b != 0 || len(told) > 0 || f.WasCut() {
		t.Errorf("told %d, then %d, and %d more; cut %v", a, b, len(told), f.WasCut())
	}
	if err := w.SetPolicy(t.Context(), policy.New(budget(7)), "another"); err != nil {
		t.Fatal(err)
	}
	if r := f.Exceeded(); r.Decision.Class != policy.ByteBudget || r.Decision.Rule != "test" {
		t.Errorf("refused as %+v", r.Decision)
	}
	if _, err := f.Dial(t.Context()); err == nil {
		t.Error("a flow over its budget may dial")
	}
	f.Close(End{Up: 7, Outcome: record.Outcome(policy.ByteBudget)})
	end := w.records(t, record.KindClose)[0]
	if end.Decision.Action != "deny" || end.Decision.Class != "byte-budget" || end.Decision.Reason != "rule test lets at most 7 bytes of it go up" {
		t.Errorf("recorded %+v", end.Decision)
	}
}

// TestARequestThatAnnouncesTooMuchIsRefused before anything is dialled, and its
// record says so.
func TestARequestThatAnnouncesTooMuchIsRefused(t *testing.T) {
	w := newWorld(t, policy.New(budget(10)))
	for size, passes := range map[int64]bool{0: true, 10: true, -1: true, 11: false} {
		r := ask(t, "93.184.216.34:80")
		r.Via, r.HTTP = policy.ViaHTTP, &policy.HTTPRequest{Method: "POST", Path: "/", BodySize: size}
		f, err := w.Open(t.Context(), peer, r)
		if !passes {
			refusal := refusalOf(t, err, policy.ByteBudget)
			if len(refusal.Decision.AllowedIf) != 1 {
				t.Errorf("%+v", refusal.Decision)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		f.Close(End{})
	}
	denied := 0
	for _, r := range w.records(t, record.KindRequest) {
		if r.Decision.Action == "deny" && r.Decision.Class == "byte-budget" {
			denied++
		}
	}
	if denied != 1 {
		t.Errorf("%d refusals are recorded", denied)
	}
}

func TestAMarkIsRecorded(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow), opinion(func(r *policy.Request) policy.Decision {
		d := allow(r)
		d.Log = r.Destination.Port == 8443
		return d
	})))
	w.zone.addrs["a.test"] = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	for _, to := range []string{"a.test:8443", "a.test:443"} {
		f, err := w.Open(t.Context(), peer, ask(t, to))
		if err != nil {
			t.Fatal(err)
		}
		f.Close(End{})
	}
	for _, r := range append(w.records(t, record.KindOpen), w.records(t, record.KindClose)...) {
		if r.Decision.Log != (r.Dst.Port == 8443) {
			t.Errorf("port %d: marked %v", r.Dst.Port, r.Decision.Log)
		}
	}
}
