package policy

import (
	"context"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A fixed evaluator always says the same.
type fixed struct {
	decision Decision
	err      error
}

func (o fixed) Evaluate(context.Context, *Request) (Decision, error) { return o.decision, o.err }

func drawOpinion(t *rapid.T, name string) fixed {
	o := fixed{decision: Decision{
		Verdict:     Verdict(rapid.Uint8Max(uint8(Abstain)+1).Draw(t, name+" verdict")), // one more than there are
		Needs:       Needs(rapid.Uint8Max(15).Draw(t, name+" needs")),
		AnyProtocol: rapid.Bool().Draw(t, name+" any protocol"),
		ECH:         rapid.Bool().Draw(t, name+" ECH"),
		Upgrade:     rapid.Bool().Draw(t, name+" upgrade"),
		Log:         rapid.Bool().Draw(t, name+" log"),
	}}
	o.decision.Spend(rapid.Int64Range(0, 3).Draw(t, name+" budget"), name, User)
	if rapid.IntRange(0, 9).Draw(t, name+" errs") == 0 {
		o.err = errors.New("evaluator is broken")
	}
	return o
}

func drawRequest(t *rapid.T) *Request {
	r := &Request{Destination: Destination{Host: "allowed.test", Port: rapid.SampledFrom([]uint16{80, 443, 22}).Draw(t, "port")}}
	r.Protocol = rapid.SampledFrom([]Protocol{ProtocolUnseen, ProtocolTLS, ProtocolHTTP, ProtocolOpaque}).Draw(t, "protocol")
	if rapid.Bool().Draw(t, "hello") {
		r.TLS = &ClientHello{ServerName: rapid.SampledFrom([]string{"", "allowed.test", "evil.test"}).Draw(t, "server name"), ECH: rapid.Bool().Draw(t, "ECH"), Inspected: rapid.Bool().Draw(t, "inspected")}
	}
	if rapid.Bool().Draw(t, "request") {
		r.HTTP = &HTTPRequest{Method: rapid.SampledFrom([]string{"GET", "TRACE"}).Draw(t, "method"), Path: "/", BodySize: rapid.Int64Range(-1, 4).Draw(t, "body"), Upgrade: rapid.Bool().Draw(t, "websocket")}
	}
	return r
}

// drawPolicy returns a policy as the file may set it up around its evaluators.
func drawPolicy(t *rapid.T, opinions []fixed) func(...fixed) *Policy {
	fallback := rapid.SampledFrom([]Verdict{Deny, Allow}).Draw(t, "default")
	inspection := rapid.Bool().Draw(t, "inspection")
	return func(more ...fixed) *Policy {
		p := &Policy{fallback: fallback, inspection: inspection}
		for _, o := range slices.Concat(opinions, more) {
			p.evaluators = append(p.evaluators, o)
		}
		return p
	}
}

func drawOpinions(t *rapid.T) []fixed {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) fixed { return drawOpinion(t, "evaluator") }), 0, 5).Draw(t, "opinions")
}

func (o fixed) abstains() bool { return o.err == nil && o.decision.Verdict == Abstain }

// Where nobody has an opinion the default speaks, with no options, and the
// first opinion takes its place. That is the only way in which one more
// evaluator can open, but for this: one that has a tunnel inspected takes away
// what is wrong with a hello that may hide a name.
func TestAddingAnEvaluatorNeverLoosens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opinions, r := drawOpinions(t), drawRequest(t)
		build := drawPolicy(t, opinions)
		extra := drawOpinion(t, "extra")
		before, after := build().Decide(t.Context(), r), build(extra).Decide(t.Context(), r)
		if !slices.ContainsFunc(opinions, func(o fixed) bool { return !o.abstains() }) {
			return
		}
		if before.Class == ECHRefused && after.Verdict != Allow {
			return
		}
		if after.Verdict > before.Verdict {
			t.Fatalf("%v became %v with %+v", before.Verdict, after.Verdict, extra)
		}
		if after.Verdict != Deny && before.MaxBytesUp > 0 && (after.MaxBytesUp == 0 || after.MaxBytesUp > before.MaxBytesUp) {
			t.Fatalf("a budget of %d became one of %d", before.MaxBytesUp, after.MaxBytesUp)
		}
		if before.Log && !after.Log {
			t.Fatalf("%+v is marked no more: %+v", before, after)
		}
		if (after.AnyProtocol && !before.AnyProtocol || after.ECH && !before.ECH || after.Upgrade && !before.Upgrade) && before.Verdict != Deny {
			t.Fatalf("%+v became %+v", before, after)
		}
	})
}

func TestOrderNeverMattersForTheVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opinions, r := drawOpinions(t), drawRequest(t)
		fallback := rapid.SampledFrom([]Verdict{Deny, Allow}).Draw(t, "default")
		decide := func(opinions []fixed) Decision {
			p := &Policy{fallback: fallback}
			for _, o := range opinions {
				p.evaluators = append(p.evaluators, o)
			}
			return p.Decide(t.Context(), r)
		}
		first := decide(opinions)
		second := decide(rapid.Permutation(opinions).Draw(t, "order"))
		if first.Verdict != second.Verdict || first.Needs != second.Needs || first.AnyProtocol != second.AnyProtocol || first.ECH != second.ECH || first.Upgrade != second.Upgrade ||
			first.MaxBytesUp != second.MaxBytesUp || first.Log != second.Log {
			t.Fatalf("%+v became %+v", first, second)
		}
	})
}

func TestAnErrorNeverAllows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opinions, r := drawOpinions(t), drawRequest(t)
		broken := drawOpinion(t, "broken")
		if rapid.Bool().Draw(t, "by a verdict that does not exist") {
			broken.err, broken.decision.Verdict = nil, Verdict(rapid.Uint8Min(uint8(Abstain)+1).Draw(t, "verdict"))
		} else {
			broken.err = errors.New("evaluator is broken")
		}
		at := rapid.IntRange(0, len(opinions)).Draw(t, "at")
		d := drawPolicy(t, slices.Insert(opinions, at, broken))().Decide(t.Context(), r)
		if d.Verdict != Deny {
			t.Fatalf("%+v", d)
		}
	})
}

func TestCombiningIsByMinimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawOpinion(t, "a").decision, drawOpinion(t, "b").decision
		a.Verdict, b.Verdict = min(a.Verdict, Abstain), min(b.Verdict, Abstain)
		if both := combine(a, b); both.Verdict != min(a.Verdict, b.Verdict) {
			t.Fatalf("%v and %v are %v", a.Verdict, b.Verdict, both.Verdict)
		}
		if combine(a, b).Verdict != combine(b, a).Verdict || combine(a, b).Needs != a.Needs|b.Needs {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

func TestSilenceIsTheDefault(t *testing.T) {
	r := &Request{Destination: Destination{Host: "allowed.test", Port: 443}}
	silent := fixed{decision: Decision{Verdict: Abstain}}
	var none *Policy
	for name, p := range map[string]*Policy{"a nil policy": none, "the zero policy": {}, "no evaluator": New(), "silent ones": New(silent, silent)} {
		if d := p.Decide(t.Context(), r); d.Verdict != Deny || d.Class == "" || d.Rule == "" || d.Reason == "" {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d := (&Policy{fallback: Allow, evaluators: []Evaluator{silent}}).Decide(t.Context(), r); d.Verdict != Allow {
		t.Errorf("default allow: %+v", d)
	}
	for verdict := range Abstain + 3 {
		p := &Policy{fallback: verdict}
		if d := p.Decide(t.Context(), r); d.Verdict != Deny && verdict != Allow {
			t.Errorf("default %d: %+v", verdict, d)
		}
	}
}

func TestWhatNeedsARequestIsRefusedWithoutInspection(t *testing.T) {
	r := &Request{Destination: Destination{Host: "allowed.test", Port: 443}}
	for needs, class := range map[Needs]Class{
		0: MethodDenied, NeedsMethod: MethodDenied, NeedsPath: PathDenied, NeedsMethod | NeedsPath: MethodDenied,
		NeedsCredential: MethodDenied, NeedsPath | NeedsCredential: PathDenied,
	} {
		rule := fixed{decision: Decision{Verdict: Inspect, Needs: needs}}
		if d := New(rule).Decide(t.Context(), r); d.Verdict != Deny || d.Class != class {
			t.Errorf("needs %b: %+v", needs, d)
		}
		if d := (&Policy{inspection: true, evaluators: []Evaluator{rule}}).Decide(t.Context(), r); d.Verdict != Inspect {
			t.Errorf("needs %b with inspection: %+v", needs, d)
		}
		seen := *r
		seen.HTTP = &HTTPRequest{Method: "GET", Path: "/"}
		if d := New(rule).Decide(t.Context(), &seen); d.Verdict != Deny || d.Class != PolicyError {
			t.Errorf("needs %b of a request that is seen: %+v", needs, d)
		}
	}
}

func TestAnOpinionThatOnlyNeedsTheRequestRefusesTheTunnelWithoutInspection(t *testing.T) {
	r := &Request{Destination: Destination{Host: "allowed.test", Port: 443}}
	for _, loud := range []Verdict{Ask, Allow} {
		p := New(fixed{decision: Decision{Verdict: loud}}, fixed{decision: Decision{Verdict: Abstain, Needs: NeedsPath}})
		if d := p.Decide(t.Context(), r); d.Verdict != Deny || d.Class != PathDenied {
			t.Errorf("%s: %s", loud, d.Reason)
		}
	}
}

func TestOneCredentialGoesWithARequest(t *testing.T) {
	with := func(v Verdict, rule string) fixed { return fixed{decision: Decision{Verdict: v, Inject: rule}} }
	r := &Request{Destination: Destination{Host: "allowed.test", Port: 443}, HTTP: &HTTPRequest{Method: "GET", Path: "/"}}
	rows := []struct {
		name     string
		opinions []fixed
		want     string
	}{
		{"nobody has one", []fixed{with(Allow, ""), with(Allow, "")}, ""},
		{"the first has one", []fixed{with(Allow, "a"), with(Allow, "")}, "a"},
		{"the second has one", []fixed{with(Allow, ""), with(Allow, "b")}, "b"},
		{"both have one", []fixed{with(Allow, "a"), with(Allow, "b")}, "a"},
		{"the stricter has one", []fixed{with(Allow, "a"), with(Ask, "b")}, "b"},
		{"the other abstains", []fixed{with(Abstain, ""), with(Allow, "b")}, "b"},
		{"the request is denied", []fixed{with(Allow, "a"), with(Deny, "")}, ""},
	}
	for _, row := range rows {
		var p Policy
		for _, o := range row.opinions {
			p.evaluators = append(p.evaluators, o)
		}
		if d := p.Decide(t.Context(), r); d.Inject != row.want {
			t.Errorf("%s: %q, want %q", row.name, d.Inject, row.want)
		}
	}
}

func TestTheBaselineHoldsUnderAnyPolicy(t *testing.T) {
	allow := fixed{decision: Decision{Verdict: Allow, AnyProtocol: true, ECH: true}}
	p := &Policy{fallback: Allow, evaluators: []Evaluator{allow, NewBaseline(BaselineOptions{}), allow}}
	rapid.Check(t, func(t *rapid.T) {
		addr := drawAddr(t, "addr")
		d := p.Decide(t.Context(), &Request{Destination: Destination{Host: addr.String(), Addr: addr, Port: 443}})
		if want := ClassOf(addr); d.AddressClass != string(want) || (d.Verdict == Allow) != (want == "") {
			t.Fatalf("%s is %q: %+v", addr, want, d)
		}
	})
}

// An opinion combined with the narrowed form of another is as strict as both opinions
// combined: it has the same needs and a budget at most as large.
func TestNarrowingKeepsWhatIsNeededAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		said := drawOpinion(t, "said").decision
		left := combine(Decision{Verdict: Allow}, restricting(said))
		switch {
		case said.Verdict == Inspect && left.Verdict == Allow && left.Needs == 0:
			t.Fatalf("%+v becomes %+v", said, left)
		case left.Needs&said.Needs != said.Needs, left.MaxBytesUp != said.MaxBytesUp, left.Log != said.Log, left.Question != said.Question:
			t.Fatalf("%+v becomes %+v", said, left)
		}
	})
}
