package main

import "github.com/egressd/egressd/egress"

const (
	// outcomeOpen is the outcome that a reader sees of a flow whose end is not
	// in the log: it is still open. No record holds it.
	outcomeOpen = "open"

	// outcomeCut is that of a flow that a later policy ended, or the end of
	// egressd itself. What passed until then was allowed.
	outcomeCut = "cut"
)

// A joiner puts the two records of a flow together as they come: the one that
// decided it and the one that ended it. It remembers only the flows that are
// open.
type joiner struct {
	open map[string]*egress.Record
}

// complete returns r with what the record that opened its flow knew: a record
// that ends a flow need not repeat where it went and why it was let through.
func (j *joiner) complete(r *egress.Record) *egress.Record {
	opened := j.open[r.Flow]
	if r.Kind != egress.KindClose || opened == nil {
		return r
	}
	joined := *opened
	joined.Seq, joined.Time, joined.Kind = r.Seq, r.Time, r.Kind
	joined.Bytes, joined.Duration, joined.Outcome = r.Bytes, r.Duration, r.Outcome
	if r.Decision != nil && r.Outcome != outcomeCut {
		joined.Decision = r.Decision
	}
	if r.Shadow != nil {
		joined.Shadow = r.Shadow
	}
	if r.Dst != nil {
		joined.Dst = r.Dst
	}
	if r.HTTP != nil {
		joined.HTTP = r.HTTP
	}
	if r.TLS != nil {
		joined.TLS = r.TLS
	}
	return &joined
}

// follow takes note of what r opens and ends.
func (j *joiner) follow(r *egress.Record) {
	switch {
	case r.Kind == egress.KindStart: // what was open then ended with that process
		clear(j.open)
	case r.Kind == egress.KindClose:
		delete(j.open, r.Flow)
	case opensFlow(r):
		if j.open == nil {
			j.open = map[string]*egress.Record{}
		}
		j.open[r.Flow] = r
	}
}

func opensFlow(r *egress.Record) bool {
	return r.Flow != "" && r.Decision != nil && r.Decision.Action == "allow" &&
		(r.Kind == egress.KindOpen || r.Kind == egress.KindRequest)
}

// A tally hands on each decision once, with what its flow came to.
type tally struct {
	joiner joiner
	emit   func(*egress.Record)
}

func (t *tally) add(r *egress.Record) {
	earlier := t.joiner.open[r.Flow]
	switch {
	case r.Kind == egress.KindStart:
		t.flush(outcomeCut)
	case r.Kind == egress.KindClose:
		t.end(r, earlier)
	case isLookup(r):
	case !opensFlow(r):
		t.emit(r)
	case earlier != nil: // the next request of the same flow
		t.emit(earlier)
	}
	t.joiner.follow(r)
}

func (t *tally) end(r, earlier *egress.Record) {
	if earlier != nil {
		whole := *t.joiner.complete(r)
		whole.Time, whole.Kind = earlier.Time, earlier.Kind
		t.emit(&whole)
	} else if r.Decision != nil && r.Dst != nil { // the log begins in the middle of the flow
		t.emit(r)
	}
}

// flush hands on the flows that were not seen to end.
func (t *tally) flush(outcome string) {
	for _, r := range t.joiner.open {
		unended := *r
		unended.Outcome = outcome
		t.emit(&unended)
	}
	clear(t.joiner.open)
}
