package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

func questionOf(name, kind string) policy.DNSQuery { return policy.DNSQuery{Name: name, Type: kind} }

func (w *world) resolve(t *testing.T, name, kind string) (Answer, error) {
	t.Helper()
	return w.Resolve(t.Context(), peer, questionOf(name, kind))
}

var somewhere = []netip.Addr{netip.MustParseAddr("93.184.216.34")}

// TestNothingIsAskedForBeforeItIsRecorded has the resolver look into the log.
func TestNothingIsAskedForBeforeItIsRecorded(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	seen := 0
	w.Gate.config.Resolver = resolverFunc(func(name string) ([]netip.Addr, error) {
		r := w.records(t, record.KindDNS)
		if seen = len(r); seen != 1 || r[0].DNS.Name != name || r[0].Decision.Action != "allow" {
			t.Errorf("when the resolver is asked the log has %+v", r)
		}
		if _, err := w.Gate.config.Log.Append([]byte(`{"kind":"x"}`)); err != nil {
			t.Error(err)
		}
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	})
	a, err := w.resolve(t, "a.test", "A")
	if err != nil || len(a.Addrs) != 1 || seen != 1 {
		t.Errorf("%v, %v, %d", a, err, seen)
	}
	if n := len(w.records(t, record.KindDNS)); n != 1 {
		t.Errorf("%d records of one question", n)
	}
}

// A resolverFunc has nothing cached.
type resolverFunc func(name string) ([]netip.Addr, error)

func (resolverFunc) Cached(string) ([]netip.Addr, []string, bool) { return nil, nil, false }

func (f resolverFunc) Lookup(_ context.Context, name string) ([]netip.Addr, []string, error) {
	addrs, err := f(name)
	return addrs, nil, err
}

// TestQuestionsThatAreRefused has each refusal recorded once, and no name looked up.
func TestQuestionsThatAreRefused(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	_, err := w.resolve(t, "a.test", "A")
	refusalOf(t, err, policy.RuleDeny)
	_, err = w.resolve(t, "a.test", "TXT")
	refusalOf(t, err, policy.DNSTypeDenied)
	refusalOf(t, w.Names.Refuse(peer, []byte("\x00raw"), policy.MalformedRequest, "the test says so"), policy.MalformedRequest)
	if r := w.records(t, record.KindRefused); len(r) != 1 || r[0].Raw != "\x00raw" || r[0].Sandbox != "default" {
		t.Errorf("recorded %+v", r)
	}
	w.Shut()
	_, err = w.resolve(t, "a.test", "A")
	refusalOf(t, err, policy.PolicyNotLoaded)
	if n := len(w.records(t, record.KindDNS)); n != 3 || w.zone.asked.Load() != 0 {
		t.Errorf("%d records, %d lookups", n, w.zone.asked.Load())
	}
}

// TestAPolicyThatComesWhileANameIsLookedUp changes the policy under a question.
func TestAPolicyThatComesWhileANameIsLookedUp(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.Gate.config.Resolver = resolverFunc(func(string) ([]netip.Addr, error) {
		if err := w.SetPolicy(t.Context(), policy.New(opinion(deny)), "meanwhile"); err != nil {
			t.Error(err)
		}
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	})
	a, err := w.resolve(t, "a.test", "A")
	refusalOf(t, err, policy.RuleDeny)
	if a.Addrs != nil {
		t.Errorf("beside the refusal came %v", a)
	}
}

// TestTheResolversErrorIsHandedOn is what tells NXDOMAIN from a failure.
func TestTheResolversErrorIsHandedOn(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	said := errors.New("no such name")
	w.Gate.config.Resolver = resolverFunc(func(string) ([]netip.Addr, error) { return nil, said })
	_, err := w.resolve(t, "a.test", "A")
	refusalOf(t, err, policy.NetworkDNS)
	if !errors.Is(err, said) || strings.Contains(err.Error(), said.Error()) {
		t.Errorf("the refusal is %v", err)
	}
}

// TestUsageIsGivenToPoliciesThatReadIt has no flow counted for a question.
func TestUsageIsGivenToPoliciesThatReadIt(t *testing.T) {
	w := newWorld(t, nil)
	f, refusal := w.Gate.question(peer, questionOf("a.test", "A"))
	if refusal != nil {
		t.Fatal(refusal)
	}
	if u := f.account().sum(f.began); u.FlowsOpen != 0 || u.FlowsMinute != 0 {
		t.Errorf("usage is %+v", u)
	}
}

