package egress

import (
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/record/count"
)

// TestADeniedHostShowsNoCanary gives a tally the host without its canary: neither the reason nor the fix may hold it.
func TestADeniedHostShowsNoCanary(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	f := &Flow{gate: w.Gate, request: &policy.Request{Destination: policy.Destination{Host: "s3cret.evil.test", Port: 443}}, decision: &policy.Decision{Class: policy.DefaultDeny, Reason: "no rule allows s3cret.evil.test"}}
	if d := deniedHost(f, f.request.Destination.Host, false); d.Fix == "" || d.Reason == "" {
		t.Errorf("without a canary: %+v", d)
	}
	if d := deniedHost(f, "*.evil.test", false); d.Fix != "" || d.Reason != "" || d.Times != 1 {
		t.Errorf("with one: %+v", d)
	}
}

// TestWhatFailsInTheNetworkIsCounted ends one flow by a failure and one as usual.
func TestWhatFailsInTheNetworkIsCounted(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	var tally Tally
	for _, outcome := range []string{"closed", string(policy.NetworkRefused)} {
		f := &Flow{gate: w.Gate, request: &policy.Request{Destination: policy.Destination{Host: "a.test", Port: 443}}, decision: &policy.Decision{}}
		tally.ended(f, End{Outcome: record.Outcome(outcome)})
	}
	c := tally.Counts()
	if c.Requests != 2 || c.Failed != 1 || c.LastFailure == nil || c.LastFailure.Host != "a.test" || c.LastFailure.Class != policy.NetworkRefused || c.LastFailure.Reason == "" {
		t.Errorf("%+v, last failure %+v", c, c.LastFailure)
	}
}

// TestATunnelThatFailsBeforeItsFirstRequestIsCounted has inspected tunnels end without a request, by each class that they can
// end with. The names in package count, which imports no gate, are those of the classes.
func TestATunnelThatFailsBeforeItsFirstRequestIsCounted(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	for _, row := range []struct {
		outcome          string
		requests, failed int
		reason           string
	}{
		{"closed", 0, 0, ""},
		{string(policy.NetworkTLS), 1, 1, "the authority is not trusted"},
		{string(policy.CertificateRefused), 1, 1, "the authority is not trusted"},
		{string(policy.PolicyError), 1, 0, ""},
		{string(policy.AuditUnavailable), 1, 0, ""},
	} {
		var tally Tally
		f := &Flow{gate: w.Gate, request: &policy.Request{Destination: policy.Destination{Host: "a.test", Port: 443}, TLS: &policy.ClientHello{Inspected: true}}, decision: &policy.Decision{}}
		tally.ended(f, End{Outcome: record.Outcome(row.outcome), Note: row.reason})
		c := tally.Counts()
		if c.Requests != row.requests || c.Failed != row.failed || row.failed > 0 && (c.LastFailure == nil || c.LastFailure.Reason != row.reason) {
			t.Errorf("%s: %+v, last failure %+v", row.outcome, c, c.LastFailure)
		}
	}
	for class := range networkReasons {
		if !count.Failed(record.Outcome(class)) && record.Outcome(class) != count.Distrusted {
			t.Errorf("%s is no failure", class)
		}
	}
}

// TestDeniedPlacesAreCountedByPort counts two ports of a host apart, and names only if no connection followed.
func TestDeniedPlacesAreCountedByPort(t *testing.T) {
	var tally Tally
	tally.counter.Belongs = tally.takeBack
	now := time.Now()
	for _, d := range []struct {
		DeniedHost
		kind string
	}{
		{DeniedHost{Host: "a.test"}, "A"}, {DeniedHost{Host: "a.test"}, "AAAA"}, {DeniedHost{Host: "a.test", Port: 443, Fix: "tls"}, ""}, {DeniedHost{Host: "a.test", Port: 80, Fix: "plain"}, ""},
		{DeniedHost{Host: "a.test", Port: 443, Fix: "tls"}, ""}, {DeniedHost{Host: "b.test"}, "A"}, {DeniedHost{Host: "b.test"}, "AAAA"}, {DeniedHost{Host: "c.test"}, "TXT"},
	} {
		tally.deny(d.DeniedHost, &count.Counted{Time: now, Host: d.Host, Type: d.kind, Action: "deny", Times: 1})
	}
	want := []DeniedHost{{Host: "a.test", Port: 443, Times: 2, Fix: "tls"}, {Host: "a.test", Port: 80, Times: 1, Fix: "plain"}, {Host: "b.test", Times: 1}, {Host: "c.test", Times: 1}}
	if got := tally.Counts().Denied; !slices.Equal(got, want) {
		t.Errorf("denied %+v, want %+v", got, want)
	}
}

// TestWhatIsAskedAboutIsDeniedWithItsAnswer has a question, and then the person's no to the request that waited.
func TestWhatIsAskedAboutIsDeniedWithItsAnswer(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	var told []DeniedHost
	tally := &Tally{First: func(d DeniedHost) { told = append(told, d) }}
	f := &Flow{gate: w.Gate, id: w.Gate.ids.next(time.Now()), request: &policy.Request{Destination: policy.Destination{Host: "a.test", Port: 443}}}
	f.decision = &policy.Decision{Verdict: policy.Ask, Class: policy.AskPending, Question: f.id.String()}
	tally.note(f, recordOf{kind: record.KindOpen})
	if len(told) > 0 {
		t.Errorf("while a person is asked: %+v", told)
	}
	f.decision = &policy.Decision{Verdict: policy.Deny, Class: policy.AskRejected, Question: f.decision.Question}
	tally.note(f, recordOf{kind: record.KindOpen})
	if len(told) != 1 || told[0].Class != policy.AskRejected {
		t.Errorf("after the answer: %+v", told)
	}
	if c := tally.Counts().Denied; len(c) != 1 || c[0].Class != policy.AskRejected || c[0].Times != 1 {
		t.Errorf("counted %+v", c)
	}
}
