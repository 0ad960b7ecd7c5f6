package rego

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
)

// slowForOne is a policy that takes ever so long for the sandbox "slow", and has to
// look ahead.
const slowForOne = `package egress
allow contains {"rule": "slow"} if {
	input.sandbox.name == "slow"
	count([x | some a in numbers.range(1, 1000); some b in numbers.range(1, 1000); some c in numbers.range(1, 1000); x := (a * b) * c]) > 0
}
allow contains {"rule": "read"} if input.http.method == "GET"
`

func mustLoad(t *testing.T, text string, o Options) *Evaluator {
	t.Helper()
	e, _, err := load([]Source{{Name: "egress.rego", Text: []byte(text)}}, o) // some never end
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestASlowSandboxDelaysOthersByATurn has one sandbox ask for far more than there are
// turns, with and without looking ahead. Another one gets the turn that comes next.
func TestASlowSandboxDelaysOthersByATurn(t *testing.T) {
	const slow = 40
	for _, row := range []struct {
		name  string
		http  *policy.HTTPRequest
		turns func(*Evaluator) *fair.Turns
		want  policy.Verdict
	}{
		{"ahead", nil, func(e *Evaluator) *fair.Turns { return e.pool.turns }, policy.Inspect},
		{"of a request", &policy.HTTPRequest{Method: "GET", Path: "/"}, func(e *Evaluator) *fair.Turns { return e.turns }, policy.Allow},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := mustLoad(t, slowForOne, Options{Deadline: 20 * time.Millisecond, Cached: -1})
			request := func(sandbox string) *policy.Request {
				return &policy.Request{Sandbox: policy.Sandbox{Name: sandbox}, HTTP: row.http}
			}
			var wg sync.WaitGroup
			var done atomic.Int32
			for range slow {
				wg.Go(func() {
					if _, err := e.Evaluate(context.Background(), request("slow")); err == nil {
						t.Error("what takes too long was decided")
					}
					done.Add(1)
				})
			}
			for done.Load() == 0 && row.turns(e).Waiting() < slow-parallel() {
				runtime.Gosched()
			}
			before := done.Load()
			d, err := e.Evaluate(context.Background(), request("quick"))
			if err != nil || d.Verdict != row.want {
				t.Errorf("the other sandbox: %v, %v", d.Verdict, err)
			}
			if n := done.Load() - before; n > int32(2*parallel()) {
				t.Errorf("%d of %d slow evaluations came before the other sandbox", n, slow)
			}
			wg.Wait()
		})
	}
}

// TestCopiesAreMadeWhenTheyAreWanted takes all copies, and gives them back.
func TestCopiesAreMadeWhenTheyAreWanted(t *testing.T) {
	made := 0
	p, err := newPool(3, func() (*compiled, error) {
		made++
		return &compiled{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var taken []*compiled
	for want := 1; want <= 3; want++ {
		c, err := p.take(t.Context(), &policy.Sandbox{Name: "a"})
		if err != nil || made != want {
			t.Fatalf("%d copies are made for %d, %v", made, want, err)
		}
		taken = append(taken, c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.take(ctx, &policy.Sandbox{Name: "a"}); err == nil {
		t.Error("there is a fourth copy")
	}
	for _, c := range taken {
		p.give(c)
	}
	if _, err := p.take(t.Context(), &policy.Sandbox{Name: "b"}); err != nil || made != 3 {
		t.Errorf("%d copies are made, %v", made, err)
	}
}

// TestACopyThatCannotBeMadeTakesNoTurn fails to make the second copy.
func TestACopyThatCannotBeMadeTakesNoTurn(t *testing.T) {
	made := 0
	p, err := newPool(2, func() (*compiled, error) {
		if made++; made > 1 {
			return nil, fmt.Errorf("no")
		}
		return &compiled{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.take(t.Context(), &policy.Sandbox{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.take(t.Context(), &policy.Sandbox{Name: "a"}); err == nil {
		t.Fatal("there is a second copy")
	}
	p.give(c)
	free := 0
	for p.turns.TakeNow() {
		free++
	}
	if free != 2 {
		t.Errorf("%d turns are free", free)
	}
}

func TestALargePolicyHasOneCopy(t *testing.T) {
	for size, want := range map[int]int{0: parallel(), 1000: parallel(), 1 << 20: parallel(), 1<<20 + 1: 1} {
		if got := copies(size); got != want {
			t.Errorf("%d bytes: %d copies, want %d", size, got, want)
		}
	}
}

// TestCopiesShareNothing looks ahead in all copies at once, for the race detector.
func TestCopiesShareNothing(t *testing.T) {
	sources := []Source{
		{Name: "egress.rego", Text: []byte(`package egress
allow contains {"rule": sprintf("r%d", [i])} if { some i, p in data.paths; path.matches(input.http.path, p); input.http.method in data.methods }
deny contains {"rule": "d", "reason": "no"} if { some kind in data.kinds; input.sandbox.kind == kind; not input.http.method in data.methods }`)},
		{Name: "data.json", Text: []byte(`{"paths": ["/a/**", "/b/**"], "methods": ["GET", "HEAD"], "kinds": ["docker", "run"]}`)},
	}
	e, err := Load(sources, Options{Cached: -1, Deadline: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := policy.Request{Sandbox: policy.Sandbox{Name: fmt.Sprint(i), Kind: "docker"}}
			for range 20 {
				if d, err := e.Evaluate(context.Background(), &r); err != nil || d.Verdict != policy.Inspect {
					t.Errorf("%+v, %v", d, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestPoliciesShareTheirTurns and leave a processor to the event loops, where there are several.
func TestPoliciesShareTheirTurns(t *testing.T) {
	taken := 0
	for evaluations.TakeNow() {
		taken++
	}
	defer func() {
		for range taken {
			evaluations.Give()
		}
	}()
	if want := max(1, min(runtime.GOMAXPROCS(0)-1, maxParallel)); taken != want {
		t.Errorf("%d evaluations run at once, want %d", taken, want)
	}
	for _, http := range []*policy.HTTPRequest{nil, {Method: "GET", Path: "/"}} {
		e := mustLoad(t, slowForOne, Options{Cached: -1})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if d, err := e.Evaluate(ctx, &policy.Request{Sandbox: policy.Sandbox{Name: "quick"}, HTTP: http}); err == nil {
			t.Errorf("a policy did not wait for the turn of another: %v", d.Verdict)
		}
	}
}
