package rego

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
		turns := newTurns(1)
		if err := turns.take(t.Context(), "busy"); err != nil {
			t.Fatal(err)
		}
		var got []string
		var wg sync.WaitGroup
		for _, sandbox := range []string{"busy", "busy", "busy", "quiet", "other", "busy", "quiet"} {
			wg.Go(func() {
				if err := turns.take(t.Context(), sandbox); err != nil {
					t.Error(err)
				}
				got = append(got, sandbox)
				turns.give()
			})
			synctest.Wait()
		}
		turns.give()
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
	turns := newTurns(1)
	if err := turns.take(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for range 3 {
		go func() { done <- turns.take(ctx, "b") }()
	}
	cancel()
	for range 3 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("said %v", err)
		}
	}
	turns.give()
	if turns.free != 1 || len(turns.order) != 0 || len(turns.waiting) != 0 {
		t.Errorf("left behind: %d free, %v, %v", turns.free, turns.order, turns.waiting)
	}
}

// TestATurnThatComesTooLateIsPassedOn gives the turn to whoever has just given up.
func TestATurnThatComesTooLateIsPassedOn(t *testing.T) {
	turns := newTurns(1)
	if err := turns.take(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	late, next := turns.queue("b"), turns.queue("c")
	turns.give()
	<-late
	turns.leave("b", late)
	<-next
	turns.give()
	if turns.free != 1 {
		t.Errorf("%d turns are free", turns.free)
	}
}
