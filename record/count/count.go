// Package count says which decisions of a log are one request. All that count requests use it: the readers of the log, the
// summary of a run, the page and the metrics. It reads no log and decides nothing.
//
// A request may leave several decisions. These rules say how many requests a decision counts as:
//
//  1. A connection or an HTTP request counts once, allowed or refused. A record that sums counts as often as it says.
//  2. A tunnel whose requests have decisions of their own does not count, see [Carries].
//  3. A question for the addresses of a name (A, AAAA, HTTPS, SVCB) belongs to the connection of the same sandbox to that
//     name, if one follows within [Follows] of the first such question. A refused question belongs only to a refused
//     connection. Questions up to [Late] after the connection belong to it, too.
//  4. A name that no connection followed counts as often as it was asked for: a question for A and one for AAAA are one.
//  5. Any other question to a name server counts by itself.
//  6. A person is asked about a request. Once the request is decided, the question belongs to it. A request that was refused
//     because nobody had answered belongs to the request that passes with the answer.
package count

import (
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

const (
	// Follows is how long after the first question for a name a connection to it is taken for its purpose.
	Follows = time.Minute

	// Late is how long after the connection further questions are taken for a part of it: a client need not wait for
	// the answers to all that it asks.
	Late = 2 * time.Second

	mostAskings = 8192 // names that wait for a connection; beyond, the oldest stand alone
	mostHeld    = 4096 // questions to people, and refusals for want of an answer, that wait for an answer
)

// askRejected is the class of a refused name whose connection a person would be asked about.
const askRejected = "ask-rejected"

// addressTypes are the types of questions that clients ask before they connect.
var addressTypes = [...]string{"A", "AAAA", "HTTPS", "SVCB"}

// A Counted is what the rules need of one decision.
type Counted struct {
	Time    time.Time
	Sandbox string
	Host    string
	Type    string // of a question to a name server, else ""
	Action  string // allow, deny, or ask: a person was asked, and has not said yes
	Class   string
	Persons []string // IDs of questions to people, as [record.Decision.Question]
	Asks    bool     // it is such a question itself
	Times   int64    // see [record.Record.Times]
}

// Of returns the decision of a record, which has one.
func Of(r *record.Record) Counted {
	d := Counted{Time: r.Time, Sandbox: r.Sandbox, Action: r.Decision.Action, Class: r.Decision.Class, Persons: r.Decision.Question, Times: r.Times()}
	d.Asks = slices.Contains(d.Persons, r.Flow)
	switch {
	case r.DNS != nil:
		d.Host, d.Type = r.DNS.Name, r.DNS.Type
	case r.Dst != nil:
		d.Host = r.Dst.Host
	}
	if r.Names != nil {
		d.Host, d.Type = "", "" // the sum of several
	}
	return d
}

// IsName reports whether the decision is about a question for the addresses of one name.
func (d *Counted) IsName() bool { return slices.Contains(addressTypes[:], d.Type) }

// Distrusted is the outcome of an inspected tunnel whose client refused the certificate of egressd.
const Distrusted record.Outcome = "client-refused-our-certificate"

// Carries reports whether an allowed flow that has ended does not count, because its requests, or the connection in its
// place, have decisions of their own: nothing was carried in the flow itself. An inspected tunnel that failed before its first
// request counts, since no other record tells of it.
func Carries(outcome record.Outcome, inspected bool, up, down int64) bool {
	if up > 0 || down > 0 {
		return false
	}
	return outcome == record.OutcomeHTTP || outcome == record.OutcomeNamed || inspected && !unserved(outcome)
}

// unserved reports whether an inspected tunnel with that outcome had no request decided.
func unserved(outcome record.Outcome) bool {
	return outcome == Distrusted || outcome == "policy-error" || outcome == "audit-unavailable" || Failed(outcome)
}

// Failed reports whether an allowed flow with that outcome failed, in the network, at the upstream, or by its credentials.
func Failed(outcome record.Outcome) bool {
	switch outcome {
	case "upstream-refused", "malformed-response", "response-refused", "credential-refused", "credential-unavailable":
		return true
	}
	return strings.HasPrefix(string(outcome), "network-")
}

// A Counter applies the rules to decisions in the order of the log. A T stands for a decision that may yet turn out to
// belong to a later one. The zero value is ready once Belongs is set. A Counter is not safe for concurrent use.
type Counter[T any] struct {
	// Belongs is called for a decision that Add has counted n times, and that belongs to a later one: it does not count.
	Belongs func(of T, n int64)

	// Stays is called for each decision that was held and counts for good. It may be nil.
	Stays func(of T, n int64)

	askings map[name]*asking[T]
	queue   []*asking[T] // the oldest first
	persons map[string][]held[T]
	heldNow int // in persons
}

// A name is what connections are compared with.
type name struct {
	sandbox, host string
	refused       bool // only refused connections are for it
}

// An asking is questions for one name that belong together.
type asking[T any] struct {
	name
	began  time.Time
	taken  time.Time // when a connection followed; zero before
	byType [len(addressTypes)]int64
	n      int64 // the most of byType
	held   []held[T]
}

type held[T any] struct {
	of    T
	n     int64
	asked bool // it is the question itself
}

// Begins notes that a flow was allowed. A caller counts it when it ends, unless it carries.
func (c *Counter[T]) Begins(d *Counted) {
	c.Expire(d.Time)
	c.follow(d)
	for _, id := range d.Persons {
		c.answered(id, false)
	}
}

// Add returns how many requests a decision counts as. If waits is true, Add has called of, and may call Belongs for the
// result later. The strings of d are copied as far as they are kept.
func (c *Counter[T]) Add(d *Counted, of func() T) (n int64, waits bool) {
	if d.IsName() {
		c.Expire(d.Time)
		return c.ask(d, of)
	}
	if d.Type != "" {
		return d.Times, false
	}
	if d.Action == "allow" {
		c.Begins(d)
		return d.Times, false
	}
	c.Expire(d.Time)
	c.follow(d)
	for _, id := range d.Persons {
		c.answered(id, true)
	}
	if len(d.Persons) == 0 || c.heldNow >= mostHeld {
		return d.Times, false
	}
	if c.persons == nil {
		c.persons = map[string][]held[T]{}
	}
	id := strings.Clone(d.Persons[len(d.Persons)-1])
	c.persons[id] = append(c.persons[id], held[T]{of(), d.Times, d.Asks})
	c.heldNow++
	return d.Times, true
}

// Awaits reports whether Add needs to know of a connection to host.
func (c *Counter[T]) Awaits(sandbox, host string) bool {
	if len(c.askings) == 0 {
		return false
	}
	a, b := c.askings[name{sandbox, host, false}], c.askings[name{sandbox, host, true}]
	return a != nil && a.taken.IsZero() || b != nil && b.taken.IsZero()
}

// Waits returns the number of names that wait for a connection.
func (c *Counter[T]) Waits() int { return len(c.askings) }

func (c *Counter[T]) ask(d *Counted, of func() T) (n int64, waits bool) {
	key := name{d.Sandbox, d.Host, d.Action != "allow" && d.Class != askRejected}
	a := c.askings[key]
	if a == nil || !a.taken.IsZero() && d.Time.Sub(a.taken) > Late {
		a = c.newAsking(key, d.Time)
	}
	if !a.taken.IsZero() {
		return 0, false
	}
	i := slices.Index(addressTypes[:], d.Type)
	a.byType[i] += d.Times
	n = max(0, a.byType[i]-a.n)
	a.n += n
	if n > 0 {
		a.held = append(a.held, held[T]{of: of(), n: n})
	}
	return n, n > 0
}

func (c *Counter[T]) newAsking(key name, at time.Time) *asking[T] {
	if len(c.queue) >= mostAskings {
		c.settle(c.queue[0])
		c.queue = c.queue[1:]
	}
	key.sandbox, key.host = strings.Clone(key.sandbox), strings.Clone(key.host)
	a := &asking[T]{name: key, began: at}
	if c.askings == nil {
		c.askings = map[name]*asking[T]{}
	}
	delete(c.askings, key) // the strings of an earlier key may go
	c.askings[key] = a
	c.queue = append(c.queue, a)
	return a
}

// follow has the questions for a name belong to a connection.
func (c *Counter[T]) follow(d *Counted) {
	if len(c.askings) == 0 {
		return
	}
	c.take(name{d.Sandbox, d.Host, false}, d.Time)
	if d.Action != "allow" {
		c.take(name{d.Sandbox, d.Host, true}, d.Time)
	}
}

func (c *Counter[T]) take(key name, at time.Time) {
	a := c.askings[key]
	if a == nil || !a.taken.IsZero() {
		return
	}
	for _, h := range a.held {
		c.Belongs(h.of, h.n)
	}
	a.held, a.taken = nil, at
}

// answered has what waits for the answer to a question belong to a later decision: only the question, or refusals, too.
func (c *Counter[T]) answered(id string, onlyQuestion bool) {
	left := c.persons[id][:0]
	for _, h := range c.persons[id] {
		if onlyQuestion && !h.asked {
			left = append(left, h)
			continue
		}
		c.Belongs(h.of, h.n)
		c.heldNow--
	}
	if len(left) == 0 {
		delete(c.persons, id)
		return
	}
	c.persons[id] = left
}

// Expire has names stand alone that have waited for a connection long enough.
func (c *Counter[T]) Expire(now time.Time) {
	for len(c.queue) > 0 && now.Sub(c.queue[0].began) > Follows {
		c.settle(c.queue[0])
		c.queue[0] = nil
		c.queue = c.queue[1:]
	}
}

// settle ends the wait of a name.
func (c *Counter[T]) settle(a *asking[T]) {
	if c.askings[a.name] == a {
		delete(c.askings, a.name)
	}
	for _, h := range a.held {
		c.stays(h)
	}
	a.held = nil
}

func (c *Counter[T]) stays(h held[T]) {
	if c.Stays != nil {
		c.Stays(h.of, h.n)
	}
}

// Flush ends all waits, as the process that wrote the log has ended, or the log. What waits counts for good.
func (c *Counter[T]) Flush() {
	for _, a := range c.queue {
		c.settle(a)
	}
	c.queue = nil
	ids := make([]string, 0, len(c.persons))
	for id := range c.persons {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		for _, h := range c.persons[id] {
			c.stays(h)
		}
	}
	clear(c.persons)
	c.heldNow = 0
}
