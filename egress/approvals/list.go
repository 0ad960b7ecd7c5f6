// Package approvals keeps the questions that a policy asks people, the flows that wait for an answer, and
// the answers that still count. It decides nothing: a policy takes an approval into account when it
// decides a request.
//
// A sandbox chooses what it asks about, so each sandbox has bounds of its own.
package approvals

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/internal/boottime"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// Bounds of questions and waiting flows.
const (
	maxPendingPerSandbox = 16
	maxPending           = 512
	maxAnswers           = 1024
	maxAccessPerSandbox  = 4  // of its pending questions, those that it asks of itself
	maxHeldPerSandbox    = 64 // flows that wait
	maxHeld              = 512

	listedFor = 10 * time.Minute // after the last flow that came to a question
	accessFor = time.Hour        // of a question that a sandbox asks of itself
)

const (
	answerCheck  = 10 * time.Second // how late the end of an answer may be noticed after the machine slept
	maxClockSkew = time.Second      // between the two clocks, while the machine does not sleep
)

// A Subject is what one question is about. All flows with the same subject wait for one answer. An answer
// holds for the sandbox's name, so also for its next run.
type Subject struct {
	Sandbox string
	Layer   policy.Layer
	Source  string // as in [policy.Decision]
	Rule    string
	Host    string
	Port    uint16
	Method  string // Method and Path are "" if the rule asks regardless of the request
	Path    string
}

// covers reports whether an answer about s applies to r.
func (s *Subject) covers(r *policy.Request) bool {
	return s.destination() == destinationOf(r) &&
		(s.Method == "" || r.HTTP != nil && s.Method == r.HTTP.Method && s.Path == r.HTTP.Path)
}

// clone copies the strings: those of a request are parts of larger buffers.
func (s Subject) clone() Subject {
	s.Sandbox, s.Rule, s.Host = strings.Clone(s.Sandbox), strings.Clone(s.Rule), strings.Clone(s.Host)
	s.Method, s.Path = strings.Clone(s.Method), strings.Clone(s.Path)
	return s
}

// A destination is one host and port for one sandbox.
type destination struct {
	sandbox string
	host    string
	port    uint16
}

func (s *Subject) destination() destination {
	return destination{s.Sandbox, s.Host, s.Port}
}

func destinationOf(r *policy.Request) destination {
	return destination{r.Sandbox.Name, r.Destination.Host, r.Destination.Port}
}

// A State is the state of a question.
type State string

// The states of a question.
const (
	Pending  State = "pending"
	Approved State = "approved"
	Rejected State = "rejected"
	Gone     State = "gone" // no longer in the list
)

// A Question is a question to a person, with its answer. ID, Subject, Request, Reason, Words, Access and Began never
// change; the mutex of the List guards the other fields.
type Question struct {
	ID      record.ID
	Subject Subject
	Request policy.Request // the first request, without the parts that no record has
	Reason  string
	Words   string          // of the sandbox, about why
	Access  *policy.Opening // what the sandbox asks for of itself, and a yes grants for a time; nil: a rule asks
	Began   time.Time

	State State
	Asked int64 // flows that came to the question
	Held  int   // flows that wait
	Last  time.Time
	Until time.Time // when the question is forgotten, or its answer ends

	end     time.Duration           // Until on the clock of the List; the earlier one of both counts
	shown   time.Time               // Until as it was last shown
	givesUp time.Time               // of a copy: the least of waiting
	runs    int                     // of a copy: those that asked and whose end egressd will see
	once    map[record.ID]bool      // flows that an approval is limited to; nil: no limit
	thisRun bool                    // the answer ends when from is empty
	saved   bool                    // the policy file has what was asked for
	waiting map[record.ID]time.Time // flows, and when each gives up
	from    map[run]bool            // runs that asked and have not ended; the zero run stands for clients of the listeners
	changed chan struct{}           // closed when State changes, or waiting flows have to check again
	timer   *time.Timer
}

// Once reports whether the approval is limited to the flows that waited for it.
func (q *Question) Once() bool { return q.once != nil }

// ThisRun reports whether the answer ends with the runs that asked.
func (q *Question) ThisRun() bool { return q.thisRun }

// Saved reports whether the policy file has what was asked for, so that no further answer changes that.
func (q *Question) Saved() bool { return q.saved }

// A run is one run of a sandbox whose end egressd sees: an attached network, or a container that the engine names. The zero
// run is none.
type run struct {
	attachment uint32
	container  *policy.Container
}

func runOf(s *policy.Sandbox) run {
	if s.Attachment != 0 {
		return run{attachment: s.Attachment}
	}
	return run{container: s.Container}
}

// askedBy notes the run of a flow. A run that comes after an answer for others does not prolong it. The mutex of the List is held.
func (q *Question) askedBy(s *policy.Sandbox) {
	if q.State == Pending || !q.thisRun {
		q.from[runOf(s)] = true
	}
}

