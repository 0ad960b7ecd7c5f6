package egress

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"

	"github.com/egressd/egressd/record"
)

// A thinker is an evaluator that takes as long as the test wants, about what waits says.
type thinker struct {
	waits   func(*policy.Request) bool
	says    func(*policy.Request) policy.Decision
	thought chan struct{} // is sent to when it begins
	done    chan struct{} // until it is closed
}

func newThinker(waits func(*policy.Request) bool, says func(*policy.Request) policy.Decision) *thinker {
	return &thinker{waits: waits, says: says, thought: make(chan struct{}, 16), done: make(chan struct{})}
}

func (e *thinker) policy(t *testing.T) *policy.Policy {
	t.Helper()
	parsed, err := file.Parse("test.yaml", []byte("version: 1\ndefault: allow\nunsafe_allow: [\"127.0.0.1:*\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{Evaluators: []policy.Evaluator{opinion(func(r *policy.Request) policy.Decision {
		if e.waits(r) {
			e.thought <- struct{}{}
			<-e.done
		}
		return e.says(r)
	})}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func aboutTLS(r *policy.Request) bool { return r.TLS != nil }

// soon fails the test where do waits for something.
func soon(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s waited", what)
	}
}

// TestNothingElseOfAFlowWaitsForItsPolicy has a policy think about a flow, and does meanwhile what
// event loops and the operator do with flows.
func TestNothingElseOfAFlowWaitsForItsPolicy(t *testing.T) {
	e := newThinker(aboutTLS, allow)
	w := newWorld(t, e.policy(t))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:443"))
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "NarrowNow", func() {
		if wait, err := f.NarrowNow(hello); !wait || err != nil {
			t.Errorf("it said %v, %v", wait, err)
		}
	})
	narrowed := make(chan error, 1)
	go func() { narrowed <- f.Narrow(t.Context(), hello) }()
	<-e.thought
	soon(t, "Budget", func() { f.Budget() })
	soon(t, "WasCut", func() { f.WasCut() })
	soon(t, "Destination", func() { f.Destination() })
	soon(t, "OpenFlows", func() { w.Flows.Page(0, 10) })
	soon(t, "hostsOf", func() { w.Flows.hostsOf("default") })
	soon(t, "Close", func() { f.Close(End{Outcome: "client-left"}) })
	closes := w.records(t, record.KindClose)
	if len(closes) != 1 || closes[0].TLS == nil || closes[0].TLS.SNI != "allowed.test" {
		t.Errorf("the close record does not say what was claimed: %+v", closes)
	}
	close(e.done)
	refusalOf(t, <-narrowed, "")
	if n := len(w.records(t, record.KindClose)); n != 1 {
		t.Errorf("%d close records", n)
	}
}

// TestAPolicyThatComesWhileAnotherThinksCounts for what that one was asked.
func TestAPolicyThatComesWhileAnotherThinksCounts(t *testing.T) {
	e := newThinker(aboutTLS, allow)
	w := newWorld(t, e.policy(t))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:443"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	narrowed := make(chan error, 1)
	go func() { narrowed <- f.Narrow(t.Context(), hello) }()
	<-e.thought
	later := policy.New(opinion(func(r *policy.Request) policy.Decision {
		if r.TLS != nil {
			return deny(r)
		}
		return allow(r)
	}))
	set := make(chan error, 1)
	go func() { set <- w.SetPolicy(t.Context(), later, "stricter about TLS") }()
	soon(t, "SetPolicy", func() {
		if err := <-set; err != nil {
			t.Error(err)
		}
	})
	close(e.done)
	refusalOf(t, <-narrowed, policy.RuleDeny)
}

// TestALoopDoesNotWaitForThePolicyThatCameBeforeAConnect changes the policy after a flow was opened.
func TestALoopDoesNotWaitForThePolicyThatCameBeforeAConnect(t *testing.T) {
	for _, row := range []struct {
		name string
		says func(*policy.Request) policy.Decision
	}{{"and allows", allow}, {"and denies", deny}} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, policy.New(opinion(allow)))
			f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+origin(t)))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close(End{})
			e := newThinker(func(*policy.Request) bool { return true }, row.says)
			w.policy.Store(e.policy(t)) // as if SetPolicy had not reached the flow yet
			loop, err := relay.NewLoop()
			if err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			running.Go(func() { loop.Run() })
			defer running.Wait()
			defer loop.Close()
			connected := make(chan error, 1)
			loop.Post(func() {
				f.Connect(loop, func(fd int, err error) {
					if err == nil {
						loop.CloseFD(fd)
					}
					connected <- err
				})
			})
			<-e.thought
			turn := make(chan struct{})
			loop.Post(func() { close(turn) })
			soon(t, "the loop", func() { <-turn })
			close(e.done)
			err = <-connected
			var refusal *Refusal
			if denied := errors.As(err, &refusal); denied != (row.name == "and denies") {
				t.Errorf("it came to %v", err)
			}
		})
	}
}

