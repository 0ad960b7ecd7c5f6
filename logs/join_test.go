package logs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/egressd/egressd/egress"
)

func opened(flow, host, action string) *egress.Record {
	r := &egress.Record{
		Kind: egress.KindOpen, Flow: flow, Sandbox: "ci", Via: "connect", Time: filterNow,
		Dst:      &egress.RecordDst{Host: host, Port: 443},
		Decision: &egress.RecordDecision{Action: action, Rule: "r1", Layer: "user"},
	}
	if action == "deny" {
		r.Decision = &egress.RecordDecision{Action: "deny", Rule: "default", Layer: "builtin", Class: "default-deny"}
	}
	return r
}

func closed(of *egress.Record, up, down int64, outcome string) *egress.Record {
	r := *of
	r.Kind, r.Bytes, r.Outcome = egress.KindClose, &egress.RecordBytes{Up: up, Down: down}, outcome
	return &r
}

// tallied is what a tally makes of a log, one line a decision.
func tallied(records ...*egress.Record) []string {
	var lines []string
	t := Tally{Emit: func(r *egress.Record) {
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
	mismatch.Decision = &egress.RecordDecision{Action: "deny", Class: "name-mismatch"}
	cut := closed(a, 7, 8, "cut")
	cut.Decision = mismatch.Decision
	request := opened("A", "a.test", "allow")
	request.Kind = egress.KindRequest
	lookup := opened("A", "a.test", "allow")
	lookup.Kind, lookup.DNS = egress.KindDNS, &egress.RecordDNS{Name: "a.test"}
	query := opened("Q", "q.test", "allow")
	query.Kind, query.Via = egress.KindDNS, "dns"
	for _, row := range []struct {
		name    string
		records []*egress.Record
		want    string
	}{
		{"an end gives its bytes to the decision", []*egress.Record{a, b, closed(a, 1, 2, "closed")}, "B open deny – ; A open allow 1/2 closed"},
		{"what was refused after it was opened is a refusal", []*egress.Record{a, mismatch}, "A open deny 0/0 name-mismatch"},
		{"what a new policy cut was allowed until then", []*egress.Record{a, cut}, "A open allow 7/8 cut"},
		{"what has no end is open", []*egress.Record{a}, "A open allow – open"},
		{"a restart ends what was open", []*egress.Record{a, {Kind: egress.KindStart}, opened("C", "c.test", "allow")}, "A open allow – cut; C open allow – open"},
		{"each request of a flow counts, and the last has the bytes", []*egress.Record{request, request, closed(a, 3, 4, "closed")}, "A request allow – ; A request allow 3/4 closed"},
		{"an end without its beginning counts where it says all", []*egress.Record{closed(a, 1, 1, "closed")}, "A close allow 1/1 closed"},
		{"a name that egressd looked up itself is a part of its flow", []*egress.Record{lookup, a, closed(a, 5, 6, "closed")}, "A open allow 5/6 closed"},
		{"a name that a sandbox looked up counts", []*egress.Record{query}, "Q dns allow – "},
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