// A List has the questions of all sandboxes. In the zero value nobody can answer. It is safe for
// concurrent use.
type List struct {
	Clock         func() time.Duration // nil: boottime.Now. Set it before first use
	OnApprovalEnd func(ended Question) // is called without locks when an approval has ended
	OneRun        bool                 // all questions are of one run, which ends with this process. Set it before first use

	open      atomic.Bool  // somebody can answer
	access    atomic.Bool  // what sandboxes ask of themselves is answered without a person
	approvals atomic.Int64 // without any, no lock is taken
	wait      atomic.Int64 // how long a flow is held, in nanoseconds

	mu            sync.Mutex // guards the following fields
	byID          map[record.ID]*Question
	bySubject     map[Subject]*Question
	byDestination map[destination][]*Question // approved questions
	bySandbox     map[string]*perSandbox
	held          int // flows
	version       uint64
	changed       chan struct{} // closed when version changes
}

// perSandbox counts the questions of one sandbox name. All networks that were attached under the name
// share it, or each new attachment would have fresh bounds.
type perSandbox struct {
	template      *perSandbox // the sum of all sandboxes of the template, or nil
	pending, held int
	turned        int64     // flows whose question found no space
	last          time.Time // of the last such flow
	shown         time.Time // when followers were last notified of one
}

// holder returns the counts by which space is shared: those of the template, if there is one.
func (of *perSandbox) holder() *perSandbox { return cmp.Or(of.template, of) }

// count adds to the questions that wait for an answer, and to the flows that are held.
func (of *perSandbox) count(pending, held int) {
	of.pending += pending
	of.held += held
	if of.template != nil {
		of.template.count(pending, held)
	}
}

// Open sets whether somebody can answer, and for how long a flow is held until then. For 0 none is held.
func (l *List) Open(can bool, wait time.Duration) {
	l.wait.Store(int64(wait))
	l.open.Store(can)
	l.Wake()
}

// IsOpen reports whether somebody can answer.
func (l *List) IsOpen() bool { return l.open.Load() }

// OpenAccess sets whether what sandboxes ask of themselves is answered where no person can.
func (l *List) OpenAccess(can bool) { l.access.Store(can) }

// TakesAccess reports whether sandboxes may ask of themselves.
func (l *List) TakesAccess() bool { return l.open.Load() || l.access.Load() }

// Wait returns how long a flow is held.
func (l *List) Wait() time.Duration { return time.Duration(l.wait.Load()) }

// A Waiter is one flow at a question.
type Waiter struct {
	*Question
	New bool // the flow created the question

	list *List
	flow record.ID
	held bool // the flow may wait
}

// Join adds a flow to the question about s. The flow waits for an answer until late; at the zero time it does not wait. Join creates
// the question under id if there is none. It returns
// nil if the sandbox may not have another question. The caller calls Leave.
func (l *List) Join(s Subject, id, flow record.ID, r *policy.Request, reason, words string, late time.Time) *Waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.ready()
	l.expire(l.bySubject[s])
	of := l.sandbox(&r.Sandbox)
	q := l.bySubject[s]
	fresh := q == nil
	if fresh {
		if !l.mayAdd(of) {
			l.turnAway(of)
			return nil
		}
		q = l.add(of, s, id, r, reason, words)
	}
	q.Asked++
	q.Last = now
	q.askedBy(&r.Sandbox)
	if q.State == Pending {
		l.setEnd(q, now.Add(listedFor))
	}
	w := &Waiter{Question: q, New: fresh, list: l, flow: flow}
	if !late.IsZero() && q.State == Pending && l.wait.Load() > 0 && l.mayHold(of) && q.waiting[flow].IsZero() {
		w.held = true
		q.Held++
		of.count(0, 1)
		l.held++
		q.waiting[flow] = late
	}
	return w
}

// AskAccess returns the question about a for the sandbox of r. It creates the question under id if there is none, and fresh
// says so. It returns nil if the sandbox may not have another one. s stands for a alone.
func (l *List) AskAccess(s Subject, id record.ID, r *policy.Request, a policy.Opening, reason, words string) (q Question, fresh, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready()
	l.expire(l.bySubject[s])
	of := l.sandbox(&r.Sandbox)
	one := l.bySubject[s]
	if fresh = one == nil; fresh {
		if l.pendingAccess(s.Sandbox) >= maxAccessPerSandbox || !l.mayAdd(of) {
			l.turnAway(of)
			return Question{}, false, false
		}
		one = l.add(of, s, id, r, reason, words)
		one.Access = &a
		l.setEnd(one, time.Now().Add(accessFor))
	}
	one.Asked++
	one.Last = time.Now()
	one.askedBy(&r.Sandbox)
	return *one, fresh, true
}

