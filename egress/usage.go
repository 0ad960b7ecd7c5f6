package egress

import (
	"sync"
	"time"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
)

// A slot counts what one sandbox has open and has used. There is one for each
// sandbox that was ever identified, and may be identified again.
type slot struct {
	meter   relay.Meter
	names   names.Budget
	repeats repeats

	mu      sync.Mutex // guards what follows
	open    int64
	recent  window
	lookups map[string]int // names that are being looked up, and by how many flows
	gone    bool           // there may be another one of the sandbox by now
}

// retire ends the use of a slot, and reports whether that can be done: nothing is open, no
// question waits, and nothing is still to be recorded.
func (s *slot) retire() bool {
	waiting := s.names.Waiting() > 0
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = s.gone || s.open == 0 && !waiting && len(s.lookups) == 0 && s.repeats.empty()
	return s.gone
}

// lookupsPerSandbox bounds the names that one sandbox may have looked up at a time: all sandboxes share the name
// servers.
const lookupsPerSandbox = 64

// startLookup counts one more flow that needs name, and reports whether the sandbox may have it looked up. The caller
// calls endLookup in either case.
func (s *slot) startLookup(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lookups == nil {
		s.lookups = map[string]int{}
	}
	s.lookups[name]++
	return len(s.lookups) <= lookupsPerSandbox
}

func (s *slot) endLookup(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lookups[name]--; s.lookups[name] == 0 {
		delete(s.lookups, name)
	}
}

// The counters of a window.
const (
	flowsBegun = iota
	requestsBegun
	flowsDenied
	countedKinds
)

// A window counts events of the last minute by the second: an event leaves it 60
// to 61 seconds after it came. It is the same size whatever happens.
type window struct {
	second int64 // the newest
	by     [windowSeconds][countedKinds]int32
	sum    [countedKinds]int64
}

const windowSeconds = 61

// advance drops what is too old at second, and returns the second that counts
// now: time does not go back.
func (w *window) advance(second int64) int64 {
	for ; w.second < second; w.second++ {
		if second-w.second > windowSeconds { // all of it is too old
			*w = window{second: second}
			break
		}
		oldest := &w.by[(w.second+1)%windowSeconds]
		for kind, n := range oldest {
			w.sum[kind] -= int64(n)
		}
		*oldest = [countedKinds]int32{}
	}
	return w.second
}

func (w *window) add(second int64, kind int, n int32) {
	if w.second-second < windowSeconds {
		w.by[second%windowSeconds][kind] += n
		w.sum[kind] += int64(n)
	}
}

// A place is what a flow holds of its slot while it is decided.
type place struct {
	second  int64
	request bool // the flow is an HTTP request
}

// take counts a flow that began since, if fewer than most are open. Flows are
// counted before they are decided, so that of two that come at once the second
// sees the first; before is what it sees. A slot that is gone counts nothing.
func (s *slot) take(since time.Duration, request bool, most int64) (p place, before policy.Usage, ok, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return p, before, false, true
	}
	p = place{s.recent.advance(int64(since / time.Second)), request}
	before = s.usage()
	if s.open >= most {
		return p, before, false, false
	}
	s.open++
	s.count(p, 1)
	return p, before, true, false
}

// giveBack takes back what take counted, for a flow that was not let through.
func (s *slot) giveBack(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.count(p, -1)
}

func (s *slot) count(p place, n int32) {
	s.recent.add(p.second, flowsBegun, n)
	if p.request {
		s.recent.add(p.second, requestsBegun, n)
	}
}

func (s *slot) usage() policy.Usage {
	sum := &s.recent.sum
	return policy.Usage{
		FlowsOpen: s.open, FlowsMinute: sum[flowsBegun], RequestsMinute: sum[requestsBegun], DeniedMinute: sum[flowsDenied],
		BytesUp: s.meter.Up.Load(), BytesDown: s.meter.Down.Load(),
	}
}

// ended counts a flow out that has been let through.
func (s *slot) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
}

func (s *slot) denied(since time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent.add(s.recent.advance(int64(since/time.Second)), flowsDenied, 1)
}

// besides is the usage of the sandbox without one flow that is open, which began
// at a time of the same clock.
func (s *slot) besides(began, now time.Duration, request bool) policy.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	latest := s.recent.advance(int64(now / time.Second))
	u := s.usage()
	u.FlowsOpen--
	if latest-int64(began/time.Second) < windowSeconds {
		u.FlowsMinute--
		if request {
			u.RequestsMinute--
		}
	}
	return u
}

// sum is the usage of the sandbox with all that is open at a time of the gate's
// clock.
func (s *slot) sum(now time.Duration) policy.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent.advance(int64(now / time.Second))
	return s.usage()
}

// counted returns r with the sandbox's usage, for a policy that reads it. A flow that is
// being opened keeps the usage of the moment when it was counted; an open flow that a later
// policy decides gets the present one.
func (f *Flow) counted(p *policy.Policy, r *policy.Request) *policy.Request {
	if r.Usage != nil || r.Sandbox.Name == "" || !p.ReadsUsage() {
		return r
	}
	u := f.gate.slotOf(r.Sandbox.Name).besides(f.began, time.Since(f.gate.began), r.HTTP != nil)
	c := *r
	c.Usage = &u
	return &c
}

// noteDenial counts a refusal for the sandbox that it is of, if that is known.
func (f *Flow) noteDenial() {
	if name := f.request.Sandbox.Name; name != "" {
		f.gate.slotOf(name).denied(time.Since(f.gate.began))
	}
}

// Meter counts the bytes of all flows of the sandbox, up and down. The carrier of the flow adds bytes as they pass.
func (f *Flow) Meter() *relay.Meter { return &f.slot().meter }

// Budget is how many bytes of payload may go to the upstream, as the policy in
// force has it: see [policy.Decision].MaxBytesUp. 0 means any number.
func (f *Flow) Budget() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decision.MaxBytesUp
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
	}
	return f.refusal(*f.decision)
}
