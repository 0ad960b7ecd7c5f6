package answer

import (
	"testing"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// TestTheFixOfASummedDenialNamesNoRecord, since that record is about another destination.
func TestTheFixOfASummedDenialNamesNoRecord(t *testing.T) {
	dst, err := policy.ParseDestination("a.test:443")
	if err != nil {
		t.Fatal(err)
	}
	r := &egress.Refusal{ID: 1, Destination: dst, Decision: policy.Decision{Class: policy.DefaultDeny}}
	if got, want := commandFor(r), "egressd allow a.test --from "+r.ID.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.Summed = true
	if got, want := commandFor(r), "egressd allow a.test:443"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
