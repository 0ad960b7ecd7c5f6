package egress

import (
	"testing"
	"time"

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
// others and the operator do with flows.
func TestNothingElseOfAFlowWaitsForItsPolicy(t *testing.T) {
	e := newThinker(aboutTLS, allow)
	w := newWorld(t, e.policy(t))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:443"))
	if err != nil {
		t.Fatal(err)
	}
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

// TestNothingElseOfAFlowWaitsForTheRecordOfACanary holds up who records it, and does meanwhile what others
// do with the flow.
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
	soon(t, "Close", func() { f.Close(End{Outcome: "client-left"}) })
	close(goOn)
	refusalOf(t, <-searched, policy.Canary)
	if n := len(w.records(t, record.KindSignal)); n != 1 {
		t.Errorf("%d signals", n)
	}
}
