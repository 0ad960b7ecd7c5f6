package e2e

import (
	"testing"
)

// TestConformance runs every vector of testdata/conformance, each through
// every way in that can express it, with one egressd for each policy.
func TestConformance(t *testing.T) {
	all := vectors(t)
	for _, name := range policies() {
		t.Run(name, func(t *testing.T) {
			d := start(t, withNames(policyText(t, name)))
			before := d.descriptors()
			for i := range all {
				if all[i].Policy == name {
					t.Run(all[i].name(), func(t *testing.T) { d.conforms(t, &all[i]) })
				}
			}
			d.healthy(t, before)
		})
	}
}

// conforms runs one vector.
func (d *daemon) conforms(t *testing.T, v *vector) {
	switch {
	case v.Inside != "":
		for _, way := range insideWays(v) {
			d.try(t, v, way, "")
		}
	case v.Ask != nil || v.Wire != nil:
		d.asks(t, v)
	case v.To == nil:
		d.try(t, v, wayRaw, "")
	}
	for _, to := range v.To {
		for _, way := range waysFor(v, to) {
			d.try(t, v, way, to)
		}
	}
}
