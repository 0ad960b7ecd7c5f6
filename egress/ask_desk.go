package egress

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/internal/boottime"
	"github.com/egressd/egressd/policy"
)

// How many questions there are, and for how long. Who asks is the adversary: what it asks
// about must leave room for what others do.
const (
	asksOfOne    = 16               // questions of one sandbox that nobody has answered
	asksMost     = 512              // of all sandboxes
	answeredMost = 1024             // that count
	heldOfOne    = 64               // flows of one sandbox that wait for an answer
	heldMost     = 512              // of all sandboxes
	askListed    = 10 * time.Minute // for which a question is listed that nobody asks any more
	askRounds    = 4                // questions that one flow can bring up one after the other
	othersMost   = 64               // rules that ask about one request
)

// How long an answer counts.
const (
	ApprovedFor = time.Hour
	RejectedFor = 10 * time.Minute
	AnswerMost  = 24 * time.Hour

	answerLook  = 10 * time.Second // how late it may be noticed that an answer is over, after the machine has slept
	clocksApart = time.Second      // less than that, and the machine has not slept: its clocks are not read at once
)

// An askKey is what one question is about. All flows that agree in it wait for one answer.
type askKey struct {
	sandbox string
	stay    uint32
	layer   policy.Layer
	rule    string
	host    string
	port    uint16
	method  string // and path: "" where the rule asks whatever the request is
	path    string
}

// covers reports whether an answer to k is one to a request.
func (k *askKey) covers(r *policy.Request) bool {
	return k.sandbox == r.Sandbox.Name && k.stay == r.Sandbox.Stay && k.host == r.Destination.Host && k.port == r.Destination.Port &&
		(k.method == "" || r.HTTP != nil && k.method == r.HTTP.Method && k.path == r.HTTP.Path)
}

// kept is k in memory of its own: what a client sent is in a buffer that holds more.
func (k askKey) kept() askKey {
	k.sandbox, k.rule, k.host = strings.Clone(k.sandbox), strings.Clone(k.rule), strings.Clone(k.host)
	k.method, k.path = strings.Clone(k.method), strings.Clone(k.path)
	return k
}

// place is what all requests to one place agree in.
func (k *askKey) place() askKey {
	return askKey{sandbox: k.sandbox, stay: k.stay, host: k.host, port: k.port}
}

// An askState is what has become of a question.
type askState string

const (
	askPending  askState = "pending"
	askApproved askState = "approved"
	askRejected askState = "rejected"
	askGone     askState = "gone" // and in no list any more
)

// A question is one that a person is to answer, or has answered. All of it is guarded by the
// lock of its desk, but what is said not to change.
type question struct {
	id      ID // does not change, as key, request, reason and began
	key     askKey
	request policy.Request // that first brought it up, without what is in no record
	reason  string
	began   time.Time

	state   askState
	asked   int64 // flows that came to it
	held    int   // flows that wait
	last    time.Time
	until   time.Time     // it is forgotten, or no longer counts; or at
	end     time.Duration // by the clock of the desk, where that comes first
	told    time.Time     // which of them it is, as last told
	once    map[ID]bool   // of an approval for the flows that waited: those
	waiting map[ID]bool   // flows
	changed chan struct{} // is closed when state changes, or who waits has to look again
	timer   *time.Timer
}

// A desk has the questions of all sandboxes. It decides nothing: an approval is for the
// policy to look at. The zero value is ready, and at it nobody answers.
type desk struct {
	open    atomic.Bool  // somebody can answer
	answers atomic.Int64 // approvals there are: where there is none, no lock is taken
	wait    atomic.Int64 // how long a flow is held, in nanoseconds
	ended   func(ID)     // is told when an approval is over

	clock func() time.Duration // nil for the kernel's

	mu      sync.Mutex // guards what follows
	byID    map[ID]*question
	byKey   map[askKey]*question
	places  map[askKey][]*question // approvals, by place
	pending map[string]*asksOf     // by the name of the sandbox
	held    int                    // flows
	version uint64
	changed chan struct{} // is closed when version changes
}

// asksOf are the questions of one sandbox: of all networks that have had its name, or who
// enters anew would be another each time.
type asksOf struct {
	open, held int
	turned     int64     // flows whose question found no room
	last, told time.Time // when the last was, and when who follows was last told
}

