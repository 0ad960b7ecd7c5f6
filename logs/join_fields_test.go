package logs

import (
	"reflect"
	"testing"

	"github.com/egressd/egressd/internal/fieldtest"
	"github.com/egressd/egressd/record"
)

// TestAJoinedRecordHoldsBoth changes each field of the record that ends a flow. The joined one
// says it, but for what does not change while a flow is open.
func TestAJoinedRecordHoldsBoth(t *testing.T) {
	opens := map[string]bool{
		"V": true, "Flow": true, "Count": true, "Names": true, "Shared": true, "Sandbox": true, "Via": true, "Src": true, "Raw": true, "Container": true,
		"DNS": true, "Body": true, "Git": true, "Process": true, "Signal": true, "Log": true,
	}
	ends := func() *record.Record {
		return &record.Record{Kind: record.KindClose, Flow: "A", Outcome: "closed", Note: "n"}
	}
	for name, r := range fieldtest.Each(ends) {
		var j Joiner
		j.Follow(opened("A", "a.test", "allow"))
		if name == "Kind" || name == "Flow" {
			continue // then it ends nothing, or another flow
		}
		got := reflect.ValueOf(j.Complete(r)).Elem().FieldByName(name).Interface()
		if says := reflect.DeepEqual(got, reflect.ValueOf(r).Elem().FieldByName(name).Interface()); says == opens[name] {
			t.Errorf("%s: the joined record has it from the end: %t", name, says)
		}
	}
}
