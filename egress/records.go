package egress

import (
	"context"
	"net/netip"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// Records writes the decisions of a gate into the audit log, with what happened to egressd itself, and counts them. It
// is safe for concurrent use.
type Records struct {
	gate   *Gate
	counts counters
	nobody repeatCounts // denials of peers that are no sandbox
	late   lateEnds
}

// recordOf is what a record says beyond its flow.
type recordOf struct {
	kind record.Kind
	end  End // of a close record
	took time.Duration
	raw  []byte // of a refused record
	note string

	// flood is for a refusal that may be of any name, and come thousands of times a
	// second: only the first one is written by itself.
	flood bool

	canary *sighting // that is why it is refused, or nil
	shared bool      // other denials may get the id of the record: they are summed
}

// WritesAtOnce reports whether [Gate.Refuse], [Gate.Deny] and [Gate.RefuseUnseen] would most likely not wait for the log. A
// goroutine that accepts connections calls them only then.
func (w *Records) WritesAtOnce() bool { return w.gate.config.Log.WritesAtOnce() }

// append writes one record of f to the log.
func (w *Records) append(f *Flow, r recordOf) (int64, error) {
	seq, err := w.gate.config.Log.Append(w.encode(f, r))
	if err == nil {
		w.late.write(w.gate.config.Log)
	}
	return seq, err
}

// appendEnd writes a close record, now or as soon as the log takes records again: what has passed is in the log then.
func (w *Records) appendEnd(line []byte) {
	if _, err := w.gate.config.Log.Append(line); err != nil {
		w.late.keep(line)
		return
	}
	w.late.write(w.gate.config.Log)
}

func (w *Records) encode(f *Flow, r recordOf) []byte {
	w.count(f, r)
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 640)}}
	e.flow(f, r)
	w.gate.canaries.mask(e.Line)
	return e.Line
}

// count counts a record for the metrics, for the program and for the attachment.
func (w *Records) count(f *Flow, r recordOf) {
	w.counts.note(f, r)
	w.gate.config.Tally.note(f, r)
	w.gate.Attachments.find(f.request.Sandbox.Attachment).note(f, r)
}

func (f *Flow) recordDecision() *Refusal {
	kind := record.KindOpen
	switch {
	case f.request.DNS != nil:
		kind = record.KindDNS
	case f.request.HTTP != nil:
		kind = record.KindRequest
	}
	if !passes(f.decision.Verdict) {
		return f.recordRefusal(recordOf{kind: kind})
	}
	seq, err := f.gate.Records.append(f, recordOf{kind: kind})
	if err != nil {
		return f.refusal(unavailable)
	}
	f.seq = seq
	return nil
}

// recordEnd writes the close record of a flow that was never open.
func (f *Flow) recordEnd(end End) {
	f.gate.Records.appendEnd(f.gate.Records.encode(f, recordOf{kind: record.KindClose, end: end, took: f.took()}))
}

// refuse records a refusal that happens before anything passed.
func (f *Flow) refuse(d policy.Decision) *Refusal {
	if d.Policy == "" {
		d.Policy = f.gate.Digest()
	}
	f.noteDenial()
	f.decision = &d
	if refusal := f.recordDecision(); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// Wait returns when the flow's record is durable, so that its first byte may
// pass. The error is a [*Refusal].
func (f *Flow) Wait(ctx context.Context) error {
	if err := f.gate.config.Log.Wait(ctx, f.seq); err != nil {
		return f.Unrecorded()
	}
	return nil
}

// Unrecorded returns the refusal to show where the flow's record cannot become durable.
func (f *Flow) Unrecorded() *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refusal(unavailable)
}

// Durable calls done once the flow's record is durable, or cannot become so;
// done may run on any goroutine and must not wait.
func (f *Flow) Durable(done func(error)) { f.gate.config.Log.Durable(f.seq, done) }

// Settled reports whether Durable would call done before it returns, and with what.
func (f *Flow) Settled() (known bool, err error) { return f.gate.config.Log.Settled(f.seq) }

func (w *Records) repeatsOf(f *Flow) *repeatCounts {
	if name := f.request.Sandbox.Name; name != "" {
		return &w.gate.accounts.of(name).repeats
	}
	return &w.nobody
}

// Settle writes the repeat counts that are in no record yet. Call it after Shut, which ends the counting, and before the
// log is closed.
func (w *Records) Settle() {
	w.late.write(w.gate.config.Log)
	w.nobody.settle(w.gate, true)
	for _, a := range w.gate.accounts.all() {
		a.repeats.settle(w.gate, true)
	}
}

// policy records a change of the policy in force, or why there is none.
func (w *Records) policy(p *policy.Policy, note string) error {
	w.Settle()
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 256)}}
	e.Open("")
	e.Text("kind", string(record.KindPolicy))
	e.Open("decision")
	w.gate.known.add(p)
	e.policy(&w.gate.known, p.Digest())
	e.Close()
	if s := p.Shadow(); s != nil {
		e.Open("shadow")
		e.Text("policy", s.Digest())
		e.Close()
	}
	e.Text("note", note)
	e.Close()
	_, err := w.gate.config.Log.Append(e.Line)
	return err
}

// Heartbeat records the state of the log and the policy in force.
func (w *Records) Heartbeat(l record.LogState) error {
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 512)}}
	e.Open("")
	e.Text("kind", string(record.KindHeartbeat))
	e.Open("decision")
	e.policy(&w.gate.known, w.gate.Digest())
	e.Close()
	e.Open("log")
	e.Text("origin", l.Origin)
	e.Number("size", l.Size)
	e.Text("root", l.Root)
	if l.Follows != "" {
		e.Text("follows", l.Follows)
		e.Number("had", l.Had)
	}
	e.Close()
	e.Close()
	_, err := w.gate.config.Log.Append(e.Line)
	return err
}

// Note records what happened to egressd itself: a start, a stop, a recovery.
func (w *Records) Note(kind record.Kind, note string) error {
	w.Settle()
	_, err := w.gate.config.Log.Append(record.Note(kind, note))
	return err
}

// NoteSandbox records what happened to one sandbox.
func (w *Records) NoteSandbox(kind record.Kind, who policy.Sandbox, process *policy.Process, note string) error {
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 256)}}
	e.Open("")
	e.Text("kind", string(kind))
	e.Text("sandbox", who.Name)
	e.container(who.Container)
	e.process(process)
	e.Text("note", note)
	e.Close()
	_, err := w.gate.config.Log.Append(e.Line)
	return err
}

// An OperatorNote is a request to the admin listener. Its sender may be a stranger.
type OperatorNote struct {
	Process *policy.Process // who asked, where the kernel says so
	Src     netip.AddrPort  // else where it came from
	Count   int64           // how many requests it stands for; 0 is one
	Note    string
}

// NoteOperator writes a record of kind admin. It is in the log when NoteOperator returns, and durable when the log is next
// synced.
func (w *Records) NoteOperator(o OperatorNote) error {
	w.Settle()
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 256)}}
	e.Open("")
	e.Text("kind", string(record.KindAdmin))
	if o.Count > 1 {
		e.Number("count", o.Count)
	}
	e.AddrPort("src", o.Src)
	e.process(o.Process)
	e.Text("note", o.Note)
	e.Close()
	_, err := w.gate.config.Log.Append(e.Line)
	return err
}
