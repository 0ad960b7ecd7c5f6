package approvals

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// How long an answer counts.
const (
	ApprovedFor = time.Hour        // by default
	RejectedFor = 10 * time.Minute // by default
	MaxAnswer   = 24 * time.Hour
)

// The reasons why an answer is not accepted.
var (
	ErrNoQuestion     = errors.New("there is no question with that id, or no longer")
	ErrAnswered       = errors.New("somebody has answered the question already")
	ErrNobodyWaits    = errors.New("nobody waits for the answer now, so there is nothing to approve once")
	ErrNoRun          = errors.New("egressd sees no end of a run that asked: it has ended already, or it reaches egressd through a listener")
	ErrSaved          = errors.New("the policy file has it for good")
	ErrTooManyAnswers = errors.New("too many answers count at a time")
)

// An Answer is what somebody said to a question.
type Answer struct {
	Yes     bool          // otherwise it is not asked again for that time, and an approval is revoked
	Lasts   time.Duration // how long it counts
	Once    bool          // a yes applies only to the flows that wait now
	ThisRun bool          // it ends with the last of the runs that asked, and after Lasts
	Saved   bool          // the policy in force has it for good
	First   bool          // it counts only if the question has no answer yet
}

// Answer answers a question. The caller has recorded the answer before.
func (l *List) Answer(id record.ID, a Answer) error {
	l.mu.Lock()
	q := l.byID[id]
	var err error
	switch {
	case q == nil:
		err = ErrNoQuestion
	case a.First && q.State != Pending:
		err = ErrAnswered
	case q.saved:
		err = ErrSaved
	case a.Once && q.Held == 0:
		err = ErrNobodyWaits
	case a.ThisRun && l.runs(q) == 0:
		err = ErrNoRun
	case q.State == Pending && len(l.byID) >= maxAnswers+maxPending:
		err = ErrTooManyAnswers
	}
	if err != nil {
		l.mu.Unlock()
		return err
	}
	was := *q
	l.settle(q)
	l.unapprove(q)
	q.State, q.once, q.thisRun, q.saved = Rejected, nil, a.ThisRun && !l.OneRun, a.Saved
	if a.Yes {
		q.State = Approved
	}
	if a.Yes && q.Access == nil { // else a grant is what opens
		to := q.Subject.destination()
		l.byDestination[to] = append(l.byDestination[to], q)
		l.approvals.Add(1)
	}
	if a.Yes && a.Once {
		q.once = map[record.ID]bool{}
		for flow := range q.waiting {
			q.once[flow] = true
		}
		delete(l.bySubject, q.Subject) // later flows ask again
	}
	l.setEnd(q, time.Now().Add(a.Lasts))
	if q.once == nil {
		l.answerNewer(q)
	}
	l.wake(q)
	l.notify()
	l.mu.Unlock()
	if was.State == Approved {
		l.OnApprovalEnd(was) // flows may depend on the approval before
	}
	return nil
}

// runs counts the runs that asked q and whose end egressd will see. l.mu is held.
func (l *List) runs(q *Question) int {
	n := len(q.from)
	if q.from[run{}] && !l.OneRun {
		n--
	}
	return n
}

// answerNewer gives the answer to q to later flows, too, and to a newer pending question about the same
// subject. l.mu is held.
func (l *List) answerNewer(q *Question) {
	newer := l.bySubject[q.Subject]
	switch {
	case newer == nil:
		l.bySubject[q.Subject] = q
	case newer != q && newer.State == Pending:
		l.remove(newer)
		newer.State, newer.Until, newer.shown, newer.end = q.State, q.Until, q.shown, q.end // for the flows that wait there
		l.bySubject[q.Subject] = q
	}
}

// Remove removes a question that the policy no longer asks, or that could not be recorded.
func (l *List) Remove(id record.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.byID[id]; q != nil {
		l.remove(q)
	}
}

