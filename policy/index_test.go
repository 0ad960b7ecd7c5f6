package policy

import (
	"fmt"
	"net/netip"
	"testing"
)

// BenchmarkFindOneLabel decides by one of 10,000 patterns of one parent.
func BenchmarkFindOneLabel(b *testing.B) {
	patterns := make([]Pattern, 10_000)
	for i := range patterns {
		patterns[i] = mustPattern(b, fmt.Sprintf("prod-%d-*.example.com", i))
	}
	ix := indexOf(patterns)
	b.ReportAllocs()
	for b.Loop() {
		if ix.find("prod-7777-eu-west.example.com", netip.Addr{}, 443, "") == nil {
			b.Fatal("it is not found")
		}
	}
}
