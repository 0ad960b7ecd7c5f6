package e2e

import (
	"encoding/hex"
	"slices"
	"strings"
)

// statuses checks an exchange of raw HTTP.
func (j *judgement) statuses() {
	var got []int
	for i := range j.answers {
		got = append(got, j.answers[i].status)
	}
	if !slices.Equal(got, j.Status) {
		j.wrong("the statuses are %d, want %d (%v)", got, j.Status, j.err)
		return
	}
	refusals := 0
	for i := range j.answers {
		if a := &j.answers[i]; a.header.Get("X-Egressd-Id") != "" {
			refusals++
			j.refusal(a)
		}
	}
	last := &j.answers[len(j.answers)-1]
	if !strings.Contains(last.body, j.Body) {
		j.wrong("the last body is %q, want %q in it", last.body, j.Body)
	}
	if j.closed == j.Stays {
		j.wrong("closed is %v, want %v (%v)", j.closed, !j.Stays, j.err)
	}
	if j.data != "" {
		j.wrong("more came than the answers: %q", j.data)
	}
	j.rawTraffic()
	j.rawRecords(refusals)
}

func (j *judgement) rawTraffic() {
	if j.Passes == 0 {
		j.silence()
	} else {
		j.reached([]string{allowedIPv4, allowedIPv6})
	}
	var all strings.Builder
	for _, a := range j.arrived {
		all.WriteString(a.received)
	}
	for _, text := range j.Holds {
		if !strings.Contains(all.String(), text) {
			j.wrong("upstream did not receive %q: %q", text, all.String())
		}
	}
	for _, text := range j.Lacks {
		if strings.Contains(strings.ToLower(all.String()), strings.ToLower(text)) {
			j.wrong("upstream received %q: %q", text, all.String())
		}
	}
}

// rawRecords checks that each refusal and each request that passed has one
// record.
func (j *judgement) rawRecords(refusals int) {
	allowed, denied := 0, 0
	for _, r := range j.decisions() {
		switch r.Decision.Action {
		case "allow":
			allowed++
		default:
			denied++
			j.refusalRecord(&r, nil)
		}
	}
	if allowed != j.Passes || denied != refusals {
		j.wrong("%d allowances and %d refusals are recorded, want %d and %d: %+v", allowed, denied, j.Passes, refusals, j.records)
	}
}

// reply checks an exchange of raw bytes that are not HTTP.
func (j *judgement) reply() {
	j.silence()
	if got := hex.EncodeToString([]byte(j.data)); !strings.HasPrefix(got, *j.Reply) {
		j.wrong("the reply is %s, want %s", got, *j.Reply)
	}
	if !j.closed {
		j.wrong("the connection stayed open")
	}
	if d := j.decisions(); len(d) != 1 {
		j.wrong("%d decisions are recorded, want 1: %+v", len(d), d)
	} else {
		j.refusalRecord(&d[0], nil)
	}
}