// RunEnded removes the pending questions that nobody but this run asked, and the answers that end with it. Other answers stay,
// for the next run of the sandbox. who is the sandbox of any flow of the run.
func (l *List) RunEnded(who *policy.Sandbox) {
	over, ended := runOf(who), []Question(nil)
	l.mu.Lock()
	for _, q := range l.byID {
		if !q.from[over] || over == (run{}) {
			continue
		}
		delete(q.from, over)
		switch {
		case q.State == Pending && len(q.from) == 0, q.thisRun && l.runs(q) == 0:
			ended = append(ended, *q)
			l.remove(q)
		}
	}
	l.mu.Unlock()
	for _, q := range ended {
		if q.State == Approved {
			l.OnApprovalEnd(q)
		}
	}
}

// Wake has all waiting flows check their question again, and notifies the followers of the list.
func (l *List) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready()
	l.notify()
	for _, q := range l.byID {
		l.wake(q)
	}
}

// AllApply reports whether all approvals with these IDs, separated by spaces, apply to a flow.
func (l *List) AllApply(ids string, flow record.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range strings.Fields(ids) {
		id, _ := record.ParseID(text)
		q := l.byID[id]
		if q == nil || q.State != Approved || l.ended(q) || q.once != nil && !q.once[flow] {
			return false
		}
	}
	return true
}

// Of returns the approvals that apply to a request of a flow.
func (l *List) Of(flow record.ID, r *policy.Request) (all []policy.Approval) {
	if l.approvals.Load() == 0 || r.DNS != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.byDestination[destinationOf(r)] {
		if q.Subject.covers(r) && !l.ended(q) && (q.once == nil || q.once[flow]) {
			all = append(all, policy.Approval{Layer: q.Subject.Layer, Source: q.Subject.Source, Rule: q.Subject.Rule, Question: q.ID.String()})
		}
	}
	return all
}

// Inherit extends one-time approvals of a tunnel to a request inside it.
func (l *List) Inherit(tunnel, request record.ID) {
	l.eachOnce(func(q *Question) {
		if q.once[tunnel] {
			q.once[request] = true
		}
	})
}

// FlowEnded forgets a flow.
func (l *List) FlowEnded(flow record.ID) {
	l.eachOnce(func(q *Question) { delete(q.once, flow) })
}

// eachOnce calls do with each one-time approval.
func (l *List) eachOnce(do func(*Question)) {
	if l.approvals.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, all := range l.byDestination {
		for _, q := range all {
			if q.once != nil {
				do(q)
			}
		}
	}
}

// A Turned is how many flows of a sandbox came to a question that found no space.
type Turned struct {
	Sandbox string    `json:"sandbox"`
	Count   int64     `json:"count"`
	Last    time.Time `json:"last"`
}

// All returns copies of the questions, oldest first, and the turned flows of the last minutes by sandbox.
// changed is closed when version changes.
func (l *List) All() (all []*Question, turned []Turned, version uint64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready()
	for name, of := range l.bySandbox {
		if of.turned > 0 && time.Since(of.last) < listedFor {
			turned = append(turned, Turned{name, of.turned, of.last.UTC()})
		}
	}
	slices.SortFunc(turned, func(a, b Turned) int { return cmp.Compare(a.Sandbox, b.Sandbox) })
	for _, q := range l.byID {
		copied := *q
		copied.Until, copied.runs = l.endOf(q), l.runs(q)
		for _, late := range q.waiting {
			if copied.givesUp.IsZero() || late.Before(copied.givesUp) {
				copied.givesUp = late
			}
		}
		all = append(all, &copied)
	}
	slices.SortFunc(all, func(a, b *Question) int { return cmp.Compare(a.ID, b.ID) })
	return all, turned, l.version, l.changed
}

// recorded returns r without the parts that no record has: headers and queries hold secrets.
func recorded(r *policy.Request) policy.Request {
	c := *r
	c.Approved, c.Usage = nil, nil
	c.Destination.Host = strings.Clone(c.Destination.Host)
	if r.HTTP != nil {
		c.HTTP = &policy.HTTPRequest{
			Method: strings.Clone(r.HTTP.Method), Path: strings.Clone(r.HTTP.Path),
			BodySize: r.HTTP.BodySize, Authority: strings.Clone(r.HTTP.Authority), Upgrade: r.HTTP.Upgrade, OtherProtocol: r.HTTP.OtherProtocol, ReplacesMethod: r.HTTP.ReplacesMethod,
		}
	}
	return c
}
