package egress

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// A postal resolver answers from another goroutine, when it is told to.
type postal struct {
	mu    sync.Mutex
	asked []string
	seen  func(name string) // called when it is asked
	then  chan func(addrs []netip.Addr, err error)
}

func (*postal) Cached(string) ([]netip.Addr, []string, bool) { return nil, nil, false }

func (*postal) Lookup(context.Context, string) ([]netip.Addr, []string, error) {
	return nil, nil, errors.New("it was to be asked")
}

func (p *postal) Ask(name string, then func([]netip.Addr, []string, error)) {
	p.mu.Lock()
	p.asked = append(p.asked, name)
	p.mu.Unlock()
	if p.seen != nil {
		p.seen(name)
	}
	p.then <- func(addrs []netip.Addr, err error) { then(addrs, nil, err) }
}

func (p *postal) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

func newPostal(w *world) *postal {
	p := &postal{then: make(chan func([]netip.Addr, error), 16)}
	w.Gate.config.Resolver, w.Names.async = p, p
	return p
}

// A said is what came of an inquiry.
type said struct {
	a   Answer
	err error
}

// later has questions asked in one round, and returns where their answers come.
func (w *world) later(t *testing.T, names ...string) chan said {
	t.Helper()
	answers := make(chan said, len(names))
	round := w.Names.NewBatch()
	var all []*Inquiry
	for _, name := range names {
		i, err := round.Inquire(peer, questionOf(name, "A"))
		if err != nil {
			t.Fatal(err)
		}
		if _, wait, err := i.AnswerNow(); !wait || err != nil {
			t.Fatal(wait, err)
		}
		if err := i.Prepare(); err != nil {
			t.Fatal(err)
		}
		all = append(all, i)
	}
	round.Write()
	for _, i := range all {
		if !i.Resolve(func(a Answer, err error) { answers <- said{a, err} }) {
			t.Fatal("it cannot be answered later")
		}
	}
	round.Reset()
	return answers
}

var somewhere = []netip.Addr{netip.MustParseAddr("93.184.216.34")}

// TestNothingIsAskedLaterBeforeItIsDurable has the log keep its sync to itself for a while.
func TestNothingIsAskedLaterBeforeItIsDurable(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	p := newPostal(w)
	log := w.Gate.config.Log
	p.seen = func(name string) {
		r := w.records(t, record.KindDNS)
		if len(r) != 2 || r[0].DNS.Name != "a.test" || r[1].DNS.Name != "b.test" {
			t.Errorf("when %s is asked for the log has %+v", name, r)
		}
		for _, one := range r {
			if known, err := log.Settled(one.Seq); !known || err != nil {
				t.Errorf("when %s is asked for, record %d is not durable: %v", name, one.Seq, err)
			}
		}
	}
	answers := w.later(t, "a.test", "b.test")
	for range 2 {
		(<-p.then)(somewhere, nil)
	}
	for range 2 {
		if s := <-answers; s.err != nil || len(s.a.Addrs) != 1 {
			t.Errorf("%+v", s)
		}
	}
	if n := len(w.records(t, record.KindDNS)); n != 2 {
		t.Errorf("%d records of two questions", n)
	}
	if n := w.accounts.of("default").names.Waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// TestWhatIsNotRecordedIsNotAskedLater closes the log before the round is written.
func TestWhatIsNotRecordedIsNotAskedLater(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	p := newPostal(w)
	w.Gate.config.Log.Close()
	s := <-w.later(t, "a.test")
	refusalOf(t, s.err, policy.AuditUnavailable)
	if p.count() != 0 {
		t.Errorf("asked for %v", p.asked)
	}
	if n := w.accounts.of("default").names.Waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// TestAnAnswerThatComesLaterIsDecided has all kinds of things happen meanwhile.
func TestAnAnswerThatComesLaterIsDecided(t *testing.T) {
	failure := errors.New("no such name")
	for says, row := range map[string]struct {
		meanwhile func(*testing.T, *world)
		err       error
		wants     policy.Class
	}{
		"nothing": {func(*testing.T, *world) {}, nil, ""},
		"a policy that denies": {func(t *testing.T, w *world) {
			if err := w.SetPolicy(t.Context(), policy.New(opinion(deny)), "meanwhile"); err != nil {
				t.Error(err)
			}
		}, nil, policy.RuleDeny},
		"a policy that takes its time": {func(t *testing.T, w *world) {
			if err := w.SetPolicy(t.Context(), policy.New(opinion(deny)).WithShadow(policy.New(opinion(allow))), "meanwhile"); err != nil {
				t.Error(err)
			}
		}, nil, policy.RuleDeny},
		"the end":   {func(_ *testing.T, w *world) { w.Shut() }, nil, policy.PolicyNotLoaded},
		"a failure": {func(*testing.T, *world) {}, failure, policy.NetworkDNS},
	} {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t, policy.New(opinion(allow)))
			p := newPostal(w)
			answers := w.later(t, "a.test")
			answer := <-p.then
			row.meanwhile(t, w)
			answer(somewhere, row.err)
			s := <-answers
			switch {
			case row.wants == "" && (s.err != nil || len(s.a.Addrs) != 1):
				t.Errorf("%+v", s)
			case row.wants != "":
				refusalOf(t, s.err, row.wants)
				if s.a.Addrs != nil {
					t.Errorf("beside the refusal came %v", s.a)
				}
			}
			if row.err != nil && !errors.Is(s.err, row.err) {
				t.Errorf("%v does not wrap what the resolver said", s.err)
			}
		})
	}
}

