package egress

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/egressd/egressd/record"
)

// An Ask is what a person is shown of a question. The host is canonical; Method, Path and the
// program's file and arguments are text that a sandbox chose, and so is a part of Reason where
// a policy in Rego makes it so.
type Ask struct {
	ID      string `json:"id"`
	State   string `json:"state"` // pending, approved, rejected
	Sandbox string `json:"sandbox"`
	Host    string `json:"host"`
	Port    uint16 `json:"port"`
	Method  string `json:"method,omitempty"` // and Path: absent where any request is meant
	Path    string `json:"path,omitempty"`
	Rule    string `json:"rule"`
	Layer   string `json:"layer"`
	Reason  string `json:"reason,omitempty"`
	Via     string `json:"via"` // of the flow that first asked, as are Process and Container

	Process   *record.Process   `json:"process,omitempty"`
	Container *record.Container `json:"container,omitempty"`

	Asked   int64     `json:"asked"`          // flows that have come to it
	Waiting int       `json:"waiting"`        // of them, those that are held now
	Once    bool      `json:"once,omitempty"` // approved for flows that waited, and for no other
	Began   time.Time `json:"began"`
	Last    time.Time `json:"last"` // when it was asked last
	Until   time.Time `json:"until"`
}

// Turned is how often a sandbox asked what found no room among its questions.
type Turned struct {
	Sandbox string    `json:"sandbox"`
	Count   int64     `json:"count"`
	Last    time.Time `json:"last"`
}

// Asks are all questions, and what is not among them.
type Asks struct {
	Version   uint64   `json:"version"` // another one once something has changed
	Open      bool     `json:"open"`    // somebody can answer
	Questions []Ask    `json:"questions"`
	Turned    []Turned `json:"turned_away,omitempty"`
}

// Asks returns the questions, oldest first: at once, or, where their version is after, once
// something changes or ctx is done.
func (g *Gate) Asks(ctx context.Context, after uint64) Asks {
	for {
		all, turned, version, changed := g.desk.all()
		if version == after && ctx.Err() == nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
			}
		}
		a := Asks{Version: version, Open: g.desk.open.Load(), Questions: make([]Ask, 0, len(all))}
		for _, q := range all {
			a.Questions = append(a.Questions, g.show(q))
		}
		for o, of := range turned {
			a.Turned = append(a.Turned, Turned{o, of.turned, of.last.UTC()})
		}
		slices.SortFunc(a.Turned, func(a, b Turned) int { return cmp.Compare(a.Sandbox, b.Sandbox) })
		return a
	}
}

// Ask returns the question with that ID, if there is one.
func (g *Gate) Ask(id ID) (Ask, bool) {
	all, _, _, _ := g.desk.all()
	for _, q := range all {
		if q.id == id {
			return g.show(q), true
		}
	}
	return Ask{}, false
}

func (g *Gate) show(q *question) Ask {
	f := Flow{gate: g, request: &q.request}
	a := Ask{
		ID: q.id.String(), State: string(q.state), Sandbox: q.key.sandbox, Host: f.shown(q.key.host), Port: q.key.port,
		Method: q.key.method, Path: g.maskedText(q.key.path), Rule: q.key.rule, Layer: string(q.key.layer), Reason: q.reason, Via: string(q.request.Via),
		Asked: q.asked, Waiting: q.held, Once: q.once != nil, Began: q.began.UTC(), Last: q.last.UTC(), Until: q.until.UTC(),
	}
	if p := q.request.Process; p != nil {
		a.Process = &record.Process{PID: p.PID, Exe: p.Exe, Argv: p.Argv[:min(len(p.Argv), record.MaxList)]}
	}
	if c := q.request.Sandbox.Container; c != nil {
		a.Container = &record.Container{ID: c.ID[:min(len(c.ID), containerID)], Name: c.Name, Image: c.Image, Project: c.Project, Service: c.Service}
	}
	return a
}

// Approve lets pass what a question is about, for a time; with once, the flows that wait now
// and no other. What else the policy has to say of them still counts. Whoever calls it has
// recorded it before.
func (g *Gate) Approve(id ID, counts time.Duration, once bool) error {
	return g.desk.answer(id, true, counts, once)
}

// Reject refuses what a question is about, for a time, without asking again, and takes back
// that it was approved.
func (g *Gate) Reject(id ID, counts time.Duration) error {
	return g.desk.answer(id, false, counts, false)
}

// maskedText is text with canaries written over.
func (g *Gate) maskedText(text string) string {
	b := []byte(text)
	g.mask(b)
	return string(b)
}
