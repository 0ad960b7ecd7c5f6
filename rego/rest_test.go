package rego

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"
)

// TestASlowPolicySlowsItselfAlone asks a policy that never ends for one sandbox: the first request uses up
// the deadline, those of the next second fail without an evaluation, and other sandboxes are decided.
func TestASlowPolicySlowsItselfAlone(t *testing.T) {
	e := mustLoad(t, slowForOne, Options{Deadline: 20 * time.Millisecond, Cached: -1})
	ask := func(sandbox string) (took time.Duration, err error) {
		start := time.Now()
		_, err = e.Evaluate(context.Background(), &policy.Request{Sandbox: policy.Sandbox{Name: sandbox}, HTTP: &policy.HTTPRequest{Method: "GET", Path: "/"}})
		return time.Since(start), err
	}
	if took, err := ask("slow"); err == nil || took < 20*time.Millisecond {
		t.Fatalf("the first request: %v after %v", err, took)
	}
	begun := time.Now()
	for range 100 {
		if _, err := ask("slow"); err == nil {
			t.Fatal("a policy that never ends has decided")
		}
		if _, err := ask("quick"); err != nil {
			t.Fatalf("another sandbox: %v", err)
		}
	}
	if took := time.Since(begun); took > restTime {
		t.Errorf("100 requests beside it took %v", took)
	}
}

// TestAPolicyRestsForASecond has it end, and holds with more sandboxes than are remembered.
func TestAPolicyRestsForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRests()
		r.begin("a", time.Now())
		if r.check("a", time.Now()) == nil || r.check("b", time.Now()) != nil {
			t.Error("it rests for another sandbox than its own")
		}
		time.Sleep(restTime)
		if err := r.check("a", time.Now()); err != nil {
			t.Errorf("after a second: %v", err)
		}
		for i := range maxResting + 1 {
			r.begin(string(rune('b'+i)), time.Now())
		}
		if r.check("z", time.Now()) == nil || len(r.until) > maxResting+1 {
			t.Errorf("with %d sandboxes at rest", len(r.until))
		}
		time.Sleep(restTime + 1)
		if r.begin("c", time.Now()); len(r.until) != 1 {
			t.Errorf("%d are remembered after a second", len(r.until))
		}
	})
}