func (l *List) pendingAccess(sandbox string) (n int) {
	for _, q := range l.byID {
		if q.Access != nil && q.State == Pending && q.Subject.Sandbox == sandbox {
			n++
		}
	}
	return n
}

// Find returns the question with an ID as it is now. changed is closed when that may be otherwise.
func (l *List) Find(id record.ID) (q Question, changed <-chan struct{}, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byID[id]
	if one == nil || one.State != Pending && l.ended(one) {
		return Question{}, nil, false
	}
	q = *one
	q.Until = l.endOf(one)
	return q, one.changed, true
}

// turnAway counts what found no space among the questions of a sandbox. l.mu is held.
func (l *List) turnAway(of *perSandbox) {
	now := time.Now()
	of.turned++
	of.last = now
	if now.Sub(of.shown) >= time.Second { // a flood must not keep the followers busy
		of.shown = now
		l.notify()
	}
}

// add creates a question. l.mu is held.
func (l *List) add(of *perSandbox, s Subject, id record.ID, r *policy.Request, reason, words string) *Question {
	s = s.clone()
	q := &Question{
		ID: id, Subject: s, Request: recorded(r), Reason: reason, Words: words, Began: time.Now(), State: Pending,
		waiting: map[record.ID]time.Time{}, from: map[run]bool{}, changed: make(chan struct{}),
	}
	l.byID[id], l.bySubject[s] = q, q
	of.count(1, 0)
	l.notify()
	return q
}

// mayHold reports whether another flow of a sandbox may wait. A sandbox with a waiting flow gets at most a
// quarter of the free slots, and all sandboxes of a template together as many as are free, so the last ones are for
// holders without any. l.mu is held.
func (l *List) mayHold(of *perSandbox) bool {
	free := maxHeld - l.held
	return of.holder().held < free && (of.held == 0 || of.held < min(maxHeldPerSandbox, free/4))
}

// Runs returns how many runs have asked whose end egressd will see. The question is one that [List.All] returned.
func (q *Question) Runs() int { return q.runs }

// GivesUp returns when the first of the flows gives up that wait, or the zero time. The question is one that [List.All] returned.
func (q *Question) GivesUp() time.Time { return q.givesUp }

// WaitsFor reports whether the flow is held at the pending question about s. w may be nil.
func (w *Waiter) WaitsFor(s *Subject) bool {
	if w == nil {
		return false
	}
	w.list.mu.Lock()
	defer w.list.mu.Unlock()
	return w.held && w.State == Pending && w.Subject == *s
}

// Leave ends the wait of the flow. w may be nil.
func (w *Waiter) Leave() {
	if w == nil {
		return
	}
	l, q := w.list, w.Question
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.held {
		return
	}
	w.held = false
	q.Held--
	l.held--
	delete(q.waiting, w.flow)
	l.bySandbox[q.Subject.Sandbox].count(0, -1)
	l.dropSandbox(q.Subject.Sandbox)
}

// Look returns the state of the question, until when it holds, and whether the flow may wait. changed is
// closed at the next change of these.
func (w *Waiter) Look() (state State, until time.Time, held bool, changed <-chan struct{}) {
	w.list.mu.Lock()
	defer w.list.mu.Unlock()
	return w.State, w.list.endOf(w.Question), w.held, w.Question.changed
}

// mayAdd reports whether a sandbox may have another question. In a full list, the newest question of the
// holder with most questions is evicted, unless that would only swap the two. l.mu is held.
func (l *List) mayAdd(of *perSandbox) bool {
	if of.pending >= maxPendingPerSandbox {
		return false
	}
	all := 0
	var most *perSandbox
	for _, one := range l.bySandbox {
		if one.template != nil {
			continue
		}
		all += one.pending
		if most == nil || one.pending > most.pending {
			most = one
		}
	}
	if all < maxPending {
		return true
	}
	if most.pending <= of.holder().pending+1 {
		return false
	}
	var newest *Question
	for _, q := range l.byID {
		if q.State == Pending && l.bySandbox[q.Subject.Sandbox].holder() == most && (newest == nil || q.ID > newest.ID) {
			newest = q
		}
	}
	l.remove(newest)
	return true
}

// sandbox returns the counts of a sandbox. l.mu is held.
func (l *List) sandbox(who *policy.Sandbox) *perSandbox {
	if len(l.bySandbox) >= maxPending {
		for name, of := range l.bySandbox {
			if of.pending == 0 && of.held == 0 {
				delete(l.bySandbox, name)
			}
		}
	}
	of := l.counts(who.Name)
	if who.Template != "" && of.template == nil {
		of.template = l.counts(who.Template)
		of.template.count(of.pending, of.held)
	}
	return of
}

