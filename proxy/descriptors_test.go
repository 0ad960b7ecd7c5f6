package proxy

import (
	"math"
	"testing"
)

func TestConnectionsWithinDescriptors(t *testing.T) {
	for _, row := range []struct {
		most        int
		descriptors uint64
		want        int
	}{
		{20_000, math.MaxUint64, 20_000}, // RLIM_INFINITY
		{20_000, 1 << 20, 20_000},
		{20_000, 1024, 320},
		{100, 1024, 100},
		{20_000, 256, 64},
		{20_000, 64, 4},
		{20_000, 3, 4},
		{2, 3, 2},
	} {
		if got := ConnectionsWithin(row.most, row.descriptors); got != row.want {
			t.Errorf("of %d connections %d are within %d descriptors, want %d", row.most, got, row.descriptors, row.want)
		}
	}
}
