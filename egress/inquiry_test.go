package egress

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

func questionOf(name, kind string) policy.DNSQuery { return policy.DNSQuery{Name: name, Type: kind} }

// inquire asks one question to the end.
func (w *world) inquire(t *testing.T, name, kind string) (Answer, error) {
	t.Helper()
	i, err := w.Names.Inquire(peer, questionOf(name, kind))
	if err != nil {
		return Answer{}, err
	}
	a, wait, err := i.AnswerNow()
	if wait {
		return i.Answer(t.Context())
	}
	return a, err
}

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
	a, err := w.inquire(t, "a.test", "A")
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

// TestInquiriesThatAreRefused has each refusal recorded once, and no name looked up.
func TestInquiriesThatAreRefused(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	_, err := w.inquire(t, "a.test", "A")
	refusalOf(t, err, policy.RuleDeny)
	_, err = w.inquire(t, "a.test", "TXT")
	refusalOf(t, err, policy.DNSTypeDenied)
	i, err := w.Names.Inquire(peer, policy.DNSQuery{})
	if err != nil {
		t.Fatal(err)
	}
	refusalOf(t, i.Refuse([]byte("\x00raw"), policy.MalformedRequest, "the test says so"), policy.MalformedRequest)
	if r := w.records(t, record.KindRefused); len(r) != 1 || r[0].Raw != "\x00raw" || r[0].Sandbox != "default" {
		t.Errorf("recorded %+v", r)
	}
	w.Shut()
	_, err = w.inquire(t, "a.test", "A")
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
	a, err := w.inquire(t, "a.test", "A")
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
	_, err := w.inquire(t, "a.test", "A")
	refusalOf(t, err, policy.NetworkDNS)
	if !errors.Is(err, said) || strings.Contains(err.Error(), said.Error()) {
		t.Errorf("the refusal is %v", err)
	}
}

// TestUsageIsGivenToPoliciesThatReadIt has no flow counted for a question.
func TestUsageIsGivenToPoliciesThatReadIt(t *testing.T) {
	w := newWorld(t, nil)
	i, err := w.Names.Inquire(peer, questionOf("a.test", "A"))
	if err != nil {
		t.Fatal(err)
	}
	if u := i.flow.account().sum(i.flow.began); u.FlowsOpen != 0 || u.FlowsMinute != 0 {
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
	_, err := w.inquire(t, "a.test", "A")
	refusalOf(t, err, policy.AuditUnavailable)
	if n := w.zone.asked.Load(); n != 0 {
		t.Errorf("the resolver was asked %d times", n)
	}
}