// A ticket is one flow at a question.
type ticket struct {
	desk *desk
	q    *question
	flow ID
	new  bool // the flow has brought it up
	held bool // the flow may wait
}

// come brings a flow to the question with that key, which is made, with that id, where there
// is none. It returns nil where there is no room for one more.
func (d *desk) come(k askKey, id, flow ID, r *policy.Request, reason string, hold bool) *ticket {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.ready()
	d.expire(d.byKey[k])
	of := d.of(k.sandbox, now)
	q := d.byKey[k]
	fresh := q == nil
	if fresh {
		if !d.room(of) {
			of.turned++
			of.last = now
			if now.Sub(of.told) >= time.Second { // who follows the list is not to be kept busy
				of.told = now
				d.tell()
			}
			return nil
		}
		k = k.kept()
		q = &question{id: id, key: k, request: *shownOf(r), reason: reason, began: now, state: askPending, waiting: map[ID]bool{}, changed: make(chan struct{})}
		d.byID[id], d.byKey[k] = q, q
		of.open++
		d.tell()
	}
	q.asked++
	q.last = now
	if q.state == askPending {
		d.forgetAt(q, now.Add(askListed))
	}
	t := &ticket{desk: d, q: q, flow: flow, new: fresh}
	if hold && q.state == askPending && d.wait.Load() > 0 && d.place(of) && !q.waiting[flow] {
		t.held = true
		q.held++
		of.held++
		d.held++
		q.waiting[flow] = true
	}
	return t
}

// place reports whether one more flow of a sandbox may wait. Who has one that waits gets no
// more than a quarter of what is free: the last places are for those who have none. d.mu is held.
func (d *desk) place(of *asksOf) bool {
	free := heldMost - d.held
	return free > 0 && (of.held == 0 || of.held < min(heldOfOne, free/4))
}

// waitsFor reports whether the flow is held at the question with that key, which nobody has
// answered. t may be nil.
func (t *ticket) waitsFor(k *askKey) bool {
	if t == nil {
		return false
	}
	t.desk.mu.Lock()
	defer t.desk.mu.Unlock()
	return t.held && t.q.state == askPending && t.q.key == *k
}

// leave ends a flow's waiting. t may be nil.
func (t *ticket) leave() {
	if t == nil {
		return
	}
	d, q := t.desk, t.q
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.held {
		return
	}
	t.held = false
	q.held--
	d.held--
	delete(q.waiting, t.flow)
	d.pending[q.key.sandbox].held--
	d.dropOwner(q.key.sandbox)
}

// look returns what has become of the question, whether the flow may wait, and what is closed
// when that changes.
func (t *ticket) look() (state askState, until time.Time, held bool, changed <-chan struct{}) {
	t.desk.mu.Lock()
	defer t.desk.mu.Unlock()
	return t.q.state, t.desk.ends(t.q), t.held, t.q.changed
}

// room reports whether a sandbox may have one more question, and makes room among those of
// who has most where there is none. d.mu is held.
func (d *desk) room(of *asksOf) bool {
	if of.open >= asksOfOne {
		return false
	}
	all := 0
	var most *asksOf
	var owner string
	for o, one := range d.pending {
		all += one.open
		if most == nil || one.open > most.open {
			most, owner = one, o
		}
	}
	if all < asksMost {
		return true
	}
	if most.open <= of.open+1 {
		return false
	}
	var newest *question
	for _, q := range d.byID {
		if q.state == askPending && q.key.sandbox == owner && (newest == nil || q.id > newest.id) {
			newest = q
		}
	}
	d.forget(newest)
	return true
}

// of are the questions of one sandbox. d.mu is held.
func (d *desk) of(o string, now time.Time) *asksOf {
	of := d.pending[o]
	if of == nil {
		d.sweepOwners(now)
		of = new(asksOf)
		d.pending[o] = of
	}
	return of
}

// sweepOwners forgets, where there are many, who has nothing open. d.mu is held.
func (d *desk) sweepOwners(now time.Time) {
	if len(d.pending) < asksMost {
		return
	}
	for o, of := range d.pending {
		if of.open == 0 && of.held == 0 {
			delete(d.pending, o)
		}
	}
}

// dropOwner forgets a sandbox of which nothing is to be told. d.mu is held.
func (d *desk) dropOwner(o string) {
	if of := d.pending[o]; of != nil && of.open == 0 && of.held == 0 && of.turned == 0 {
		delete(d.pending, o)
	}
}