// TestShutWaitsForWhatAGateHasUnderWay such as a connect that waits for the policy.
func TestShutWaitsForWhatAGateHasUnderWay(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	going := make(chan struct{})
	w.tasks.start(func() { <-going })
	left := make(chan struct{})
	go func() {
		w.Shut()
		w.CloseLeft()
		close(left)
	}()
	w.tasks.start(func() {}) // which may come while it is waited for
	select {
	case <-left:
		t.Error("it did not wait")
	case <-time.After(10 * time.Millisecond):
	}
	close(going)
	<-left
}

// TestALoopDoesNotWaitForTheLog to begin a segment, which takes syncs.
func TestALoopDoesNotWaitForTheLog(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	log, err := audit.Create(filepath.Join(t.TempDir(), "audit"), audit.Options{SegmentBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	w.config.Log = log
	f, wait, err := w.OpenNow(peer, ask(t, "127.0.0.1:443"))
	if wait || err != nil {
		t.Fatalf("the segment is empty, and it said %v, %v", wait, err)
	}
	if _, wait, _ := w.OpenNow(peer, ask(t, "127.0.0.1:443")); !wait {
		t.Error("an event loop would have begun a segment")
	}
	before := log.State().Written
	f.CloseNow(End{Outcome: "closed"})
	w.Shut()
	w.CloseLeft()
	if n := log.State().Written; n != before+1 {
		t.Errorf("%d records, want one more than %d", n, before)
	}
}

// TestALoopDoesNotWaitToRecordWhatANewerPolicyRefuses has the policy change while a flow is opened, and the log held up
// when it records that the flow has ended for that.
func TestALoopDoesNotWaitToRecordWhatANewerPolicyRefuses(t *testing.T) {
	w := newWorld(t, nil)
	held, goOn := make(chan struct{}), make(chan struct{})
	dir := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Create(dir, audit.Options{SegmentBytes: 1, Changed: func(err error) { close(held); <-goOn }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	if err := os.WriteFile(filepath.Join(dir, "00000002.log"), nil, 0o600); err != nil { // so that the next segment fails
		t.Fatal(err)
	}
	w.config.Log = log
	newer := policy.New(opinion(deny))
	w.policy.Store(policy.New(opinion(func(r *policy.Request) policy.Decision {
		w.policy.Store(newer)
		return allow(r)
	})))
	defer close(goOn)
	soon(t, "OpenNow", func() {
		_, wait, err := w.OpenNow(peer, ask(t, "127.0.0.1:443"))
		if wait {
			t.Error("it would wait")
		}
		refusalOf(t, err, policy.RuleDeny)
	})
	<-held // beside the loop
}

// canaryInName is a canary that is a name as well.
const canaryInName = "akiaq3egcanary77xz9klm"

// setCanary gives a world that canary.
func (w *world) setCanary(t *testing.T) {
	t.Helper()
	c, err := secret.NewCanaries([]secret.Canary{{Name: "key", Text: []byte(canaryInName)}})
	if err != nil {
		t.Fatal(err)
	}
	w.SetCanaries(c)
}

// TestNothingElseOfAFlowWaitsForTheRecordOfACanary holds up who records it, and does meanwhile what event
// loops do with the flow.
func TestNothingElseOfAFlowWaitsForTheRecordOfACanary(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.setCanary(t)
	found, goOn := make(chan struct{}), make(chan struct{})
	w.config.Alarm = func(Alarm) { close(found); <-goOn }
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:22"))
	if err != nil {
		t.Fatal(err)
	}
	searched := make(chan error, 1)
	go func() {
		_, err := f.Guard("first bytes").Pass([]byte("put " + canaryInName))
		searched <- err
	}()
	<-found
	soon(t, "Budget", func() { f.Budget() })
	soon(t, "WasCut", func() { f.WasCut() })
	soon(t, "CloseNow", func() { f.CloseNow(End{Outcome: "client-left"}) })
	close(goOn)
	refusalOf(t, <-searched, policy.Canary)
	if n := len(w.records(t, record.KindSignal)); n != 1 {
		t.Errorf("%d signals", n)
	}
}

// TestALoopDoesNotRecordWhatNarrowRefuses where that has a record of its own, which may wait for the log.
func TestALoopDoesNotRecordWhatNarrowRefuses(t *testing.T) {
	for says, row := range map[string]struct {
		named string
		tells policy.Verdict
		class policy.Class
		kind  record.Kind
	}{
		"a canary":   {canaryInName + ".test", policy.Allow, policy.Canary, record.KindSignal},
		"a question": {"allowed.test", policy.Ask, policy.AskPending, record.KindOpen},
	} {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
				d := allow(r)
				if r.TLS != nil {
					d.Verdict = row.tells
				}
				return d
			})))
			w.setCanary(t)
			w.Approvals.Open(true, time.Minute)
			f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:443"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close(End{})
			claim := func(r *policy.Request) { r.TLS = &policy.ClientHello{ServerName: row.named} }
			before := len(w.records(t, row.kind))
			if wait, err := f.NarrowNow(claim); !wait || err != nil {
				t.Errorf("an event loop was told %v, %v", wait, err)
			}
			if n := len(w.records(t, row.kind)); n != before {
				t.Errorf("%d records were written on an event loop", n-before)
			}
			refusalOf(t, f.Narrow(t.Context(), claim), row.class)
			if n := len(w.records(t, row.kind)); n != before+1 {
				t.Errorf("%d records were written", n-before)
			}
		})
	}
}
