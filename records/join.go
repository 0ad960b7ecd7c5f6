package records

import (
	"cmp"
	"maps"
	"slices"

	"github.com/egressd/egressd/egress"
)

const (
	// OutcomeOpen is the outcome that a reader sees of a flow whose end is not
	// in the log: it is still open. No record holds it.
	OutcomeOpen = "open"

	// OutcomeCut is that of a flow that a later policy ended, or the end of
	// egressd itself. What passed until then was allowed.
	OutcomeCut = "cut"
)

// A Joiner puts the two records of a flow together as they come: the one that
// decided it and the one that ended it. It remembers only the flows that are
// open.
type Joiner struct {
	open map[string]*egress.Record

	// Records that are lent, as by [Scan], are cloned by settle before they are
	// gone, and what is joined of them is lent as well.
	lent   bool
	fresh  []string // flows that were opened since
	joined egress.Record
}

// Complete returns r with what the record that opened its flow knew: a record
// that ends a flow need not repeat where it went and why it was let through.
func (j *Joiner) Complete(r *egress.Record) *egress.Record {
	opened := j.open[r.Flow]
	if r.Kind != egress.KindClose || opened == nil {
		return r
	}
	joined := new(egress.Record)
	if j.lent {
		joined = &j.joined
	}
	*joined = *opened
	joined.Seq, joined.Time, joined.Kind = r.Seq, r.Time, r.Kind
	joined.Bytes, joined.Duration, joined.Outcome = r.Bytes, r.Duration, r.Outcome
	if r.Decision != nil && r.Outcome != OutcomeCut {
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
	if r.Note != "" {
		joined.Note = r.Note
	}
	return joined
}

// Follow takes note of what r opens and ends. It keeps r while its flow is open:
// who is lent records, see [Scan], uses [ScanJoined], or clones them.
func (j *Joiner) Follow(r *egress.Record) {
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
		if j.lent {
			j.fresh = append(j.fresh, r.Flow)
		}
	}
}

// settle makes the joiner's own what it was lent and still needs.
func (j *Joiner) settle() {
	for _, flow := range j.fresh {
		if r := j.open[flow]; r != nil {
			r = Clone(r)
			delete(j.open, flow) // whose text is lent, too
			j.open[r.Flow] = r
		}
	}
	j.fresh = j.fresh[:0]
}

func opensFlow(r *egress.Record) bool {
	return r.Flow != "" && r.Decision != nil && r.Decision.Action == "allow" &&
		(r.Kind == egress.KindOpen || r.Kind == egress.KindRequest)
}

// A Tally hands on each decision once, with what its flow came to.
type Tally struct {
	Emit   func(*egress.Record)
	joiner Joiner
}

// Add takes in the next record of the log.
func (t *Tally) Add(r *egress.Record) {
	earlier := t.joiner.open[r.Flow]
	switch {
	case r.Kind == egress.KindStart:
		t.Flush(OutcomeCut)
	case r.Kind == egress.KindClose:
		t.end(r, earlier)
	case IsLookup(r):
	case !opensFlow(r):
		t.Emit(r)
	case earlier != nil: // the next request of the same flow
		t.Emit(earlier)
	}
	t.joiner.Follow(r)
}

func (t *Tally) end(r, earlier *egress.Record) {
	if earlier != nil {
		whole := t.joiner.Complete(r)
		whole.Time, whole.Kind = earlier.Time, earlier.Kind
		t.Emit(whole)
	} else if r.Decision != nil && r.Dst != nil { // the log begins in the middle of the flow
		t.Emit(r)
	}
}

// Flush hands on the flows that were not seen to end, in their order.
func (t *Tally) Flush(outcome string) {
	bySeq := func(a, b *egress.Record) int { return cmp.Compare(a.Seq, b.Seq) }
	for _, r := range slices.SortedFunc(maps.Values(t.joiner.open), bySeq) {
		unended := *r
		unended.Outcome = outcome
		t.Emit(&unended)
	}
	clear(t.joiner.open)
}
