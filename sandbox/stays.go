package sandbox

import (
	"strconv"
	"sync"

	"github.com/egressd/egressd/policy"
)

// A Stay is one network that a sandbox has handed in, for as long as somebody is
// there for it. Its name stands for a listener: whoever comes by that, and
// nobody else, is the sandbox.
type Stay struct {
	Sandbox policy.Sandbox
	ID      uint32
}

// stayPrefix begins the names of stays, and of no listener that a configuration
// can have.
const stayPrefix = "stay#"

// Listener is the name that peers of the stay come by.
func (s *Stay) Listener() string { return stayPrefix + strconv.FormatUint(uint64(s.ID), 10) }

// stays are those of a directory. The zero value has none.
type stays struct {
	mu   sync.RWMutex // guards what follows
	last uint32
	open map[string]*Stay
}

// Admit has peers of the listener that the stay names be who, until Dismiss. The
// sandbox has to be known at each time that a peer comes, too.
func (d *Directory) Admit(who policy.Sandbox) *Stay {
	d.stays.mu.Lock()
	defer d.stays.mu.Unlock()
	if d.stays.open == nil {
		d.stays.open = map[string]*Stay{}
	}
	s := &Stay{Sandbox: who}
	for s.ID == 0 || d.stays.open[s.Listener()] != nil { // the number may have come round
		d.stays.last++
		s.ID = d.stays.last
	}
	s.Sandbox.Stay = s.ID
	d.stays.open[s.Listener()] = s
	return s
}

// Dismiss has peers of the stay be nobody from now on.
func (d *Directory) Dismiss(s *Stay) {
	d.stays.mu.Lock()
	defer d.stays.mu.Unlock()
	delete(d.stays.open, s.Listener())
}

// Listed reports whether the configuration names the sandbox.
func (d *Directory) Listed(name string) bool { return d.known.Load().byName[name] != nil }

// Expects reports whether somebody may still come as the sandbox with that name: the
// configuration names it, nobody needs to be named, or a network of its is there.
func (d *Directory) Expects(name string) bool {
	return name == Default || d.Listed(name) || d.stays.has(name)
}

func (s *stays) has(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, stay := range s.open {
		if stay.Sandbox.Name == name {
			return true
		}
	}
	return false
}

// identify returns whose stay a peer comes by. What it claims counts only against
// it.
func (s *stays) identify(r *register, p *Peer) (policy.Sandbox, error) {
	s.mu.RLock()
	stay := s.open[p.Listener]
	s.mu.RUnlock()
	switch {
	case stay == nil:
		return policy.Sandbox{}, ErrUnknown
	case len(r.byName) > 0 && r.byName[stay.Sandbox.Name] == nil: // it was removed from the configuration
		return policy.Sandbox{}, ErrUnknown
	case p.HasCredentials && p.User != stay.Sandbox.Name:
		return policy.Sandbox{}, ErrUnknown
	}
	return stay.Sandbox, nil
}

// A Visitor is who hands a network in.
type Visitor struct {
	Door string // the socket, as configured
	UID  uint32
	Name string // the sandbox that it says it is; may be empty

	// Host is set where the visitor is root or the daemon's own user, and in the
	// daemon's own network: then it is believed.
	Host bool

	// Container is the one that the visitor is in, or whose network it hands in, or nil.
	Container *Container

	network uint64 // that it has come from
}

// Enter returns the sandbox that a visitor is, or [ErrUnknown]: the one whose own
// socket it has come by, and by that alone; else who it says it is, where it is
// believed; else the one whose container it is in; else the one that its user is; else,
// where none are listed, [Default]. A user and a container that are given narrow that.
func (d *Directory) Enter(v Visitor) (policy.Sandbox, error) {
	r := d.known.Load()
	who, err := r.visitor(v)
	if v.Container != nil {
		who.Container = v.Container.Container
	}
	if err == nil && v.Name != "" && v.Name != who.Name {
		return policy.Sandbox{}, ErrUnknown
	}
	return who, err
}

// MayEnter says, before anything was handed in, why a visitor can be no sandbox. Nil is not
// yet a yes: the host's own have to say which one they are, and which container is behind a visitor is seen
// by what it hands in.
func (d *Directory) MayEnter(v Visitor) error {
	if v.Host || len(d.known.Load().docker) > 0 {
		return nil
	}
	_, err := d.Enter(v)
	return err
}

func (r *register) visitor(v Visitor) (policy.Sandbox, error) {
	if e := r.byEnter[v.Door]; e != nil {
		if !e.fits(v) {
			return policy.Sandbox{}, ErrUnknown
		}
		return e.sandbox, nil
	}
	switch e := r.byName[v.Name]; {
	case v.Host && e != nil:
		return e.sandbox, nil
	case v.Host && len(r.byName) == 0 && PlainName(v.Name):
		return policy.Sandbox{Name: v.Name, Kind: byListener.kind()}, nil
	}
	if holding := r.holding(v.Container); len(holding) > 0 {
		if e := holding[0]; len(holding) == 1 && e.keys&^(byUID|byContainer) == 0 && e.fits(v) {
			return e.sandbox, nil
		}
		return policy.Sandbox{}, ErrUnknown
	}
	if e := r.byUID[v.UID]; e != nil && e.keys&^byEnter == byUID {
		return e.sandbox, nil
	}
	if len(r.byName) == 0 {
		return policy.Sandbox{Name: Default}, nil
	}
	return policy.Sandbox{}, ErrUnknown
}
