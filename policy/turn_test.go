package policy

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// manyPaths is a policy with 300 rules for one host, and requests to it for a short and a long path.
func manyPaths(t *testing.T) (p *Policy, short, long *Request) {
	t.Helper()
	pattern, err := ParsePattern("api.test")
	if err != nil {
		t.Fatal(err)
	}
	lists := Lists{Layer: User}
	for i := range 300 {
		path, err := ParsePathPattern(fmt.Sprintf("/**/x%d/**", i))
		if err != nil {
			t.Fatal(err)
		}
		lists.Allow = append(lists.Allow, Rule{Pattern: pattern, Paths: []PathPattern{path}, ID: fmt.Sprint("allow", i)})
	}
	p = Assemble(Parts{Lists: lists, Inspection: true})
	to := func(path string) *Request {
		return &Request{Sandbox: Sandbox{Name: "default"}, Destination: Destination{Host: "api.test", Port: 443}, Protocol: ProtocolHTTP, HTTP: &HTTPRequest{Method: "GET", Path: path, Authority: "api.test:443"}}
	}
	return p, to("/x299/a"), to("/x299" + strings.Repeat("/a", 2000))
}

// TestLongEvaluationsTakeTurns: the turns are all taken, and only a long evaluation waits.
func TestLongEvaluationsTakeTurns(t *testing.T) {
	p, short, long := manyPaths(t)
	for range max(1, runtime.GOMAXPROCS(0)-1) {
		if err := comparing.Take(t.Context(), "two", "two"); err != nil {
			t.Fatal(err)
		}
		defer comparing.Give()
	}
	if d := p.Decide(t.Context(), short); d.Verdict != Allow {
		t.Errorf("a short path: %v %s", d.Verdict, d.Reason)
	}
	ctx, cancel := context.WithCancel(t.Context())
	decided := make(chan Decision, 1)
	go func() { decided <- p.Decide(ctx, long) }()
	for comparing.Waiting() == 0 {
		if len(decided) > 0 {
			t.Fatal("a long evaluation takes no turn")
		}
		runtime.Gosched()
	}
	cancel()
	if d := <-decided; d.Verdict != Deny || d.Class != PolicyError {
		t.Errorf("its wait ended: %v %s", d.Verdict, d.Class)
	}
}

// TestALongEvaluationHasATurn that nobody else wants.
func TestALongEvaluationHasATurn(t *testing.T) {
	p, _, long := manyPaths(t)
	if d := p.Decide(t.Context(), long); d.Verdict != Allow {
		t.Errorf("%v %s", d.Verdict, d.Reason)
	}
	if comparing.Waiting() > 0 || !comparing.TakeNow() {
		t.Fatal("it did not give its turn back")
	}
	comparing.Give()
}
