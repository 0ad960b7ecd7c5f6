package turns

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
		turns := New(1)
		if err := turns.Take(t.Context(), "busy"); err != nil {
			t.Fatal(err)
		}
		var got []string
		var wg sync.WaitGroup
		for _, sandbox := range []string{"busy", "busy", "busy", "quiet", "other", "busy", "quiet"} {
			wg.Go(func() {
				if err := turns.Take(t.Context(), sandbox); err != nil {
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
		if turns.free != 1 || len(turns.order) != 0 || len(turns.waiting) != 0 {
			t.Errorf("left behind: %d free, %v, %v", turns.free, turns.order, turns.waiting)
		}
	})
}

// TestWhoWaitsForATurnCanGiveUp keeps the turn, so that only the context can end
// the wait.
func TestWhoWaitsForATurnCanGiveUp(t *testing.T) {
	turns := New(1)
	if err := turns.Take(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for range 3 {
		go func() { done <- turns.Take(ctx, "b") }()
	}
	cancel()
	for range 3 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("said %v", err)
		}
	}
	turns.Give()
	if turns.free != 1 || len(turns.order) != 0 || len(turns.waiting) != 0 {
		t.Errorf("left behind: %d free, %v, %v", turns.free, turns.order, turns.waiting)
	}
}

// TestATurnThatComesTooLateIsPassedOn gives the turn to whoever has just given up.
func TestATurnThatComesTooLateIsPassedOn(t *testing.T) {
	turns := New(1)
	if err := turns.Take(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	late, next := turns.queue("b"), turns.queue("c")
	turns.Give()
	<-late
	turns.leave("b", late)
	<-next
	turns.Give()
	if turns.free != 1 {
		t.Errorf("%d turns are free", turns.free)
	}
}

// TestATurnIsTakenNow or not at all.
func TestATurnIsTakenNow(t *testing.T) {
	turns := New(1)
	if !turns.TakeNow() || turns.TakeNow() {
		t.Error("one turn was not taken once")
	}
	next := turns.queue("a")
	turns.queue("a")
	turns.queue("b")
	if n := turns.Waiting(); n != 3 {
		t.Errorf("%d wait, want 3", n)
	}
	turns.Give()
	<-next
	if turns.TakeNow() || turns.Waiting() != 2 {
		t.Errorf("a turn that somebody waited for was free, or %d wait still", turns.Waiting())
	}
}
