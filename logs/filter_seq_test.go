package logs

import (
	"testing"

	"github.com/egressd/egressd/record"
)

// TestARecordNumberFindsItsRequest joins the two records of a flow, of which the joined one has the number of the last, and looks for the
// request by each.
func TestARecordNumberFindsItsRequest(t *testing.T) {
	log := []*record.Record{
		{Seq: 7, Kind: record.KindStart},
		{Seq: 8, Kind: record.KindOpen, Flow: "01KB6ZQ4SZ", Decision: &record.Decision{Action: "allow"}, Dst: &record.Destination{Host: "a.test"}},
		{Seq: 9, Kind: record.KindOpen, Flow: "01KB6ZQ4T0", Decision: &record.Decision{Action: "allow"}, Dst: &record.Destination{Host: "b.test"}},
		{Seq: 10, Kind: record.KindClose, Flow: "01KB6ZQ4SZ", Bytes: &record.Bytes{}},
	}
	for word, want := range map[string]string{"seq:8": "a.test ", "seq:10": "a.test ", "seq:9": "b.test ", "seq:7": "", "seq:11": "", "seq:7..9": "a.test b.test ", "-seq:10": "b.test "} {
		f, err := ParseFilter([]string{word}, filterNow)
		if err != nil {
			t.Fatal(err)
		}
		err = f.Resolve(func(from int64, do func(*record.Record) bool) error {
			for _, r := range log {
				if r.Seq >= from && !do(r) {
					break
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		joined := DecisionJoiner{Emit: func(r *record.Record) {
			if Decides(r) && f.Match(r) {
				got += Host(r) + " "
			}
		}}
		for _, r := range log {
			joined.Add(r.Clone())
		}
		joined.Flush(OutcomeOpen)
		if got != want {
			t.Errorf("%s finds %q, want %q", word, got, want)
		}
	}
}
