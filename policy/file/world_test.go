package file

import (
	"context"
	"testing"

	"github.com/egressd/egressd/policy"
)

// asked is an evaluator made of a function.
type asked func(context.Context, *policy.Request) (policy.Decision, error)

func (v asked) Evaluate(ctx context.Context, r *policy.Request) (policy.Decision, error) {
	return v(ctx, r)
}

func answering(d policy.Decision) asked {
	return func(context.Context, *policy.Request) (policy.Decision, error) { return d, nil }
}

func requestTo(t *testing.T, hostport string) *policy.Request {
	t.Helper()
	dst, err := policy.ParseDestination(hostport)
	if err != nil {
		t.Fatal(err)
	}
	return &policy.Request{Via: policy.ViaConnect, Destination: dst}
}

func mustPatterns(t *testing.T, texts ...string) []policy.Pattern {
	t.Helper()
	patterns := make([]policy.Pattern, len(texts))
	for i, text := range texts {
		p, err := policy.ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		patterns[i] = p
	}
	return patterns
}
