package daemon

import (
	"testing"
	"time"

	"github.com/egressd/egressd/admin"
)

// TestWhatAGrantLetPassIsCutDuringAReload: the goroutine that reloads, which is the test, does
// nothing while a grant ends.
func TestWhatAGrantLetPassIsCutDuringAReload(t *testing.T) {
	w := newGrantsWorld(t, "allow: [other.test]\n")
	port := silent(t)
	w.gets(t, "allow", time.Hour, "a.test:"+port)
	c, refused := w.tunnel(t, "a.test:"+port)
	if c == nil {
		t.Fatal(refused)
	}
	defer c.Close()
	w.pass(time.Hour - time.Millisecond)
	inForce := w.gets(t, "allow", time.Hour, "longer.test:"+port).Policy
	w.pass(time.Millisecond)
	if !isCut(t, c) {
		t.Error("its tunnel is open")
	}
	if w.Gate.Digest() != inForce {
		t.Error("another policy is in force, so it was not the end that cut")
	}
}

func TestEndsAreLookedAtOnce(t *testing.T) {
	w := newGrantsWorld(t, "allow: [other.test]\n")
	w.gets(t, "allow", time.Minute, "a.test")
	w.gets(t, "deny", time.Second, "b.test")
	grants := w.current.Load().grants
	var e endings
	for _, row := range []struct {
		at, wait  time.Duration
		cut, over bool
	}{
		{0, time.Second, false, false},
		{time.Second, retryEnd, false, true},
		{time.Minute - time.Millisecond, time.Millisecond, false, true},
		{time.Minute, retryEnd, true, true},
		{time.Minute + 1, retryEnd, false, true},
		{time.Hour, retryEnd, false, true},
	} {
		if cut, over, wait := e.look(grants, row.at); cut != row.cut || over != row.over || wait != row.wait {
			t.Errorf("at %s: cut %t, over %t, wait %s, want %t, %t, %s", row.at, cut, over, wait, row.cut, row.over, row.wait)
		}
	}
	if _, _, wait := e.look(nil, time.Hour); wait != 0 {
		t.Errorf("without grants, the next look is in %s", wait)
	}
}

// TestAnEndIsPutInForce by the goroutine that reloads, which nothing else wakes: of an allow and of a deny.
func TestAnEndIsPutInForce(t *testing.T) {
	w := serveRego(t, "allow: [other.test]\n", nil)
	before := w.Gate.Digest()
	for _, verdict := range []string{"allow", "deny"} {
		if _, err := w.Grants().Grant(t.Context(), someone, admin.GrantRequest{Verdict: verdict, Patterns: []string{"a.test"}, Seconds: 1}); err != nil {
			t.Fatal(err)
		}
		if w.Gate.Digest() == before {
			t.Errorf("%s: the same policy is in force", verdict)
		}
		w.hear(t, "has ended: "+verdict+" a.test")
		if len(w.current.Load().grants) != 0 || w.Gate.Digest() != before {
			t.Errorf("%s: after its end, another policy is in force than before", verdict)
		}
	}
}
