package logs

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

// mostOpen bounds the memory for flows that are open, in bytes: some 35,000 of them.
// Where there are more, and limits.connections is 20,000 by default, half are let go,
// those that were opened first.
const mostOpen = 32 << 20

// A Joiner puts the two records of a flow together as they come: the one that
// decided it and the one that ended it. It remembers only the flows that are
// open, as far as there is room, see [mostOpen]: the end of one that it has let go is
// what its own record says.
type Joiner struct {
	open map[string]*egress.Record
	kept map[string]int       // what those that are the joiner's own weigh
	held int                  // all of them
	most int                  // [mostOpen] where it is 0
	drop func(*egress.Record) // is handed each that is let go; may be nil

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
		j.clear()
	case r.Kind == egress.KindClose:
		j.forget(r.Flow)
	case opensFlow(r):
		if j.open == nil {
			j.open, j.kept = map[string]*egress.Record{}, map[string]int{}
		}
		j.forget(r.Flow)
		j.open[r.Flow] = r
		if j.lent {
			j.fresh = append(j.fresh, r.Flow)
		} else {
			j.keep(r)
		}
	}
}

func (j *Joiner) clear() {
	clear(j.open)
	clear(j.kept)
	j.held = 0
}

func (j *Joiner) forget(flow string) {
	delete(j.open, flow)
	if w, kept := j.kept[flow]; kept {
		j.held -= w
		delete(j.kept, flow)
	}
}

// keep counts a record that is the joiner's own.
func (j *Joiner) keep(r *egress.Record) {
	w := weight(r)
	j.kept[r.Flow], j.held = w, j.held+w
	if j.held > cmp.Or(j.most, mostOpen) {
		j.letGo()
	}
}

// weight is about what a record takes of memory.
func weight(r *egress.Record) int {
	const parts = 700
	w := parts
	eachText(r, func(s *string) { w += len(*s) })
	return w
}

// letGo makes room: the flows that were opened first are forgotten.
func (j *Joiner) letGo() {
	flows := slices.SortedFunc(maps.Keys(j.kept), func(a, b string) int { return cmp.Compare(j.open[a].Seq, j.open[b].Seq) })
	for _, flow := range flows[:(len(flows)+1)/2] {
		r := j.open[flow]
		j.forget(flow)
		if j.drop != nil {
			j.drop(r)
		}
	}
}

// settle makes the joiner's own what it was lent and still needs.
func (j *Joiner) settle() {
	for _, flow := range j.fresh {
		if r := j.open[flow]; r != nil && j.kept[flow] == 0 {
			r = Clone(r)
			delete(j.open, flow) // whose text is lent, too
			j.open[r.Flow] = r
			j.keep(r)
		}
	}
	j.fresh = j.fresh[:0]
}

func opensFlow(r *egress.Record) bool {
	return r.Flow != "" && r.Decision != nil && r.Decision.Action == "allow" &&
		(r.Kind == egress.KindOpen || r.Kind == egress.KindRequest)
}

// A Tally hands on each decision once, with what its flow came to. Of flows that are
// too many to be remembered, see [Joiner], the decision is handed on as one that is
// open, and once more when it ends: what was decided is hidden by no flood.
type Tally struct {
	Emit   func(*egress.Record)
	joiner Joiner
}

// Add takes in the next record of the log.
func (t *Tally) Add(r *egress.Record) {
	if t.joiner.drop == nil {
		t.joiner.drop = func(r *egress.Record) { t.unended(r, OutcomeOpen) }
	}
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
		t.unended(r, outcome)
	}
	t.joiner.clear()
}

func (t *Tally) unended(r *egress.Record, outcome string) {
	unended := *r
	unended.Outcome = outcome
	t.Emit(&unended)
}
