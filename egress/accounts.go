package egress

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// accountsSwept is the number of accounts from which unused ones are searched for.
const accountsSwept = 64

// accounts are those of all sandboxes. They are safe for concurrent use.
type accounts struct {
	sandboxes *sandbox.Directory   // final
	onDrop    func(sandbox string) // final; called with mu held

	mu                     sync.Mutex // guards what follows
	bySandbox              map[string]*account
	instances              map[*account]string // the accounts of sandboxes of templates, with their names
	turns                  int64               // how often an account was asked for
	swept                  int                 // accounts that were left by the last sweep
	droppedUp, droppedDown int64
}

func (s *accounts) of(sandbox string) *account {
	s.mu.Lock()
	defer s.mu.Unlock()
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
		s.bySandbox, s.instances = map[string]*account{}, map[*account]string{}
	}
	if len(s.bySandbox) > 2*s.swept+accountsSwept {
		s.sweep()
	}
	a := new(account)
	s.bySandbox[sandbox] = a
	if s.sandboxes.Template(sandbox) != "" {
		s.instances[a] = sandbox
	}
	return a
}

// instancesMost bounds the sandboxes of templates that have an account: whoever has the token of a template chooses
// their ids.
const instancesMost = 4096

// makeRoom reports whether a sandbox of a template may be given an account, or has one. The instances that were idle
// for longest are forgotten to make room.
func (s *accounts) makeRoom(sandbox string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bySandbox[sandbox] != nil || len(s.instances) < instancesMost {
		return true
	}
	oldest := slices.SortedFunc(maps.Keys(s.instances), func(a, b *account) int { return cmp.Compare(a.lastTurn, b.lastTurn) })
	for _, a := range oldest {
		if a.retire() {
			s.drop(s.instances[a], a)
		}
		if len(s.instances) < instancesMost-instancesMost/8 { // so that not each new one has to search
			break
		}
	}
	return len(s.instances) < instancesMost
}

// sweep drops the accounts of sandboxes that are gone: an attached sandbox may have had any name. s.mu is held.
func (s *accounts) sweep() {
	for name, a := range s.bySandbox {
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
	delete(s.instances, a)
	s.onDrop(name)
}

// errNoRoom is the error for one more sandbox of a template.
type errNoRoom struct{ template, name string }

func (e errNoRoom) Error() string {
	return fmt.Sprintf("%d sandboxes of templates such as %s have connections open, so %s cannot be added", instancesMost, e.template, e.name)
}

// identify returns the sandbox of a peer, for which there is an account or room for one. After an error, the result has
// as much as may be recorded: the container, and the template for which there is no room.
func (s *accounts) identify(peer sandbox.Peer) (policy.Sandbox, error) {
	who, err := s.sandboxes.Identify(peer)
	if err != nil {
		return who, err
	}
	if template := s.sandboxes.Template(who.Name); template != "" && !s.makeRoom(who.Name) {
		err = errNoRoom{template, who.Name}
		who.Name = template
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
