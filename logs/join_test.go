package logs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

func opened(flow, host, action string) *record.Record {
	r := &record.Record{
		Kind: record.KindOpen, Flow: flow, Sandbox: "ci", Via: "connect", Time: filterNow,
		Dst:      &record.Destination{Host: host, Port: 443},
		Decision: &record.Decision{Action: action, Rule: "r1", Layer: "user"},
	}
	if action == "deny" {
		r.Decision = &record.Decision{Action: "deny", Rule: "default", Layer: "builtin", Class: "default-deny"}
	}
	return r
}

func closed(of *record.Record, up, down int64, outcome record.Outcome) *record.Record {
	r := *of
	r.Kind, r.Bytes, r.Outcome = record.KindClose, &record.Bytes{Up: up, Down: down}, outcome
	return &r
}

// tallied is what a tally makes of a log, one line a decision.
func tallied(records ...*record.Record) []string {
	var lines []string
	t := DecisionJoiner{Emit: func(r *record.Record) {
		traffic := "–"
		if r.Bytes != nil {
			traffic = fmt.Sprintf("%d/%d", r.Bytes.Up, r.Bytes.Down)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s", r.Flow, r.Kind, r.Decision.Action, traffic, r.Outcome))
	}}
	for _, r := range records {
		t.Add(r)
	}
	t.Flush(OutcomeOpen)
	return lines
}

func TestTallyCountsEachDecisionOnce(t *testing.T) {
	a, b := opened("A", "a.test", "allow"), opened("B", "b.test", "deny")
	mismatch := closed(a, 0, 0, "name-mismatch")
	mismatch.Decision = &record.Decision{Action: "deny", Class: "name-mismatch"}
	cut := closed(a, 7, 8, "cut")
	cut.Decision = mismatch.Decision
	request := opened("A", "a.test", "allow")
	request.Kind = record.KindRequest
	lookup := opened("A", "a.test", "allow")
	lookup.Kind, lookup.DNS = record.KindDNS, &record.DNS{Name: "a.test"}
	query := opened("Q", "q.test", "allow")
	query.Kind, query.Via = record.KindDNS, "dns"
	for _, row := range []struct {
		name    string
		records []*record.Record
		want    string
	}{
		{"an end gives its bytes to the decision", []*record.Record{a, b, closed(a, 1, 2, "closed")}, "B open deny – ; A open allow 1/2 closed"},
		{"what was refused after it was opened is a refusal", []*record.Record{a, mismatch}, "A open deny 0/0 name-mismatch"},
		{"what a new policy cut was allowed until then", []*record.Record{a, cut}, "A open allow 7/8 cut"},
		{"what has no end is open", []*record.Record{a}, "A open allow – open"},
		{"a restart ends what was open", []*record.Record{a, {Kind: record.KindStart}, opened("C", "c.test", "allow")}, "A open allow – cut; C open allow – open"},
		{"each request of a flow counts, and the last has the bytes", []*record.Record{request, request, closed(a, 3, 4, "closed")}, "A request allow – ; A request allow 3/4 closed"},
		{"an end without its beginning counts where it says all", []*record.Record{closed(a, 1, 1, "closed")}, "A close allow 1/1 closed"},
		{"a name that egressd looked up itself is a part of its flow", []*record.Record{lookup, a, closed(a, 5, 6, "closed")}, "A open allow 5/6 closed"},
		{"a name that a sandbox looked up counts", []*record.Record{query}, "Q dns allow – "},
	} {
		if got := strings.Join(tallied(row.records...), "; "); got != row.want {
			t.Errorf("%s:\n got %s\nwant %s", row.name, got, row.want)
		}
	}
}

func TestJoinerForgetsFlowsThatEnd(t *testing.T) {
	var j Joiner
	for i := range 1000 {
		r := opened(fmt.Sprint(i), "a.test", "allow")
		j.Follow(r)
		j.Follow(closed(r, 0, 0, "closed"))
	}
	if len(j.open) != 0 {
		t.Errorf("%d flows are remembered after their end", len(j.open))
	}
}
