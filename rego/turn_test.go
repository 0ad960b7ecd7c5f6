package rego

import (
	"context"
	"errors"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestWhoWaitsForATurnCanGiveUp keeps the turn, so that only the context can end
// the wait.
func TestWhoWaitsForATurnCanGiveUp(t *testing.T) {
	text := "package egress\nallow contains {\"rule\": \"r\"} if input.http.method == \"GET\""
	e, err := Load([]Source{{Name: "egress.rego", Text: []byte(text)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	<-e.turn
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := e.ask(ctx, &policy.Request{}, readsHTTP)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("said %v", err)
	}
	e.turn <- struct{}{}
	if d, err := e.ask(context.Background(), &policy.Request{}, readsHTTP); err != nil || d.Verdict != policy.Inspect {
		t.Errorf("with the turn back: %+v, %v", d, err)
	}
}
