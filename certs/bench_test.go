package certs

import (
	"strconv"
	"testing"
)

// BenchmarkMint is the first leaf of a host. The goal is 0.16 ms.
func BenchmarkMint(b *testing.B) {
	a := create(b, b.TempDir())
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		if _, err := a.Leaf("h" + strconv.Itoa(n) + ".example"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCached is every leaf of a host but the first.
func BenchmarkCached(b *testing.B) {
	a := create(b, b.TempDir())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Leaf("api.example"); err != nil {
			b.Fatal(err)
		}
	}
}