// TestAPanicWhileALateAnswerIsDecidedIsAnError has a policy that cannot bear addresses.
func TestAPanicWhileALateAnswerIsDecidedIsAnError(t *testing.T) {
	w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
		if len(r.Destination.Addrs) > 0 {
			panic("the test says so")
		}
		return allow(r)
	})))
	p := newPostal(w)
	answers := w.later(t, "a.test")
	(<-p.then)(somewhere, nil)
	s := <-answers
	refusalOf(t, s.err, policy.PolicyError)
	if s.a.Addrs != nil {
		t.Errorf("%+v", s)
	}
}

// TestALateAnswerHasItsBudgets asks for more at a time than a sandbox may.
func TestALateAnswerHasItsBudgets(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	newPostal(w)
	round := w.Names.NewBatch()
	for n := range 128 + 1 {
		i, err := round.Inquire(peer, questionOf("a.test", "A"))
		if err != nil {
			t.Fatal(err)
		}
		if _, wait, err := i.AnswerNow(); !wait || err != nil {
			t.Fatal(wait, err)
		}
		if err := i.Prepare(); n < 128 && err != nil {
			t.Fatal(n, err)
		} else if n == 128 {
			refusalOf(t, err, policy.DNSBudget)
		}
	}
	if n := w.accounts.of("default").names.Waiting(); n != 128 {
		t.Errorf("%d wait", n)
	}
}

// TestWhoHasLessTimeIsNotAnsweredLater has a gate that waits for a second at most.
func TestWhoHasLessTimeIsNotAnsweredLater(t *testing.T) {
	for patience, want := range map[time.Duration]bool{0: true, asyncMost: true, time.Second: false} {
		g := New(Config{Resolver: &postal{}, DialTimeout: patience})
		if got := g.Names.async != nil; got != want {
			t.Errorf("with a patience of %v: %v", patience, got)
		}
	}
}

