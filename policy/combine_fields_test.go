package policy

import (
	"reflect"
	"testing"

	"github.com/egressd/egressd/internal/fieldtest"
)

// TestCombineDoesNotForgetAField changes each field of one of two opinions that agree. Whichever
// comes first, the result holds the same, but for the words of the first one.
func TestCombineDoesNotForgetAField(t *testing.T) {
	words := map[string]bool{"Class": true, "Rule": true, "Layer": true, "Source": true, "Reason": true, "Ref": true, "Cause": true, "AddressClass": true, "Policy": true, "Shadow": true}
	allow := func() *Decision {
		return &Decision{Verdict: Allow, MaxBytesUp: 100, BudgetRule: "b", BudgetLayer: User}
	}
	for name, d := range fieldtest.Each(allow) {
		if words[name] {
			continue
		}
		if name == "BudgetRule" || name == "BudgetLayer" {
			d.MaxBytesUp-- // they belong to the smaller budget
		}
		one, other := combine(*d, *allow()), combine(*allow(), *d)
		if !reflect.DeepEqual(one, other) {
			t.Errorf("%s: first %+v, last %+v", name, one, other)
		}
	}
}
