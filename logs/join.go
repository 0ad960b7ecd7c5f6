package logs

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/record/count"
)

// OutcomeOpen is the outcome of a flow whose end is not in the log yet. No record holds it.
const OutcomeOpen record.Outcome = "open"

// maxOpenBytes bounds the memory for open flows to about 35,000 flows; limits.connections is 20,000 by
// default. Beyond the bound the Joiner forgets half of the flows, oldest first.
const maxOpenBytes = 32 << 20

// A Joiner combines the record that opens a flow with the record that ends it. It remembers only open
// flows, within maxOpenBytes. If the open record was forgotten, the close record stands alone.
type Joiner struct {
	open  map[string]*record.Record
	size  map[string]int       // estimated bytes of each record that the joiner owns
	total int                  // sum of size
	max   int                  // maxOpenBytes if 0
	drop  func(*record.Record) // called with each forgotten record; may be nil

	// borrows is set while records are valid only until the current chunk of [Scan] ends. Method retain
	// then clones the records that are still needed. Complete then reuses joined.
	borrows  bool
	borrowed []string // flows whose records are not cloned yet
	joined   record.Record

	// passed holds the lines of open flows that a [Filter.sieve] passed over: the end of such a flow may match the
	// filter. passedBytes is their sum.
	passed      map[flowText][]byte
	passedBytes int
	lent        []flowText // flows of passed whose lines are not cloned yet
}

