package egress

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
)

// Why an answer does not count.
var (
	ErrNoQuestion     = errors.New("there is no question with that id, or no longer")
	ErrNobodyWaits    = errors.New("nobody waits for the answer now, so there is nothing to approve once")
	ErrTooManyAnswers = errors.New("too many answers count at a time")
)

// answer notes what a person says to a question, also to one that was answered before. With
// once, a yes is for the flows that wait now, and for no other.
func (d *desk) answer(id ID, yes bool, counts time.Duration, once bool) error {
	d.mu.Lock()
	q := d.byID[id]
	var err error
	switch {
	case q == nil:
		err = ErrNoQuestion
	case once && q.held == 0:
		err = ErrNobodyWaits
	case q.state == askPending && len(d.byID) >= answeredMost+asksMost:
		err = ErrTooManyAnswers
	}
	if err != nil {
		d.mu.Unlock()
		return err
	}
	was := q.state
	d.settled(q)
	d.unplace(q)
	q.state, q.once = askRejected, nil
	if yes {
		q.state = askApproved
		d.places[q.key.place()] = append(d.places[q.key.place()], q)
		d.answers.Add(1)
	}
	if yes && once {
		q.once = maps.Clone(q.waiting)
		delete(d.byKey, q.key) // who comes later asks anew
	}
	d.forgetAt(q, time.Now().Add(counts))
	if q.once == nil {
		d.answersAll(q)
	}
	d.wake(q)
	d.tell()
	d.mu.Unlock()
	if was == askApproved {
		d.ended(id) // who needed it and has it no more
	}
	return nil
}

// answersAll has the answer to q be that to whoever asks the same, also to those who do so at a
// newer question that nobody has answered. d.mu is held.
func (d *desk) answersAll(q *question) {
	newer := d.byKey[q.key]
	switch {
	case newer == nil:
		d.byKey[q.key] = q
	case newer != q && newer.state == askPending:
		d.forget(newer)
		newer.state, newer.until, newer.told, newer.end = q.state, q.until, q.told, q.end // for the flows that wait there
		d.byKey[q.key] = q
	}
}

// drop forgets a question that the policy does not ask any more, or that is in no record.
func (d *desk) drop(id ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.byID[id]; q != nil {
		d.forget(q)
	}
}

// look has all flows that wait look at their question again, and all who follow the list at that.
func (d *desk) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready()
	d.tell()
	for _, q := range d.byID {
		d.wake(q)
	}
}

// stand reports whether the approvals with those ids count for a flow.
func (d *desk) stand(ids string, flow ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, text := range strings.Fields(ids) {
		id, _ := ParseID(text)
		q := d.byID[id]
		if q == nil || q.state != askApproved || d.past(q) || q.once != nil && !q.once[flow] {
			return false
		}
	}
	return true
}

// approvals returns what is approved of a request of the flow with that ID.
func (d *desk) approvals(flow ID, r *policy.Request) (all []policy.Approval) {
	if d.answers.Load() == 0 || r.DNS != nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	place := askKey{sandbox: r.Sandbox.Name, stay: r.Sandbox.Stay, host: r.Destination.Host, port: r.Destination.Port}
	for _, q := range d.places[place] {
		if q.key.covers(r) && !d.past(q) && (q.once == nil || q.once[flow]) {
			all = append(all, policy.Approval{Layer: q.key.layer, Rule: q.key.rule, Question: q.id.String()})
		}
	}
	return all
}

// inherit has what was approved once for a tunnel be so for a request in it.
func (d *desk) inherit(tunnel, request ID) {
	d.once(func(q *question) {
		if q.once[tunnel] {
			q.once[request] = true
		}
	})
}

// left forgets a flow that has ended.
func (d *desk) left(flow ID) {
	d.once(func(q *question) { delete(q.once, flow) })
}

// once calls do with each approval that is for certain flows alone.
func (d *desk) once(do func(*question)) {
	if d.answers.Load() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, all := range d.places {
		for _, q := range all {
			if q.once != nil {
				do(q)
			}
		}
	}
}

// all returns the questions, and how many are in no list, oldest first; and what is closed
// when that changes.
func (d *desk) all() (all []*question, turned map[string]asksOf, version uint64, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ready()
	turned = map[string]asksOf{}
	for o, of := range d.pending {
		if of.turned > 0 && time.Since(of.last) < askListed {
			turned[o] = *of
		}
	}
	for _, q := range d.byID {
		copied := *q
		copied.until = d.ends(q)
		all = append(all, &copied)
	}
	slices.SortFunc(all, func(a, b *question) int { return cmp.Compare(a.id, b.id) })
	return all, turned, d.version, d.changed
}

// shownOf is a request without what is in no record: headers and queries hold secrets.
func shownOf(r *policy.Request) *policy.Request {
	c := *r
	c.Approved, c.Usage = nil, nil
	c.Destination.Host = strings.Clone(c.Destination.Host)
	if r.HTTP != nil {
		c.HTTP = &policy.HTTPRequest{
			Method: strings.Clone(r.HTTP.Method), Path: strings.Clone(r.HTTP.Path),
			BodySize: r.HTTP.BodySize, Authority: strings.Clone(r.HTTP.Authority), Upgrade: r.HTTP.Upgrade,
		}
	}
	return &c
}