// TestNothingIsAskedForBeforeItIsDurable has the log lose its file, so that no sync of it can
// succeed.
func TestNothingIsAskedForBeforeItIsDurable(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.zone.addrs["a.test"] = somewhere
	if err := os.Remove(filepath.Join(w.dir, "00000001.log")); err != nil {
		t.Fatal(err)
	}
	_, err := w.resolve(t, "a.test", "A")
	refusalOf(t, err, policy.AuditUnavailable)
	if n := w.zone.asked.Load(); n != 0 {
		t.Errorf("the resolver was asked %d times", n)
	}
}

// TestTooManyQuestionsWaitAtATime asks for one name more than may be looked up at a time.
func TestTooManyQuestionsWaitAtATime(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	const most = 128
	looked, goOn := make(chan struct{}, most+1), make(chan struct{})
	w.Gate.config.Resolver = resolverFunc(func(string) ([]netip.Addr, error) {
		looked <- struct{}{}
		<-goOn
		return somewhere, nil
	})
	var waiting sync.WaitGroup
	for n := range most {
		waiting.Go(func() {
			if _, err := w.resolve(t, fmt.Sprintf("n%d.test", n), "A"); err != nil {
				t.Error(err)
			}
		})
	}
	for range most {
		<-looked
	}
	_, err := w.resolve(t, "more.test", "A")
	refusalOf(t, err, policy.DNSBudget)
	close(goOn)
	waiting.Wait()
	if n := w.accounts.of("default").names.Waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
	if _, err := w.resolve(t, "more.test", "A"); err != nil {
		t.Error(err)
	}
}

// TestTheEndWhileANameIsLookedUp shuts the gate meanwhile.
func TestTheEndWhileANameIsLookedUp(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	w.Gate.config.Resolver = resolverFunc(func(string) ([]netip.Addr, error) {
		w.Shut()
		return somewhere, nil
	})
	_, err := w.resolve(t, "a.test", "A")
	refusalOf(t, err, policy.PolicyNotLoaded)
}

// TestAnAnswersRecordHoldsNoCanary has a program ask whose arguments hold one.
func TestAnAnswersRecordHoldsNoCanary(t *testing.T) {
	const canary = "AKIAQ3EGCANARY77xZ9kLm"
	c, err := secret.NewCanaries([]secret.Canary{{Name: "first", Text: []byte(canary)}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, policy.New(opinion(allow)))
	w.zone.addrs["a.test"] = somewhere
	w.SetCanaries(c)
	asks := peer
	asks.Process = &policy.Process{PID: 7, Exe: "/usr/bin/dig", Argv: []string{"dig", canary}}
	if _, err := w.Resolve(t.Context(), asks, questionOf("a.test", "A")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "00000001.log"))
	if err != nil || strings.Contains(string(text), canary) || !strings.Contains(string(text), "/usr/bin/dig") {
		t.Errorf("the log says %s, %v", text, err)
	}
}

// A lateEngine knows the container of every address once somebody has waited for it.
type lateEngine struct{ known atomic.Bool }

func (e *lateEngine) At(netip.Addr) (*sandbox.Container, bool) {
	if !e.known.Load() {
		return nil, true
	}
	return &sandbox.Container{Container: &policy.Container{Name: "web", ID: "0123456789ab"}}, true
}

func (e *lateEngine) Await(context.Context, netip.Addr) { e.known.Store(true) }

func (*lateEngine) Behind(int) *sandbox.Container { return nil }

func (*lateEngine) Trouble() error { return nil }

// TestTheFirstQuestionOfAContainerWaitsForItsEngine has a container ask before the engine has told of it.
func TestTheFirstQuestionOfAContainerWaitsForItsEngine(t *testing.T) {
	w := newWorldOf(t, policy.New(opinion(allow)), audit.Options{}, []sandbox.Entry{{Name: "web", Docker: policy.Containers{Name: "web"}}})
	w.Gate.config.Sandboxes.SetEngine(new(lateEngine))
	w.zone.addrs["a.test"] = somewhere
	if a, err := w.resolve(t, "a.test", "A"); err != nil || len(a.Addrs) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	if r := w.records(t, record.KindDNS); len(r) != 1 || r[0].Sandbox != "web" {
		t.Errorf("recorded %+v", r)
	}
}
