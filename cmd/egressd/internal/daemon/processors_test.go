package daemon

import (
	"runtime"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/config"
	"github.com/egressd/egressd/policy"
)

func TestAProcessorIsSpareWhereTheLogIsSynced(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	for _, c := range []struct {
		durability, set string
		have, want      int
	}{
		{"disk", "", 2, 3},
		{"disk", "", 4, 4},
		{"disk", "", 1, 1},
		{"disk", "2", 2, 2},
		{"process", "", 2, 2},
	} {
		t.Setenv("GOMAXPROCS", c.set)
		runtime.GOMAXPROCS(c.have)
		d := &Daemon{Config: &config.Config{File: &policy.File{Audit: policy.Audit{Durability: c.durability}}}}
		d.spareProcessor()
		if got := runtime.GOMAXPROCS(0); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
