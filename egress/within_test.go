package egress

import (
	"testing"
	"time"
)

func TestThePartOfAHistogramThatKeptABound(t *testing.T) {
	h := Histogram{Bounds: []time.Duration{1, 10, 100}, Below: []int64{50, 98, 99}, Count: 100}
	for part, want := range map[float64]time.Duration{0.5: 1, 0.95: 10, 0.99: 100, 1: 0} {
		if got := h.Within(part); got != want {
			t.Errorf("%v of all within %v, not %v", part, got, want)
		}
	}
	if got := (Histogram{Bounds: h.Bounds, Below: []int64{0, 0, 0}}).Within(0.5); got != 0 {
		t.Errorf("none within %v", got)
	}
}