// Complete returns the close record r with the fields of the record that opened its flow. A close record
// need not repeat the destination and the decision. Other records are returned as they are.
func (j *Joiner) Complete(r *record.Record) *record.Record {
	opened := j.open[r.Flow]
	if r.Kind != record.KindClose || opened == nil {
		return r
	}
	joined := new(record.Record)
	if j.borrows {
		joined = &j.joined
	}
	*joined = *opened
	joined.Seq, joined.Time, joined.Kind = r.Seq, r.Time, r.Kind
	joined.Bytes, joined.Duration, joined.Outcome, joined.Credential = r.Bytes, r.Duration, r.Outcome, r.Credential
	if r.Decision != nil && r.Outcome != record.OutcomeCut {
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

// Follow remembers r if it opens a flow, and forgets the flow if r ends it. It keeps r while the flow is
// open. A caller of [Scan] therefore uses [ScanJoined] or clones r.
func (j *Joiner) Follow(r *record.Record) {
	switch {
	case r.Kind == record.KindStart: // all earlier flows ended with the previous process
		j.clear()
	case r.Kind == record.KindClose:
		j.forget(r.Flow)
	case opensFlow(r):
		if j.open == nil {
			j.open, j.size = map[string]*record.Record{}, map[string]int{}
		}
		j.forget(r.Flow)
		j.open[r.Flow] = r
		if j.borrows {
			j.borrowed = append(j.borrowed, r.Flow)
		} else {
			j.keep(r)
		}
	}
}

func (j *Joiner) clear() {
	clear(j.open)
	clear(j.size)
	clear(j.passed)
	j.total, j.passedBytes = 0, 0
}

// pass takes the place of Follow for a line that was passed over, which it borrows. It returns the record if the flow has
// one that was not passed over.
func (j *Joiner) pass(line []byte, l skimmed) (*record.Record, error) {
	if j.open[string(l.flow[:])] != nil {
		return record.Decode(line)
	}
	j.unpass(l.flow)
	if l.ends {
		return nil, nil
	}
	if j.passedBytes > cmp.Or(j.max, maxOpenBytes) {
		clear(j.passed)
		j.passedBytes = 0
	}
	if j.passed == nil {
		j.passed = map[flowText][]byte{}
	}
	j.passed[l.flow] = line
	j.passedBytes += len(line)
	j.lent = append(j.lent, l.flow)
	return nil, nil
}

func (j *Joiner) unpass(flow flowText) []byte {
	line := j.passed[flow]
	if line != nil {
		delete(j.passed, flow)
		j.passedBytes -= len(line)
	}
	return line
}

// wake follows the record that opened a flow and was passed over, since a further one was not.
func (j *Joiner) wake(flow string) error {
	if len(j.passed) == 0 || len(flow) != len(flowText{}) {
		return nil
	}
	line := j.unpass(flowText([]byte(flow)))
	if line == nil {
		return nil
	}
	r, err := record.Decode(line)
	if err == nil {
		j.Follow(r)
	}
	return err
}

func (j *Joiner) forget(flow string) {
	delete(j.open, flow)
	if w, owned := j.size[flow]; owned {
		j.total -= w
		delete(j.size, flow)
	}
}

// keep accounts for a record that the joiner owns.
func (j *Joiner) keep(r *record.Record) {
	w := r.Size()
	j.size[r.Flow], j.total = w, j.total+w
	if j.total > cmp.Or(j.max, maxOpenBytes) {
		j.evict()
	}
}

// evict forgets the older half of the open flows.
func (j *Joiner) evict() {
	flows := slices.SortedFunc(maps.Keys(j.size), func(a, b string) int { return cmp.Compare(j.open[a].Seq, j.open[b].Seq) })
	for _, flow := range flows[:(len(flows)+1)/2] {
		r := j.open[flow]
		j.forget(flow)
		if j.drop != nil {
			j.drop(r)
		}
	}
}

// retain clones the borrowed records of flows that are still open.
func (j *Joiner) retain() {
	for _, flow := range j.borrowed {
		if r := j.open[flow]; r != nil && j.size[flow] == 0 {
			r = r.Clone()
			delete(j.open, flow) // the key is borrowed, too
			j.open[r.Flow] = r
			j.keep(r)
		}
	}
	j.borrowed = j.borrowed[:0]
	for _, flow := range j.lent {
		if line := j.passed[flow]; line != nil {
			j.passed[flow] = bytes.Clone(line)
		}
	}
	j.lent = j.lent[:0]
}

func opensFlow(r *record.Record) bool {
	return r.Flow != "" && r.Decision != nil && r.Decision.Action == "allow" &&
		(r.Kind == record.KindOpen || r.Kind == record.KindRequest)
}

// A DecisionJoiner emits each request once, with the outcome of its flow. Package count says which decisions are one request:
// the DecisionJoiner leaves out a decision that belongs to another one. [record.Record.Times] is the number of requests. A
// name that no connection followed has no type. If a Joiner forgets a flow, the DecisionJoiner emits its decision as open and
// again when the flow ends. No flood of flows can therefore hide a decision.
//
// Emit also gets the records that are no decisions.
type DecisionJoiner struct {
	Emit    func(*record.Record)
	joiner  Joiner
	counter count.Counter[heldRecord]
	line    string // of the record that is being added, if it is known
}

// A heldRecord is a decision that may yet belong to another one: its line, which costs less to keep than a record, or the
// record.
type heldRecord struct {
	line   string
	record *record.Record
}

// Add processes the next record of the log.
func (t *DecisionJoiner) Add(r *record.Record) {
	if t.joiner.drop == nil {
		t.joiner.drop = func(r *record.Record) { t.unended(r, OutcomeOpen) }
		t.counter.Belongs, t.counter.Stays = func(heldRecord, int64) {}, t.emit
	}
	earlier := t.joiner.open[r.Flow]
	switch {
	case r.Kind == record.KindStart:
		t.Flush(record.OutcomeCut)
	case r.Kind == record.KindClose:
		t.end(r, earlier)
	case IsLookup(r):
	case !opensFlow(r):
		t.decided(r, r.Time)
	default:
		if earlier != nil { // r is a further request of the same flow
			t.Emit(earlier)
		}
		d := count.Of(r)
		t.counter.Begins(&d)
	}
	t.joiner.Follow(r)
}

func (t *DecisionJoiner) end(r, earlier *record.Record) {
	whole := r
	if earlier != nil {
		whole = t.joiner.Complete(r)
		whole.Time, whole.Kind = earlier.Time, earlier.Kind
	} else if r.Decision == nil || r.Dst == nil { // the log begins in the middle of the flow
		return
	}
	if whole.Decision.Action != "allow" {
		t.decided(whole, r.Time)
	} else if !carries(whole) {
		t.Emit(whole)
	}
}

// carries reports whether the requests of an allowed flow have decisions of their own.
func carries(r *record.Record) bool {
	b := part(r.Bytes)
	return count.Carries(r.Outcome, r.TLS != nil && r.TLS.Inspected && r.HTTP == nil, b.Up, b.Down)
}

// decided emits a decision that opens no flow, or keeps it until it is known whether it belongs to another.
func (t *DecisionJoiner) decided(r *record.Record, now time.Time) {
	if !Decides(r) {
		t.Emit(r)
		return
	}
	d := count.Of(r)
	d.Time = now
	n, waits := t.counter.Add(&d, func() heldRecord {
		if t.line != "" && r.Kind == record.KindDNS {
			return heldRecord{line: strings.Clone(t.line)}
		}
		return heldRecord{record: r.Clone()}
	})
	if n > 0 && !waits {
		t.Emit(r)
	}
}

// emit emits a decision that was held, as n requests.
func (t *DecisionJoiner) emit(held heldRecord, n int64) {
	r := held.record
	if held.line != "" {
		var err error
		if r, err = record.Decode([]byte(held.line)); err != nil {
			return // it was decoded before
		}
	}
	if d := count.Of(r); d.IsName() {
		r.DNS.Type, r.Count = "", n
	}
	t.Emit(r)
}

// awaits reports whether a line that was passed over is that of a connection that names wait for.
func (t *DecisionJoiner) awaits(line []byte) bool {
	if t.counter.Waits() == 0 {
		return false
	}
	_, rest, _ := bytes.Cut(line, []byte(`"sandbox":"`))
	sandbox, _, _ := bytes.Cut(rest, []byte(`"`))
	_, rest, found := bytes.Cut(line, []byte(`"dst":{"host":"`))
	host, _, _ := bytes.Cut(rest, []byte(`"`))
	return found && t.counter.Awaits(string(sandbox), string(host))
}

// Flush emits the flows without an end, ordered by sequence number, and what still waits.
func (t *DecisionJoiner) Flush(outcome record.Outcome) {
	t.counter.Flush()
	bySeq := func(a, b *record.Record) int { return cmp.Compare(a.Seq, b.Seq) }
	for _, r := range slices.SortedFunc(maps.Values(t.joiner.open), bySeq) {
		t.unended(r, outcome)
	}
	t.joiner.clear()
}

func (t *DecisionJoiner) unended(r *record.Record, outcome record.Outcome) {
	unended := *r
	unended.Outcome = outcome
	t.Emit(&unended)
}