// counts returns the counts of a sandbox or template of this name. l.mu is held.
func (l *List) counts(name string) *perSandbox {
	of := l.bySandbox[name]
	if of == nil {
		of = new(perSandbox)
		l.bySandbox[name] = of
	}
	return of
}

// dropSandbox removes the counts of a sandbox if all are 0. l.mu is held.
func (l *List) dropSandbox(name string) {
	if of := l.bySandbox[name]; of != nil && of.pending == 0 && of.held == 0 && of.turned == 0 {
		delete(l.bySandbox, name)
	}
}

// ready makes the maps. l.mu is held.
func (l *List) ready() {
	if l.byID == nil {
		l.byID, l.bySubject = map[record.ID]*Question{}, map[Subject]*Question{}
		l.byDestination, l.bySandbox = map[destination][]*Question{}, map[string]*perSandbox{}
		l.changed = make(chan struct{})
	}
}

// notify wakes the followers of the list. l.mu is held.
func (l *List) notify() {
	l.version++
	close(l.changed)
	l.changed = make(chan struct{})
}

// wake has the flows that wait for q check again. l.mu is held.
func (l *List) wake(q *Question) {
	close(q.changed)
	q.changed = make(chan struct{})
}

// now returns the time of a clock that also runs while the machine sleeps.
func (l *List) now() time.Duration {
	if l.Clock != nil {
		return l.Clock()
	}
	return boottime.Now()
}

// ended reports whether the time of q is over. l.mu is held.
func (l *List) ended(q *Question) bool {
	return !time.Now().Before(q.Until) || l.now() >= q.end
}

// endOf returns until when q holds. The result changes only if the machine slept or its clock was set.
// l.mu is held.
func (l *List) endOf(q *Question) time.Time {
	end := time.Now().Add(q.end - l.now())
	if late := end.Sub(q.Until); late > 0 {
		end = end.Add(-late) // keeps the present wall-clock reading
	}
	if end.Sub(q.shown).Abs() > maxClockSkew || end.Round(0).Sub(q.shown.Round(0)).Abs() > maxClockSkew { // by either clock
		q.shown = end
	}
	return q.shown
}

// setEnd sets when q is forgotten. l.mu is held.
func (l *List) setEnd(q *Question, at time.Time) {
	q.Until, q.shown, q.end = at, at, l.now()+time.Until(at)
	l.arm(q)
}

// arm sets the timer of q. Timers stop while the machine sleeps, so an answer is checked at least every
// answerCheck. l.mu is held.
func (l *List) arm(q *Question) {
	wait := time.Until(q.Until)
	if q.State != Pending {
		wait = min(wait, answerCheck)
	}
	if q.timer != nil {
		q.timer.Reset(wait)
		return
	}
	q.timer = time.AfterFunc(wait, func() { l.onTimer(q) })
}

func (l *List) onTimer(q *Question) {
	l.mu.Lock()
	switch {
	case l.byID[q.ID] != q:
		l.mu.Unlock()
		return
	case q.Held > 0 && q.State == Pending:
		l.setEnd(q, time.Now().Add(listedFor))
		l.mu.Unlock()
		return
	case !l.ended(q): // the time was extended, or the timer was an interim one
		l.arm(q)
		l.mu.Unlock()
		return
	}
	ended := *q
	l.remove(q)
	l.mu.Unlock()
	if ended.State == Approved {
		l.OnApprovalEnd(ended)
	}
}

// expire removes an answer that is over before its timer does. l.mu is held.
func (l *List) expire(q *Question) {
	if q == nil || q.State == Pending || !l.ended(q) {
		return
	}
	was := q.State
	l.remove(q)
	if was == Approved {
		ended := *q
		time.AfterFunc(0, func() { l.OnApprovalEnd(ended) }) // without l.mu
	}
}

// remove removes a question. The caller, which holds l.mu, calls OnApprovalEnd later if q was approved.
func (l *List) remove(q *Question) {
	q.timer.Stop()
	l.unapprove(q)
	delete(l.byID, q.ID)
	if l.bySubject[q.Subject] == q {
		delete(l.bySubject, q.Subject)
	}
	l.settle(q)
	q.State = Gone
	l.wake(q)
	l.notify()
}

// settle counts q out of the pending questions. l.mu is held.
func (l *List) settle(q *Question) {
	if q.State == Pending {
		l.bySandbox[q.Subject.Sandbox].count(-1, 0)
		l.dropSandbox(q.Subject.Sandbox)
	}
}

// unapprove removes q from the approvals. l.mu is held.
func (l *List) unapprove(q *Question) {
	if q.State != Approved || q.Access != nil {
		return
	}
	to := q.Subject.destination()
	l.byDestination[to] = slices.DeleteFunc(l.byDestination[to], func(other *Question) bool { return other == q })
	if len(l.byDestination[to]) == 0 {
		delete(l.byDestination, to)
	}
	l.approvals.Add(-1)
}
