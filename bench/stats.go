//go:build linux

package main

import (
	"math"
	"slices"
)

// median returns the middle of values, the mean of the two middle ones where
// their number is even, and NaN where there are none. It does not reorder them.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// percentile returns the smallest element of sorted that at least the
// fraction p of all elements does not exceed, and 0 where there are none.
func percentile(sorted []uint32, p float64) uint32 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// A quotient is the median of ratios that were each taken within one round.
type quotient struct {
	Median, Min, Max float64
}

// ratios divides values by bases round by round. Rounds where either is
// missing or the base is 0 are left out; ok is false where none remains.
func ratios(values, bases []float64) (q quotient, ok bool) {
	var all []float64
	for i := range min(len(values), len(bases)) {
		if r := values[i] / bases[i]; !math.IsNaN(r) && !math.IsInf(r, 0) {
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		return q, false
	}
	return quotient{median(all), slices.Min(all), slices.Max(all)}, true
}
