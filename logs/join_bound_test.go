package logs

import (
	"fmt"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestFlowsThatNeverEndAreBounded has ever new flows be opened and none end, and then
// all of them end.
func TestFlowsThatNeverEndAreBounded(t *testing.T) {
	const n, most = 5000, 100_000 // a hundred flows or so
	for _, borrows := range []bool{false, true} {
		outcomes, largest := map[string][]string{}, 0
		tally := DecisionJoiner{Emit: func(r *record.Record) { outcomes[r.Flow] = append(outcomes[r.Flow], string(r.Outcome)) }}
		tally.joiner.max, tally.joiner.borrows = most, borrows
		add := func(i int, r *record.Record) {
			r.Seq, r.Time, r.Flow = int64(i), time.Unix(int64(i), 0), fmt.Sprint("F", i%n)
			tally.Add(r)
			if i%64 == 63 {
				tally.joiner.retain()
			}
			if tally.joiner.total > most || len(tally.joiner.size) > len(tally.joiner.open) {
				t.Fatalf("%d bytes in %d of %d flows are held", tally.joiner.total, len(tally.joiner.size), len(tally.joiner.open))
			}
			largest = max(largest, len(tally.joiner.open))
		}
		decision := &record.Decision{Action: "allow", Rule: "r"}
		dst := &record.Destination{Host: "a.test", Port: 443}
		for i := range n {
			add(i, &record.Record{Kind: record.KindOpen, Dst: dst, Decision: decision})
		}
		if largest > 300 {
			t.Errorf("%d flows are remembered", largest)
		}
		for flow, all := range outcomes {
			if len(all) != 1 || all[0] != string(OutcomeOpen) {
				t.Fatalf("%s was handed on as %q", flow, all)
			}
		}
		if len(outcomes)+len(tally.joiner.open) != n {
			t.Errorf("%d flows are handed on and %d remembered, of %d", len(outcomes), len(tally.joiner.open), n)
		}
		for i := range n {
			add(n+i, &record.Record{Kind: record.KindClose, Dst: dst, Decision: decision, Outcome: "closed"})
		}
		for flow, all := range outcomes {
			if all[len(all)-1] != "closed" {
				t.Fatalf("%s ended as %q", flow, all)
			}
		}
		if tally.joiner.total != 0 || len(tally.joiner.open)+len(tally.joiner.size) != 0 {
			t.Errorf("%d bytes in %d flows stay", tally.joiner.total, len(tally.joiner.size))
		}
	}
}
