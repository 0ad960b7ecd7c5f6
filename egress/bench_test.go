package egress

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// BenchmarkOpen is one allowed flow from Open to Close with its two records,
// handed to the kernel and not synced.
func BenchmarkOpen(b *testing.B) { benchmarkOpen(b, opinion(allow)) }

func benchmarkOpen(b *testing.B, decides policy.Evaluator) {
	log, err := audit.Create(filepath.Join(b.TempDir(), "audit"), audit.Options{Durability: audit.Process})
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	everybody, err := sandbox.NewDirectory(nil)
	if err != nil {
		b.Fatal(err)
	}
	g := New(Config{Log: log, Sandboxes: everybody})
	if err := g.SetPolicy(context.Background(), policy.New(decides), "bench"); err != nil {
		b.Fatal(err)
	}
	dst, err := policy.ParseDestination("93.184.216.34:443")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		f, err := g.Open(context.Background(), peer, policy.Request{Via: policy.ViaConnect, Destination: dst})
		if err != nil {
			b.Fatal(err)
		}
		f.Close(End{Outcome: "closed"})
	}
}

// BenchmarkOpenUnderUsage is the same under a policy that looks at usage.
func BenchmarkOpenUnderUsage(b *testing.B) {
	benchmarkOpen(b, frugal(func(u policy.Usage) bool { return u.FlowsOpen < 5 }))
}
