package rego_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/egressd/egressd/policy"
)

// BenchmarkDenied compares an allowed request with one that its path or its method keeps out. Each request
// has a path of its own, so that none is in the cache, while the destination is known.
func BenchmarkDenied(b *testing.B) {
	e := load(b, gitHub)
	for _, row := range []struct {
		name, method, path string
		want               policy.Verdict
	}{
		{"allowed", "GET", "/repos/acme/%d", policy.Allow},
		{"path", "GET", "/orgs/acme/%d", policy.Abstain},
		{"method", "PATCH", "/repos/acme/%d", policy.Abstain},
	} {
		b.Run(row.name, func(b *testing.B) {
			r, n := sends(b, "api.github.com:443", row.method, "/"), 0
			for b.Loop() {
				head := *r.HTTP
				r.HTTP, head.Path = &head, fmt.Sprintf(row.path, n)
				if d, err := e.Evaluate(context.Background(), &r); err != nil || d.Verdict != row.want {
					b.Fatalf("%+v, %v", d, err)
				}
				n++
			}
		})
	}
}
