package inspect

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// insideOf returns the vector as it is inside a tunnel to allowed.test, and
// whether it can be said there.
func insideOf(v *world.Vector) (world.Vector, bool) {
	if v.Policy != "P0" || !strings.HasPrefix(v.ID, "H1-") || v.ID == "H1-02" || len(v.Send) == 0 {
		return world.Vector{}, false
	}
	const base = "http://allowed.test"
	in := *v
	in.Policy, in.Inside, in.Send = "P0-inside", "allowed.test:443", nil
	for _, part := range v.Send {
		method, rest, _ := strings.Cut(part, base)
		if rest == "" || len(method) > len("OPTIONS  ") {
			return world.Vector{}, false
		}
		in.Send = append(in.Send, method+rest)
	}
	return in, true
}

// TestConformanceInside says inside an inspected tunnel what the vectors of
// group H1 say in clear: the same has to come of it.
func TestConformanceInside(t *testing.T) {
	d := world.Start(t, world.PolicyText(t, "P0-inside"))
	before := d.Descriptors()
	said := 0
	all := world.Vectors(t)
	for i := range all {
		if v, ok := insideOf(&all[i]); ok {
			said++
			t.Run(v.Name(), func(t *testing.T) { d.Try(t, &v, world.WayInside, "") })
		}
	}
	if said < 60 {
		t.Errorf("only %d vectors can be said inside", said)
	}
	d.Healthy(t, before)
}
