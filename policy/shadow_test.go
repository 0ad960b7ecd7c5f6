package policy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An asked is an evaluator made of a function.
type asked func(context.Context, *Request) (Decision, error)

func (v asked) Evaluate(ctx context.Context, r *Request) (Decision, error) { return v(ctx, r) }

func answering(d Decision) asked {
	return func(context.Context, *Request) (Decision, error) { return d, nil }
}

func requestTo(t *testing.T, hostport string) *Request {
	t.Helper()
	dst, err := ParseDestination(hostport)
	if err != nil {
		t.Fatal(err)
	}
	return &Request{Via: ViaConnect, Destination: dst}
}

func TestAShadowIsToldWhereItDiffers(t *testing.T) {
	allow := Decision{Verdict: Allow, Rule: "open", Layer: Organisation}
	deny := Decision{Class: RuleDeny, Rule: "no", Layer: Organisation}
	for name, row := range map[string]struct {
		force, shadow Decision
		differs       bool
	}{
		"both allow":                        {allow, Decision{Verdict: Allow, Rule: "other", Layer: Organisation}, false},
		"the shadow denies":                 {allow, deny, true},
		"the shadow allows":                 {deny, allow, true},
		"both deny by one rule":             {deny, deny, false},
		"both deny, by other rules":         {deny, Decision{Class: RuleDeny, Rule: "never", Layer: Organisation}, true},
		"both deny, for another class":      {deny, Decision{Class: MethodDenied, Rule: "no", Layer: Organisation}, true},
		"both deny, by another layer":       {deny, Decision{Class: RuleDeny, Rule: "no", Layer: User}, true},
		"the shadow would look at a tunnel": {allow, Decision{Verdict: Inspect, Rule: "open", Layer: Organisation}, true},
		"the shadow asks a person":          {allow, Decision{Verdict: Ask, Class: AskRejected, Rule: "open"}, true},
		"silence under one default":         {Decision{Verdict: Abstain}, Decision{Verdict: Abstain}, false},
	} {
		t.Run(name, func(t *testing.T) {
			other := New(answering(row.shadow))
			other.inspection = true
			p := New(answering(row.force)).WithShadow(other)
			r := requestTo(t, "a.test:443")
			d := p.Decide(t.Context(), r)
			if d.Shadow != nil {
				t.Error("Decide asked the shadow")
			}
			compared := p.Compare(t.Context(), r, d, apart)
			if (compared.Shadow != nil) != row.differs {
				t.Fatalf("the shadow is %+v", compared.Shadow)
			}
			if compared.Verdict != d.Verdict || compared.Rule != d.Rule || compared.Class != d.Class || compared.Policy != d.Policy {
				t.Errorf("the shadow changed %+v to %+v", d, compared)
			}
			if row.differs && (compared.Shadow.Rule != row.shadow.Rule || compared.Shadow.Verdict.Action() != row.shadow.Verdict.Action()) {
				t.Errorf("the shadow said %+v", compared.Shadow)
			}
		})
	}
}

// TestWhatGoesWrongInAShadowStaysThere has it fail in every way that it can.
func TestWhatGoesWrongInAShadowStaysThere(t *testing.T) {
	for name, v := range map[string]asked{
		"an error": func(context.Context, *Request) (Decision, error) {
			return Decision{Verdict: Allow}, errors.New("broken")
		},
		"a panic": func(context.Context, *Request) (Decision, error) { panic("broken") },
		"a verdict that does not exist": func(context.Context, *Request) (Decision, error) {
			return Decision{Verdict: Abstain + 1}, nil
		},
	} {
		p := New(answering(Decision{Verdict: Allow, Rule: "open"})).WithShadow(New(v))
		r := requestTo(t, "a.test:443")
		d := p.Compare(t.Context(), r, p.Decide(t.Context(), r), apart)
		if d.Verdict != Allow || d.Shadow == nil || d.Shadow.Class != PolicyError || d.Shadow.Verdict != Deny || d.Shadow.Policy == "" {
			t.Errorf("%s: %+v, shadow %+v", name, d, d.Shadow)
		}
	}
}

