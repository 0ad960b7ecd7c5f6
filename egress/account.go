package egress

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// An account counts what one sandbox has open and has used. There is one for each sandbox that was ever identified, and
// may be identified again. It is safe for concurrent use.
type account struct {
	template *account // final: that of the template that the sandbox is of, or nil

	meter     carry.Meter
	names     names.Budget
	repeats   repeatCounts
	inquiring inquiring

	lastTurn int64 // guarded by accounts.mu: when the account was asked for last

	mu      sync.Mutex // guards what follows
	open    int64
	recent  lastMinute
	lookups map[string]int // names that are being looked up, and by how many flows
	gone    bool           // there may be another one of the sandbox by now
}

// retire ends the use of an account, and reports whether that can be done: nothing is open, no
// question waits, and nothing is still to be recorded.
func (a *account) retire() bool {
	waiting := a.names.Waiting() > 0
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = a.gone || a.open == 0 && !waiting && len(a.lookups) == 0 && a.repeats.empty()
	return a.gone
}

// All sandboxes share the name servers. The limits bound concurrent lookups: of one sandbox, and of one template with all
// its sandboxes.
const (
	lookupsPerSandbox  = 64
	lookupsPerTemplate = 256
)

// startLookup counts one more flow that needs name, and reports whether the sandbox may have it looked up. The caller
// calls endLookup in either case.
func (a *account) startLookup(name string) bool {
	within := a.template == nil || a.template.addLookup(name, lookupsPerTemplate)
	return a.addLookup(name, lookupsPerSandbox) && within
}

func (a *account) endLookup(name string) {
	a.removeLookup(name)
	if a.template != nil {
		a.template.removeLookup(name)
	}
}

// addLookup counts one more, and reports whether no more than most names are looked up now.
func (a *account) addLookup(name string, most int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lookups == nil {
		a.lookups = map[string]int{}
	}
	a.lookups[name]++
	return len(a.lookups) <= most
}

func (a *account) removeLookup(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lookups[name]--; a.lookups[name] == 0 {
		delete(a.lookups, name)
	}
}

// The counters of a lastMinute.
const (
	flowsBegun = iota
	requestsBegun
	flowsDenied
	countedKinds
)

// A lastMinute counts events of the last minute by the second: an event leaves it 60
// to 61 seconds after it came. It is the same size whatever happens.
type lastMinute struct {
	second int64 // the newest
	by     [windowSeconds][countedKinds]int32
	sum    [countedKinds]int64
}

const windowSeconds = 61

// advance drops what is too old at second, and returns the second that counts
// now: time does not go back.
func (w *lastMinute) advance(second int64) int64 {
	for ; w.second < second; w.second++ {
		if second-w.second > windowSeconds { // all of it is too old
			*w = lastMinute{second: second}
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

func (w *lastMinute) add(second int64, kind int, n int32) {
	if w.second-second < windowSeconds {
		w.by[second%windowSeconds][kind] += n
		w.sum[kind] += int64(n)
	}
}

// A charge is what a flow has been counted with while it is decided.
type charge struct {
	second  int64
	request bool // the flow is an HTTP request
}

// charge counts a flow that began since, if fewer than most are open. Flows are counted before they are decided: of two
// that come at once, the second sees the first. before is the usage that the flow sees. An account that is gone counts
// nothing.
func (a *account) charge(since time.Duration, request bool, most int64) (c charge, before policy.Usage, ok, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return c, before, false, true
	}
	c = charge{a.recent.advance(int64(since / time.Second)), request}
	before = a.usage()
	if a.open >= most {
		return c, before, false, false
	}
	a.open++
	a.count(c, 1)
	return c, before, true, false
}

// refund takes back the charge of a flow that was not let through.
func (a *account) refund(c charge) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	a.count(c, -1)
}

func (a *account) count(c charge, n int32) {
	a.recent.add(c.second, flowsBegun, n)
	if c.request {
		a.recent.add(c.second, requestsBegun, n)
	}
}

func (a *account) usage() policy.Usage {
	sum := &a.recent.sum
	return policy.Usage{
		FlowsOpen: a.open, FlowsMinute: sum[flowsBegun], RequestsMinute: sum[requestsBegun], DeniedMinute: sum[flowsDenied],
		BytesUp: a.meter.Up.Load(), BytesDown: a.meter.Down.Load(),
	}
}

// ended counts a flow out that has been let through.
func (a *account) ended() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
}

func (a *account) denied(since time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recent.add(a.recent.advance(int64(since/time.Second)), flowsDenied, 1)
}

// besides is the usage of the sandbox without one flow that is open, which began
// at a time of the same clock.
func (a *account) besides(began, now time.Duration, request bool) policy.Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	latest := a.recent.advance(int64(now / time.Second))
	u := a.usage()
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
func (a *account) sum(now time.Duration) policy.Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recent.advance(int64(now / time.Second))
	return a.usage()
}

// counted returns r with the sandbox's usage, for a policy that reads it. A flow that is
// being opened keeps the usage of the moment when it was counted; an open flow that a later
// policy decides gets the present one.
func (f *Flow) counted(p *policy.Policy, r *policy.Request) *policy.Request {
	if r.Usage != nil || r.Sandbox.Name == "" || !p.ReadsUsage() {
		return r
	}
	u := f.gate.accounts.of(r.Sandbox.Name).besides(f.began, time.Since(f.gate.began), r.HTTP != nil)
	c := *r
	c.Usage = &u
	return &c
}

// noteDenial counts a refusal for the sandbox that it is of, if that is known.
func (f *Flow) noteDenial() {
	if name := f.request.Sandbox.Name; name != "" {
		f.gate.accounts.of(name).denied(time.Since(f.gate.began))
	}
}