// TestWhoHearsNameServersWaitsForNoPolicy has a policy come into force that takes its time,
// while a name server is asked.
func TestWhoHearsNameServersWaitsForNoPolicy(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	p := newPostal(w)
	answers := w.later(t, "a.test")
	answer := <-p.then
	goOn := make(chan struct{})
	slow := opinion(func(r *policy.Request) policy.Decision {
		<-goOn
		return allow(r)
	})
	if err := w.SetPolicy(t.Context(), policy.New(slow).WithShadow(policy.New(opinion(allow))), "meanwhile"); err != nil {
		t.Fatal(err)
	}
	heard := make(chan struct{})
	go func() {
		answer(somewhere, nil)
		close(heard)
	}()
	select {
	case <-heard:
	case <-time.After(10 * time.Second):
		t.Error("who hears name servers waits until the policy has decided")
	}
	close(goOn)
	if s := <-answers; s.err != nil || len(s.a.Addrs) != 1 {
		t.Errorf("%+v", s)
	}
}

// A turning resolver has another policy come into force when it is looked at.
type turning struct {
	*postal
	turn func()
}

func (r *turning) Cached(name string) ([]netip.Addr, []string, bool) {
	if turn := r.turn; turn != nil {
		r.turn = nil
		turn()
	}
	return r.postal.Cached(name)
}

// TestAPolicyThatTakesItsTimeIsNotAskedLater has a shadow beside the policy, from the
// beginning or from the moment at which the policy was about to decide.
func TestAPolicyThatTakesItsTimeIsNotAskedLater(t *testing.T) {
	slow := policy.New(opinion(allow)).WithShadow(policy.New(opinion(deny)))
	for says, first := range map[string]*policy.Policy{"from the beginning": slow, "as it decides": policy.New(opinion(allow))} {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t, first)
			p := newPostal(w)
			w.Gate.config.Resolver = &turning{p, func() {
				if err := w.SetPolicy(t.Context(), slow, "meanwhile"); err != nil {
					t.Error(err)
				}
			}}
			round := w.Names.NewBatch()
			i, err := round.Inquire(peer, questionOf("a.test", "A"))
			if err != nil {
				t.Fatal(err)
			}
			if _, wait, err := i.AnswerNow(); !wait || err != nil {
				t.Fatal(wait, err)
			}
			if err := i.Prepare(); err != nil {
				t.Fatal(err)
			}
			round.Write()
			if i.Resolve(func(Answer, error) { t.Error("it was answered") }) || p.count() > 0 {
				t.Errorf("it is answered later, and asked for was %q", p.asked)
			}
			if n := w.accounts.of("default").names.Waiting() + len(w.records(t, record.KindDNS)); n != 0 {
				t.Errorf("%d waiting or recorded", n)
			}
		})
	}
}

// TestWhatIsNotDurableIsNotAskedLater has the log lose its file before the round is written,
// so that no sync of it can succeed.
func TestWhatIsNotDurableIsNotAskedLater(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	p := newPostal(w)
	if err := os.Remove(filepath.Join(w.dir, "00000001.log")); err != nil {
		t.Fatal(err)
	}
	s := <-w.later(t, "a.test")
	refusalOf(t, s.err, policy.AuditUnavailable)
	if p.count() != 0 {
		t.Errorf("asked for %v", p.asked)
	}
	if n := w.accounts.of("default").names.Waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// TestTheLogWaitsForNoNameServer has a resolver that takes its time to send a question, while
// another record is to be made durable.
func TestTheLogWaitsForNoNameServer(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	p := newPostal(w)
	asked, sent := make(chan struct{}), make(chan struct{})
	p.seen = func(string) {
		close(asked)
		<-sent
	}
	var answers chan said
	var asking sync.WaitGroup
	asking.Go(func() { answers = w.later(t, "a.test") })
	<-asked
	log := w.Gate.config.Log
	seq, err := log.Append([]byte(`{"kind":"test"}`))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := log.Wait(ctx, seq); err != nil {
		t.Errorf("while a question is being sent, the log says %v", err)
	}
	close(sent)
	asking.Wait()
	(<-p.then)(somewhere, nil)
	if s := <-answers; s.err != nil {
		t.Error(s.err)
	}
}
