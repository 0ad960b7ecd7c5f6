package daemon

import (
	"testing"
	"time"
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
		at, wait time.Duration
		due      bool
	}{
		{0, lookEvery, false},
		{time.Minute - time.Millisecond, time.Millisecond, false},
		{time.Minute, 0, true},
		{time.Minute + 1, 0, false},
		{time.Hour, 0, false},
	} {
		if due, wait := e.look(grants, row.at); due != row.due || wait != row.wait {
			t.Errorf("at %s: due %t, wait %s, want %t, %s", row.at, due, wait, row.due, row.wait)
		}
	}
}