// Meter counts the bytes of all flows of the sandbox, up and down. The carrier of the flow adds bytes as they pass.
func (f *Flow) Meter() *carry.Meter { return &f.account().meter }

// accountsSwept is the number of accounts from which unused ones are searched for.
const accountsSwept = 64

// accounts are those of all sandboxes. They are safe for concurrent use.
type accounts struct {
	sandboxes *sandbox.Directory   // final
	onDrop    func(sandbox string) // final; called with mu held

	mu                     sync.Mutex // guards what follows
	bySandbox              map[string]*account
	templates              map[*account]*instances
	instances              int   // of all templates
	turns                  int64 // how often an account was asked for
	swept                  int   // accounts that were left by the last sweep
	droppedUp, droppedDown int64
}

// instances are the accounts of the sandboxes of one template.
type instances struct {
	names    map[*account]string
	searched time.Time // when makeRoom last found few idle ones
}

func (s *accounts) of(sandbox string) *account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofLocked(sandbox)
}

// ofLocked is of with s.mu held.
func (s *accounts) ofLocked(sandbox string) *account {
	s.turns++
	a := s.bySandbox[sandbox]
	if a == nil {
		a = s.add(sandbox)
	}
	a.lastTurn = s.turns
	return a
}

// add makes an account. s.mu is held.
func (s *accounts) add(sandbox string) *account {
	if s.bySandbox == nil {
		s.bySandbox, s.templates = map[string]*account{}, map[*account]*instances{}
	}
	if len(s.bySandbox) > 2*s.swept+accountsSwept {
		s.sweep()
	}
	a := new(account)
	if template := s.sandboxes.Template(sandbox); template != "" {
		a.template = s.ofLocked(template)
		of := s.templates[a.template]
		if of == nil {
			of = &instances{names: map[*account]string{}}
			s.templates[a.template] = of
		}
		of.names[a] = sandbox
		a.repeats.shared = a.template.repeats.budget()
		s.instances++
	}
	s.bySandbox[sandbox] = a
	return a
}

// instancesMost bounds the sandboxes of templates that have an account: whoever has the token of a template chooses
// their ids. One template may use the slots that are still free: half of them while it is alone.
const instancesMost = 8192

// searchEvery is how long makeRoom waits after a search that found few idle instances. A search takes a millisecond with mu
// held, so a client that invents ids could delay all sandboxes.
const searchEvery = 100 * time.Millisecond

// makeRoom reports whether a sandbox of a template may be given an account, or has one. The template's own instances that
// were idle for longest are forgotten to make room.
func (s *accounts) makeRoom(sandbox, template string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.templates[s.bySandbox[template]]
	most := func() int { return instancesMost - s.instances } // that the template may have
	if of == nil || s.bySandbox[sandbox] != nil || len(of.names) < most() {
		return s.bySandbox[sandbox] != nil || s.instances < instancesMost
	}
	if time.Since(of.searched) < searchEvery {
		return false
	}
	oldest := slices.SortedFunc(maps.Keys(of.names), func(a, b *account) int { return cmp.Compare(a.lastTurn, b.lastTurn) })
	for _, a := range oldest {
		if a.retire() {
			s.drop(of.names[a], a)
		}
		if len(of.names) < most()-most()/8 { // so that not each new one has to search
			return true
		}
	}
	of.searched = time.Now()
	return len(of.names) < most()
}

// sweep drops the accounts of sandboxes that are gone: an attached sandbox may have had any name. s.mu is held.
func (s *accounts) sweep() {
	for name, a := range s.bySandbox {
		if of := s.templates[a]; of != nil && len(of.names) > 0 {
			continue
		}
		if !s.sandboxes.Expects(name) && a.retire() {
			s.drop(name, a)
		}
	}
	s.swept = len(s.bySandbox)
}

// drop forgets an account that has been retired. s.mu is held.
func (s *accounts) drop(name string, a *account) {
	s.droppedUp += a.meter.Up.Load()
	s.droppedDown += a.meter.Down.Load()
	delete(s.bySandbox, name)
	delete(s.templates, a)
	if of := s.templates[a.template]; of != nil {
		delete(of.names, a)
		s.instances--
	}
	s.onDrop(name)
}

// errNoRoom is the error for one more sandbox of a template.
type errNoRoom struct{ template, name string }

func (e errNoRoom) Error() string {
	return fmt.Sprintf("as many sandboxes of %s as it may have at a time have connections open, so %s cannot be added", e.template, e.name)
}

// identify returns the sandbox of a peer, for which there is an account or room for one. After an error, the result has
// as much as may be recorded: the container, and the template for which there is no room.
func (s *accounts) identify(peer sandbox.Peer) (policy.Sandbox, error) {
	who, err := s.sandboxes.Identify(peer)
	if err != nil {
		return who, err
	}
	if who.Template != "" && !s.makeRoom(who.Name, who.Template) {
		err = errNoRoom{who.Template, who.Name}
		who.Name = who.Template
	}
	return who, err
}

// unidentified is the decision about a peer that identify returned an error for.
func unidentified(err error) policy.Decision {
	if _, full := errors.AsType[errNoRoom](err); full {
		return policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: err.Error()}
	}
	return policy.Decision{Class: policy.UnknownSandbox, Rule: "identity", Layer: policy.Builtin, Reason: err.Error()}
}

func (s *accounts) all() []*account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.bySandbox))
}

// bytes returns the payload bytes of all sandboxes, with those that are gone.
func (s *accounts) bytes() (up, down int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	up, down = s.droppedUp, s.droppedDown
	for _, a := range s.bySandbox {
		up += a.meter.Up.Load()
		down += a.meter.Down.Load()
	}
	return up, down
}
