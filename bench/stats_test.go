//go:build linux

package main

import (
	"math"
	"testing"
)

func TestMedian(t *testing.T) {
	values := []float64{9, 1, 5}
	if got := median(values); got != 5 {
		t.Errorf("median of three is %v", got)
	}
	if values[0] != 9 {
		t.Error("median reordered its argument")
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median of four is %v", got)
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
}

func TestPercentile(t *testing.T) {
	sorted := []uint32{10, 20, 30, 40}
	for p, want := range map[float64]uint32{0: 10, 0.25: 10, 0.26: 20, 0.5: 20, 0.99: 40, 1: 40} {
		if got := percentile(sorted, p); got != want {
			t.Errorf("percentile %v is %d, want %d", p, got, want)
		}
	}
	if got := percentile(nil, 0.5); got != 0 {
		t.Errorf("percentile of nothing is %d", got)
	}
}

func TestRatiosAreTakenWithinARound(t *testing.T) {
	got, ok := ratios([]float64{10, 30, 100}, []float64{20, 40, 100})
	if want := (quotient{0.75, 0.5, 1}); !ok || got != want {
		t.Errorf("ratios are %v, want %v", got, want)
	}
}

func TestRatiosWithoutABaseAreLeftOut(t *testing.T) {
	got, ok := ratios([]float64{1, 1, 1, math.NaN()}, []float64{0, 4, math.NaN(), 1})
	if want := (quotient{0.25, 0.25, 0.25}); !ok || got != want {
		t.Errorf("ratios are %v, want %v", got, want)
	}
	if _, ok := ratios([]float64{1}, []float64{0}); ok {
		t.Error("a ratio to nothing is there")
	}
}
