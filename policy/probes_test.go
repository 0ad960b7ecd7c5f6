package policy

import (
	"slices"
	"testing"
)

// The probes of a name cover every port range that two lists tell apart, 443 and 80 first.
func TestTheProbesOfAName(t *testing.T) {
	allow := mustRules(t, "a.test:443-500", "*.test:22")
	allow[1].Methods = []string{"GET"}
	p := Assemble(Parts{Lists: Lists{Layer: User, Allow: allow, Deny: mustRules(t, "a.test")}, Inspection: true})
	got := p.probes(t.Context(), &Request{Destination: Destination{Host: "a.test"}})
	if want := []uint16{443, 80, 1, 22, 23, 443, 501}; !slices.Equal(got.Ports, want) {
		t.Errorf("%v, want %v", got.Ports, want)
	}
	if want := []string{"GET", "HEAD", "any other"}; !slices.Equal(got.Methods, want) {
		t.Errorf("%v, want %v", got.Methods, want)
	}
}
