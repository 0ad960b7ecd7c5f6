package records

import (
	"fmt"
	"testing"
)

func TestOverviewIsBounded(t *testing.T) {
	var o Overview
	for i := range MaxGroups + 500 {
		o.Add(opened("F", fmt.Sprintf("h%d.test", i), "deny"))
	}
	if len(o.groups) != MaxGroups+1 {
		t.Errorf("%d groups are remembered, want %d", len(o.groups), MaxGroups+1)
	}
	if rest := o.Section("deny")[0]; rest.Destination != "…" || rest.Count != 500 {
		t.Errorf("the rest is %d of %q want 500 of …", rest.Count, rest.Destination)
	}
}
