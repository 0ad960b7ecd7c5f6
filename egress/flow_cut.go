package egress

import (
	"github.com/egressd/egressd/egress/upstream"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// changed has whoever carries the flow look at it again.
func (f *Flow) changed() {
	f.mu.Lock()
	look := f.onChange
	f.mu.Unlock()
	if look != nil {
		look()
	}
}

// OnChange has look called, soon, when a later policy refuses the flow, which
// WasCut tells, or gives it another budget. It is called at once when the flow was
// cut already. Only the last of what is given to OnChange and OnCut counts.
func (f *Flow) OnChange(look func()) {
	f.mu.Lock()
	f.onChange = look
	late := f.wasCut
	f.mu.Unlock()
	if late {
		look()
	}
}

// OnCut has stop called, soon, when a later policy refuses the flow. It is called
// at once when that has happened already.
func (f *Flow) OnCut(stop func()) {
	f.OnChange(func() {
		if f.WasCut() {
			stop()
		}
	})
}

// WasCut reports whether a later policy has refused the flow.
func (f *Flow) WasCut() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wasCut
}

func (f *Flow) cut() {
	f.mu.Lock()
	if f.closed { // since it was found open; its connection may serve another by now
		f.mu.Unlock()
		return
	}
	f.wasCut = true
	conn := f.conn
	f.mu.Unlock()
	if conn != nil {
		carry.Abort(conn) // what came must not pass for all
	}
	f.changed()
}

// Refusal returns why a flow that was cut may not go on. It returns nil if an operator cut it.
func (f *Flow) Refusal() *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gate.shut.Load() {
		return f.refusal(stopping)
	}
	if passes(f.decision.Verdict) {
		return nil
	}
	return f.refusal(*f.decision)
}

// Failed returns the refusal to show after the flow's upstream failed. It records nothing: Close does, with the class as the
// outcome. A why that is not empty replaces the sentence of the class. It must not hold text that a sandbox or an
// upstream chose.
func (f *Flow) Failed(class policy.Class, why string) *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.networkRefusal(class)
	if why != "" {
		r.Decision.Reason = why
	}
	return r
}

// RefusedUpstream is the refusal to show where the upstream proxy answered a whole request with a status
// of its own.
func (f *Flow) RefusedUpstream(status int, reason string) *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	return (&upstreamError{upstream.Refused(status, reason)}).refusal(f)
}

// endWith refuses a flow that was let pass. It reports whether that is new, and calls then in that case, with f.mu held.
func (f *Flow) endWith(d policy.Decision, then func()) (refusal *Refusal, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first = passes(f.decision.Verdict) && !f.closed; first {
		d.Policy = f.decision.Policy
		f.decision = &d
		f.noteDenial()
		f.keepDenial()
		then()
	}
	return f.refusal(*f.decision), first
}

// Caught refuses a flow that was about to carry a canary. From then on it can only be
// closed, and its close record says so.
func (f *Flow) Caught(found secret.Finding, where string) *Refusal {
	var line []byte
	var alarm Alarm
	refusal, first := f.endWith(holdsCanary, func() { line, alarm = f.signalOf(sighting{found, where}) })
	if first {
		f.gate.Records.signal(line, alarm)
	}
	return refusal
}

var heldBack = policy.Decision{
	Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin,
	Reason: "too much of what the sandbox sends is held back to be searched for canaries",
}

// Overfull refuses a flow whose body would exceed the memory quota of its sandbox. Afterwards the flow can only be
// closed, and its close record has the refusal.
func (f *Flow) Overfull() *Refusal {
	refusal, _ := f.endWith(heldBack, func() {})
	return refusal
}

var overdue = policy.Decision{
	Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin,
	Reason: "what the sandbox sends waited too long to be searched for canaries",
}

// Overdue refuses a flow whose bytes have waited too long for their search. From then on
// it can only be closed, and its close record says so.
func (f *Flow) Overdue() *Refusal {
	refusal, _ := f.endWith(overdue, func() {})
	return refusal
}

// Exceeded returns the refusal to show where more than the flow's budget was to go
// up. From then on the flow is refused: it can only be closed, and its close record
// says so.
func (f *Flow) Exceeded() *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	if passes(f.decision.Verdict) && !f.closed {
		d := f.decision.OverBudget()
		f.decision = &d
		f.noteDenial()
		f.keepDenial()
	}
	return f.refusal(*f.decision)
}

// HasCanaries reports whether there are canaries.
func (f *Flow) HasCanaries() bool { return f.gate.canaries.Load() != nil }

// Guard returns what looks at the bytes that the flow sends in some place, such as
// "body", or nil where there are no canaries.
func (f *Flow) Guard(where string) *Guard {
	c := f.gate.canaries.Load()
	if c == nil {
		return nil
	}
	return &Guard{flow: f, where: where, watch: c.NewWatch()}
}