// ready makes what the zero value has not. d.mu is held.
func (d *desk) ready() {
	if d.byID == nil {
		d.byID, d.byKey = map[ID]*question{}, map[askKey]*question{}
		d.places, d.pending = map[askKey][]*question{}, map[string]*asksOf{}
		d.changed = make(chan struct{})
	}
}

// tell has those look again who follow the list. d.mu is held.
func (d *desk) tell() {
	d.version++
	close(d.changed)
	d.changed = make(chan struct{})
}

// wake has the flows that wait for q look again. d.mu is held.
func (d *desk) wake(q *question) {
	close(q.changed)
	q.changed = make(chan struct{})
}

// now is the time by which answers end also where the machine has slept meanwhile.
func (d *desk) now() time.Duration {
	if d.clock != nil {
		return d.clock()
	}
	return boottime.Now()
}

// past reports whether the time of q has come. d.mu is held.
func (d *desk) past(q *question) bool {
	return !time.Now().Before(q.until) || d.now() >= q.end
}

// ends is until when q counts: always the same, unless the machine has slept, or its clock was set, since. d.mu is held.
func (d *desk) ends(q *question) time.Time {
	end := time.Now().Add(q.end - d.now())
	if late := end.Sub(q.until); late > 0 {
		end = end.Add(-late) // of the wall clock as it is now
	}
	if end.Sub(q.told).Abs() > clocksApart || end.Round(0).Sub(q.told.Round(0)).Abs() > clocksApart { // by either clock
		q.told = end
	}
	return q.told
}

// forgetAt has q forgotten at a time. d.mu is held.
func (d *desk) forgetAt(q *question, at time.Time) {
	q.until, q.told, q.end = at, at, d.now()+time.Until(at)
	d.arm(q)
}

// arm has the desk look at q when its time may have come. An answer is looked at from time to
// time: timers stand still while the machine sleeps. d.mu is held.
func (d *desk) arm(q *question) {
	wait := time.Until(q.until)
	if q.state != askPending {
		wait = min(wait, answerLook)
	}
	if q.timer != nil {
		q.timer.Reset(wait)
		return
	}
	q.timer = time.AfterFunc(wait, func() { d.over(q) })
}

// over forgets a question whose time has come.
func (d *desk) over(q *question) {
	d.mu.Lock()
	switch {
	case d.byID[q.id] != q:
		d.mu.Unlock()
		return
	case q.held > 0 && q.state == askPending: // somebody waits still
		d.forgetAt(q, time.Now().Add(askListed))
		d.mu.Unlock()
		return
	case !d.past(q): // it was given more time meanwhile, or has some left
		d.arm(q)
		d.mu.Unlock()
		return
	}
	was := q.state
	d.forget(q)
	d.mu.Unlock()
	if was == askApproved {
		d.ended(q.id)
	}
}

// expire forgets an answer that is over, where that has not been noticed yet. d.mu is held.
func (d *desk) expire(q *question) {
	if q == nil || q.state == askPending || !d.past(q) {
		return
	}
	was := q.state
	d.forget(q)
	if was == askApproved {
		time.AfterFunc(0, func() { d.ended(q.id) }) // which is called without d.mu
	}
}

// forget removes a question. d.mu is held; where it was approved, d.ended has to be called
// without.
func (d *desk) forget(q *question) {
	q.timer.Stop()
	d.unplace(q)
	delete(d.byID, q.id)
	if d.byKey[q.key] == q {
		delete(d.byKey, q.key)
	}
	d.settled(q)
	q.state = askGone
	d.wake(q)
	d.tell()
}

// settled takes q from those that nobody has answered. d.mu is held.
func (d *desk) settled(q *question) {
	if q.state == askPending {
		d.pending[q.key.sandbox].open--
		d.dropOwner(q.key.sandbox)
	}
}

// unplace has q count as an approval no more. d.mu is held.
func (d *desk) unplace(q *question) {
	if q.state != askApproved {
		return
	}
	place := q.key.place()
	d.places[place] = slices.DeleteFunc(d.places[place], func(other *question) bool { return other == q })
	if len(d.places[place]) == 0 {
		delete(d.places, place)
	}
	d.answers.Add(-1)
}
