package egress

import (
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestADeniedHostShowsNoCanary gives a tally the host without its canary: neither the reason nor the fix may hold it.
func TestADeniedHostShowsNoCanary(t *testing.T) {
	w := newWorld(t, policy.New(opinion(deny)))
	f := &Flow{gate: w.Gate, request: &policy.Request{Destination: policy.Destination{Host: "s3cret.evil.test", Port: 443}}, decision: &policy.Decision{Class: policy.DefaultDeny, Reason: "no rule allows s3cret.evil.test"}}
	if d := deniedHost(f, f.request.Destination.Host, 1); d.Fix == "" || d.Reason == "" {
		t.Errorf("without a canary: %+v", d)
	}
	if d := deniedHost(f, "*.evil.test", 1); d.Fix != "" || d.Reason != "" || d.Times != 1 {
		t.Errorf("with one: %+v", d)
	}
}
