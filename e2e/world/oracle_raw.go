package world

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// statuses checks an exchange of raw HTTP.
func (j *judgement) statuses() {
	var got []int
	for i := range j.Answers {
		got = append(got, j.Answers[i].Status)
	}
	if !slices.Equal(got, j.Status) {
		j.wrong("the statuses are %d, want %d (%v)", got, j.Status, j.Err)
		return
	}
	refusals := 0
	for i := range j.Answers {
		if a := &j.Answers[i]; a.Header.Get("X-Egressd-Id") != "" {
			refusals++
			j.refusal(a)
		}
	}
	last := &j.Answers[len(j.Answers)-1]
	if !strings.Contains(last.Body, j.Body) {
		j.wrong("the last body is %q, want %q in it", last.Body, j.Body)
	}
	for i := range j.Answers {
		if a := &j.Answers[i]; strings.Contains(fmt.Sprint(a.Header, a.Body), RealSecret) {
			j.wrong("an answer holds the credential: %v %q", a.Header, a.Body)
		}
	}
	if j.Way != WayInsideH2 && j.closed == j.Stays {
		j.wrong("closed is %v, want %v (%v)", j.closed, !j.Stays, j.Err)
	}
	if j.Data != "" {
		j.wrong("more came than the answers: %q", j.Data)
	}
	j.rawTraffic()
	j.rawRecords(refusals)
}

func (j *judgement) rawTraffic() {
	if j.Passes == 0 && !j.within() {
		j.silence()
	} else {
		j.reached(append([]string{AllowedIPv4, AllowedIPv6}, j.Dials...))
	}
	all := j.upstream()
	if j.Passes == 0 && all != "" {
		j.wrong("upstream received %q", all)
	}
	for _, text := range j.Holds {
		if !strings.Contains(all, text) {
			j.wrong("upstream did not receive %q: %q", text, all)
		}
	}
	for _, text := range j.Lacks {
		if strings.Contains(strings.ToLower(all), strings.ToLower(text)) {
			j.wrong("upstream received %q: %q", text, all)
		}
	}
}

// within reports whether the case took place inside an inspected tunnel.
func (j *judgement) within() bool { return j.Way == WayInside || j.Way == WayInsideH2 }

// upstream is what the far host received: of a tunnel, what was inside TLS.
func (j *judgement) upstream() string {
	if j.within() {
		return j.Heard
	}
	var all strings.Builder
	for _, a := range j.Arrived {
		all.WriteString(a.Received)
	}
	return all.String()
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
	passes := j.Passes
	if j.within() {
		passes++ // the tunnel
	}
	if j.within() {
		j.inspected()
	}
	if allowed != passes || denied+j.unrecorded() != refusals {
		j.wrong("%d allowances and %d refusals are recorded, want %d and %d: %+v", allowed, denied, passes, refusals, j.Records)
	}
}

// unrecorded counts the refusals that end a request which was allowed: its
// close record says so.
func (j *judgement) unrecorded() (n int) {
	for _, r := range j.Records {
		if r.Kind == record.KindClose && r.Outcome == record.Outcome(policy.ResponseRefused) {
			n++
		}
	}
	return n
}

// inspected checks that the records of requests say that TLS ended here.
func (j *judgement) inspected() {
	for _, r := range j.Records {
		if r.Kind == record.KindRequest && (r.TLS == nil || !r.TLS.Inspected) {
			j.wrong("the record of a request does not say that it was inspected: %+v", r)
		}
	}
}

// reply checks an exchange of raw bytes that are not HTTP.
func (j *judgement) reply() {
	j.silence()
	if got := hex.EncodeToString([]byte(j.Data)); !strings.HasPrefix(got, *j.Reply) {
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
