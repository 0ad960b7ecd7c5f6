package waysin

import (
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestConformance runs every vector of testdata/conformance, each through
// every way in that can express it, with one egressd for each policy.
func TestConformance(t *testing.T) {
	all := world.Vectors(t)
	for _, name := range world.Policies() {
		t.Run(name, func(t *testing.T) {
			d := world.Start(t, world.WithNames(world.PolicyText(t, name)))
			before := d.Descriptors()
			for i := range all {
				if all[i].Policy == name {
					t.Run(all[i].Name(), func(t *testing.T) { conforms(t, d, &all[i]) })
				}
			}
			d.Healthy(t, before)
		})
	}
}

// conforms runs one vector.
func conforms(t *testing.T, d *world.Daemon, v *world.Vector) {
	switch {
	case v.Inside != "":
		for _, way := range world.InsideWays(v) {
			d.Try(t, v, way, "")
		}
	case v.Ask != nil || v.Wire != nil:
		putQuestions(t, d, v)
	case v.To == nil:
		d.Try(t, v, world.WayRaw, "")
	}
	for _, to := range v.To {
		for _, way := range world.WaysFor(v, to) {
			d.Try(t, v, way, to)
		}
	}
}
