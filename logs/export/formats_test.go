package export

import (
	"maps"
	"slices"
	"testing"

	"github.com/egressd/egressd/policy/file"
)

// TestThePolicyFileKnowsEachFormat compares the formats that the policy file accepts with the encoders.
func TestThePolicyFileKnowsEachFormat(t *testing.T) {
	want := slices.Sorted(maps.Keys(encoders))
	got := slices.DeleteFunc(slices.Sorted(slices.Values(file.SinkFormats)), func(name string) bool { return name == "json" })
	if !slices.Equal(got, want) {
		t.Errorf("the policy file accepts json and %v, and there are encoders for %v", got, want)
	}
}
