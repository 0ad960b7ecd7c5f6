package waysin

import (
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestConformance runs every vector of testdata/conformance, each through
// every way in that can express it, with one egressd for each policy.
func TestConformance(t *testing.T) {
	all, tried := world.Vectors(t), map[string]int{}
	for _, name := range world.Policies() {
		t.Run(name, func(t *testing.T) {
			d := world.Start(t, world.WithNames(world.PolicyText(t, name)))
			before := d.Descriptors()
			for i := range all {
				if all[i].Policy == name {
					t.Run(all[i].Name(), func(t *testing.T) { conforms(t, d, &all[i], tried) })
				}
			}
			d.Healthy(t, before)
		})
	}
	count(t, tried, world.WayConnect, world.WayHTTP, world.WaySOCKS, world.WaySOCKSIP, world.WayRaw, world.WayInside, world.WayInsideH2, world.WayNames, world.WayNamesTCP)
}

// TestConformanceOverTLS runs the vectors about the proxy through its TLS listener, each with its first destination.
func TestConformanceOverTLS(t *testing.T) {
	all, tried := world.Vectors(t), map[string]int{}
	for _, name := range world.Policies() {
		t.Run(name, func(t *testing.T) {
			d := world.Start(t, world.WithTLS(world.PolicyText(t, name)))
			d.OverTLS = true
			before := d.Descriptors()
			for i := range all {
				if v := all[i]; v.Policy == name && v.Ask == nil && v.Wire == nil {
					v.To = v.To[:min(1, len(v.To))]
					t.Run(v.Name(), func(t *testing.T) { conforms(t, d, &v, tried) })
				}
			}
			d.Healthy(t, before)
		})
	}
	count(t, tried, world.WayConnect, world.WayHTTP, world.WaySOCKS, world.WaySOCKSIP, world.WayRaw, world.WayInside, world.WayInsideH2)
}

// count prints, with -v, how many cases went through each way in. Each of these has to have some.
func count(t *testing.T, tried map[string]int, ways ...string) {
	t.Helper()
	t.Logf("cases by way in: %v", tried)
	for _, way := range ways {
		if tried[way] == 0 {
			t.Errorf("no case goes through %s", way)
		}
	}
}

// conforms runs one vector, and counts its cases by way in.
func conforms(t *testing.T, d *world.Daemon, v *world.Vector, tried map[string]int) {
	try := func(way, to string) {
		tried[way]++
		d.Try(t, v, way, to)
	}
	switch {
	case v.Inside != "":
		for _, way := range world.InsideWays(v) {
			try(way, "")
		}
	case v.Ask != nil || v.Wire != nil:
		putQuestions(t, d, v)
		tried[world.WayNames] += len(v.Ask) + len(v.Wire)
		tried[world.WayNamesTCP] += len(v.Ask) + len(v.Wire)
	case v.To == nil:
		try(world.WayRaw, "")
	}
	for _, to := range v.To {
		for _, way := range world.WaysFor(v, to) {
			try(way, to)
		}
	}
}
