package egress

import (
	"sync"
	"sync/atomic"

	"github.com/egressd/egressd/policy"
)

// Attachments are the attached networks that flows may come from, by the ID of each. They are safe for concurrent use.
type Attachments struct {
	flows *Flows
	byID  sync.Map // uint32 to *attachment
}

type attachment struct {
	tally *Tally
	over  atomic.Bool
}

func (a *Attachments) find(id uint32) *attachment {
	if id == 0 {
		return nil
	}
	found, _ := a.byID.Load(id)
	one, _ := found.(*attachment)
	return one
}

// note counts what a record says. a may be nil.
func (a *attachment) note(f *Flow, r recordOf) {
	if a != nil {
		a.tally.note(f, r)
	}
}

// Begin has the flows of an attachment counted in t. Without Begin, they are refused.
func (a *Attachments) Begin(id uint32, t *Tally) { a.byID.Store(id, &attachment{tally: t}) }

// Cut cuts the flows of an attachment, and refuses a flow of it that is being opened. Flows are counted until Drop.
func (a *Attachments) Cut(id uint32) {
	if one := a.find(id); one != nil {
		one.over.Store(true)
	}
	for _, f := range a.flowsOf(id) {
		f.cut()
	}
}

// Drop forgets an attachment.
func (a *Attachments) Drop(id uint32) { a.byID.Delete(id) }

// Flows counts the open flows of an attachment.
func (a *Attachments) Flows(id uint32) int { return len(a.flowsOf(id)) }

func (a *Attachments) flowsOf(id uint32) []*Flow {
	return a.flows.of(func(s *policy.Sandbox) bool { return s.Attachment == id })
}

// left reports whether the network or the container of a sandbox is gone.
func (a *Attachments) left(s *policy.Sandbox) bool {
	if s.Container.Ended() {
		return true
	}
	if s.Attachment == 0 {
		return false
	}
	one := a.find(s.Attachment)
	return one == nil || one.over.Load()
}

// gone is the decision about a flow whose network or container is gone.
var gone = policy.Decision{Class: policy.UnknownSandbox, Rule: "identity", Layer: policy.Builtin, Reason: "the sandbox has left"}
