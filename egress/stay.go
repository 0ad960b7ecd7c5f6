package egress

import (
	"sync"
	"sync/atomic"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
)

// openStays are the networks that were handed in. The zero value has none.
type openStays struct{ byID sync.Map } // uint32 to *openStay

type openStay struct {
	tally *Tally
	over  atomic.Bool
}

func (s *openStays) of(id uint32) *openStay {
	if id == 0 {
		return nil
	}
	found, _ := s.byID.Load(id)
	stay, _ := found.(*openStay)
	return stay
}

// note counts what a record says. s may be nil.
func (s *openStay) note(f *Flow, r recordOf) {
	if s != nil {
		s.tally.note(f, r)
	}
}

// Begin has what comes of a stay counted in t. Without it, its flows are refused.
func (g *Gate) Begin(s *sandbox.Stay, t *Tally) { g.stays.byID.Store(s.ID, &openStay{tally: t}) }

// Cut cuts the flows of a stay, and refuses what is about to become one. They count
// until Drop.
func (g *Gate) Cut(s *sandbox.Stay) {
	if stay := g.stays.of(s.ID); stay != nil {
		stay.over.Store(true)
	}
	for _, f := range g.flowsOf(s.ID) {
		f.cut()
	}
}

// Drop forgets a stay.
func (g *Gate) Drop(s *sandbox.Stay) { g.stays.byID.Delete(s.ID) }

// FlowsOf counts the flows of a stay that are open.
func (g *Gate) FlowsOf(s *sandbox.Stay) int { return len(g.flowsOf(s.ID)) }

func (g *Gate) flowsOf(stay uint32) (all []*Flow) {
	for _, f := range g.openFlows() {
		f.mu.Lock()
		if f.request.Sandbox.Stay == stay {
			all = append(all, f)
		}
		f.mu.Unlock()
	}
	return all
}

// CutContainer cuts the flows of a container that has ended, and refuses what is about
// to become one.
func (g *Gate) CutContainer(c *policy.Container) {
	c.End()
	for _, f := range g.openFlows() {
		f.mu.Lock()
		of := f.request.Sandbox.Container
		f.mu.Unlock()
		if of == c {
			f.cut()
		}
	}
}

// left reports whether the flow came of a network, or of a container, that is no longer
// there.
func (f *Flow) left() bool {
	if f.request.Sandbox.Container.Ended() {
		return true
	}
	id := f.request.Sandbox.Stay
	if id == 0 {
		return false
	}
	stay := f.gate.stays.of(id)
	return stay == nil || stay.over.Load()
}

// gone is the decision about what came of a network that is no longer there.
var gone = policy.Decision{Class: policy.UnknownSandbox, Rule: "identity", Layer: policy.Builtin, Reason: "the sandbox has left"}

// NoteSandbox is Note for what happened to one sandbox.
func (g *Gate) NoteSandbox(kind record.Kind, who policy.Sandbox, process *policy.Process, note string) error {
	e := encoder{Encoder: record.Encoder{Line: make([]byte, 0, 256)}}
	e.Open("")
	e.Text("kind", string(kind))
	e.Text("sandbox", who.Name)
	e.container(who.Container)
	e.process(process)
	e.Text("note", note)
	e.Close()
	_, err := g.config.Log.Append(e.Line)
	return err
}