// TestASlowShadowIsNotWaitedFor asks one that answers when it likes, more often than
// it may be asked at a time, and writes what it was asked about meanwhile.
func TestASlowShadowIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		slow := asked(func(_ context.Context, r *Request) (Decision, error) {
			<-release
			if values := r.HTTP.Header["X"]; len(values) != 1 || values[0] != "y" {
				t.Errorf("what it was asked about became %q", values)
			}
			return Decision{Verdict: Allow}, nil
		})
		p := New(answering(Decision{Verdict: Allow, Rule: "open"})).WithShadow(New(slow))
		for i := range shadowRoom + 2 {
			r := requestTo(t, "a.test:80")
			r.HTTP = &HTTPRequest{Method: "GET", Path: "/", Header: map[string][]string{"X": {"y"}}}
			began := time.Now()
			d := p.Compare(t.Context(), r, Decision{Verdict: Allow}, apart)
			if waited := time.Since(began); waited != shadowPatience {
				t.Errorf("question %d was waited for %v", i, waited)
			}
			want := "in time"
			if i >= shadowRoom {
				want = "too many questions"
			}
			if d.Shadow == nil || d.Shadow.Class != PolicyError || !strings.Contains(d.Shadow.Reason, want) {
				t.Errorf("question %d: %+v", i, d.Shadow)
			}
			r.HTTP.Header["X"][0] = "z"
			delete(r.HTTP.Header, "X")
		}
		close(release)
		synctest.Wait()
		r := requestTo(t, "a.test:80")
		r.HTTP = &HTTPRequest{Method: "GET", Path: "/", Header: map[string][]string{"X": {"y"}}}
		if d := p.Compare(t.Context(), r, Decision{Verdict: Allow}, apart); d.Shadow != nil {
			t.Errorf("it does not answer any more: %+v", d.Shadow)
		}
	})
}

func TestWhoAskedMayHaveGone(t *testing.T) {
	heeds := asked(func(ctx context.Context, _ *Request) (Decision, error) { return Decision{Verdict: Allow}, ctx.Err() })
	p := New(answering(Decision{Verdict: Allow})).WithShadow(New(heeds))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if d := p.Compare(gone, requestTo(t, "a.test:443"), Decision{Verdict: Allow}, apart); d.Shadow != nil {
		t.Errorf("%+v", d.Shadow)
	}
}

func TestNoPolicyHasNoShadow(t *testing.T) {
	for _, p := range []*Policy{nil, New(answering(Decision{Verdict: Allow}))} {
		if d := p.Compare(t.Context(), requestTo(t, "a.test:443"), Decision{}, apart); d.Shadow != nil || p.Shadow() != nil {
			t.Error("it has")
		}
	}
	if !New().AnswersAtOnce() || New().WithShadow(New()).AnswersAtOnce() {
		t.Error("only a policy with a shadow does not answer at once")
	}
}

func BenchmarkCompareWithoutShadow(b *testing.B) {
	p := New(answering(Decision{Verdict: Allow}))
	r, d := &Request{}, Decision{Verdict: Allow}
	b.ReportAllocs()
	for b.Loop() {
		if p.Shadow() != nil {
			p.Compare(context.Background(), r, d, apart)
		}
	}
}

func BenchmarkCompare(b *testing.B) {
	p := New(answering(Decision{Verdict: Allow})).WithShadow(New(answering(Decision{Verdict: Allow})))
	r, d := &Request{}, Decision{Verdict: Allow}
	b.ReportAllocs()
	for b.Loop() {
		p.Compare(context.Background(), r, d, apart)
	}
}

// apart runs f on a goroutine.
func apart(f func()) { go f() }
