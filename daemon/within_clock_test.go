package daemon

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/egressd/egressd/admin"
	"github.com/egressd/egressd/egress/approvals"
)

// asksWithin grants a host by itself, if the boundary allows it, as for a question.
func (w *grantsWorld) asksWithin(t *testing.T, host string) error {
	t.Helper()
	a, err := parseGrantRequest(admin.Operator{Rule: "approve_within"}, admin.GrantRequest{
		Verdict: "allow", Patterns: []string{host}, Sandbox: "default", Seconds: int64(approvals.ApprovedFor / time.Second), From: "01KB6ZQ4SZ",
	})
	if err != nil {
		t.Fatal(err)
	}
	a.bounded = true
	_, err = w.api().grant(t.Context(), a)
	return err
}

// TestASleepingMachineEndsWhatTheBoundaryGrants: timers stand still meanwhile, and nobody has put the end in force. A reload keeps what has not ended,
// with its end.
func TestASleepingMachineEndsWhatTheBoundaryGrants(t *testing.T) {
	const lines, host = "approve_within: boundary.yaml\ndeny: [\"secret.inside.test\"]\n", "a.inside.test:443"
	w := newGrantsWorld(t, "")
	reloads := func(boundary string) {
		t.Helper()
		w.rewrite(t, lines)
		writeFile(t, filepath.Join(w.dir, "boundary.yaml"), boundary)
		if err := w.reloads.reload(t.Context(), "the test", true); err != nil {
			t.Fatal(err)
		}
	}
	reloads(boundaryFile)
	if err := w.asksWithin(t, host); err != nil {
		t.Fatal(err)
	}
	w.pass(approvals.ApprovedFor - time.Millisecond)
	reloads("version: 1\nallow: [\"other.test\"]\nunsafe_allow: [\"127.0.0.1:*\"]\n")
	if got := w.verdict(t, host); got != "allow" {
		t.Errorf("before its end, after a reload: %s", got)
	}
	if err := w.asksWithin(t, "b.inside.test:443"); err == nil {
		t.Error("the boundary from before counts")
	}
	w.pass(time.Millisecond)
	if got := w.verdict(t, host); got != "deny" {
		t.Errorf("at its end: %s", got)
	}
	if left := w.api().List().Grants; len(left) != 0 {
		t.Errorf("listed is %+v", left)
	}
	reloads(boundaryFile)
	if got := w.verdict(t, host); got != "deny" {
		t.Errorf("after another reload: %s", got)
	}
	for round := range 2 { // those that have ended take no place
		for i := range withinMost {
			if err := w.asksWithin(t, fmt.Sprintf("h%d-%d.inside.test:443", round, i)); err != nil {
				t.Fatal(err)
			}
		}
		if w.asksWithin(t, "more.inside.test:443") == nil {
			t.Error("there is no limit")
		}
		w.pass(approvals.ApprovedFor)
	}
}
