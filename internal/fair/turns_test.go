package fair

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestTurnsGoRound has one sandbox ask many times before another asks once.
func TestTurnsGoRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		if err := turns.Take(t.Context(), "busy", "busy"); err != nil {
			t.Fatal(err)
		}
		var got []string
		var wg sync.WaitGroup
		for _, sandbox := range []string{"busy", "busy", "busy", "quiet", "other", "busy", "quiet"} {
			wg.Go(func() {
				if err := turns.Take(t.Context(), sandbox, sandbox); err != nil {
					t.Error(err)
				}
				got = append(got, sandbox)
				turns.Give()
			})
			synctest.Wait()
		}
		turns.Give()
		wg.Wait()
		if want := []string{"busy", "quiet", "other", "busy", "quiet", "busy", "busy"}; !slices.Equal(got, want) {
			t.Errorf("turns went to %v, want %v", got, want)
		}
		if turns.free != 1 || len(turns.holders.order) != 0 || len(turns.holders.queues) != 0 {
			t.Errorf("left behind: %d free, %v, %v", turns.free, turns.holders.order, turns.holders.queues)
		}
	})
}

// TestWhoWaitsForATurnCanGiveUp keeps the turn, so that only the context can end
// the wait.
func TestWhoWaitsForATurnCanGiveUp(t *testing.T) {
	turns := NewTurns(1)
	if err := turns.Take(t.Context(), "a", "a"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for range 3 {
		go func() { done <- turns.Take(ctx, "b", "b") }()
	}
	cancel()
	for range 3 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("said %v", err)
		}
	}
	turns.Give()
	if turns.free != 1 || len(turns.holders.order) != 0 || len(turns.holders.queues) != 0 {
		t.Errorf("left behind: %d free, %v, %v", turns.free, turns.holders.order, turns.holders.queues)
	}
}

// TestATurnThatComesTooLateIsPassedOn gives the turn to whoever has just given up.
func TestATurnThatComesTooLateIsPassedOn(t *testing.T) {
	turns := NewTurns(1)
	if err := turns.Take(t.Context(), "a", "a"); err != nil {
		t.Fatal(err)
	}
	late, next := turns.queue("b", "b"), turns.queue("c", "c")
	turns.Give()
	<-late
	turns.leave("b", "b", late)
	<-next
	turns.Give()
	if turns.free != 1 {
		t.Errorf("%d turns are free", turns.free)
	}
}

// TestATurnIsTakenNow or not at all.
func TestATurnIsTakenNow(t *testing.T) {
	turns := NewTurns(1)
	if !turns.TakeNow() || turns.TakeNow() {
		t.Error("one turn was not taken once")
	}
	next := turns.queue("a", "a")
	turns.queue("a", "a")
	turns.queue("b", "b")
	if n := turns.Waiting(); n != 3 {
		t.Errorf("%d wait, want 3", n)
	}
	turns.Give()
	<-next
	if turns.TakeNow() || turns.Waiting() != 2 {
		t.Errorf("a turn that somebody waited for was free, or %d wait still", turns.Waiting())
	}
}

// TestATemplateHasTheTurnsOfOneHolder has many sandboxes of a template wait, and one sandbox that is none of it.
func TestATemplateHasTheTurnsOfOneHolder(t *testing.T) {
	turns := NewTurns(1)
	turns.TakeNow()
	var order []string
	waits := map[string]chan struct{}{}
	add := func(holder, sandbox string) { waits[sandbox] = turns.queue(holder, sandbox) }
	for _, id := range []string{"t1", "t2", "t3", "t4"} {
		add("t-{id}", id)
	}
	add("plain", "plain")
	for range len(waits) {
		turns.Give()
		for name, c := range waits {
			select {
			case <-c:
				order = append(order, name)
				delete(waits, name)
			default:
			}
		}
	}
	if want := []string{"t1", "plain", "t2", "t3", "t4"}; !slices.Equal(order, want) {
		t.Errorf("turns went to %v, want %v", order, want)
	}
}
