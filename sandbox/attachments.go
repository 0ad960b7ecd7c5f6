package sandbox

import (
	"strconv"
	"sync"

	"github.com/egressd/egressd/policy"
)

// A Stay is one network that a sandbox has handed in, for as long as somebody is
// there for it. Its name stands for a listener: whoever comes by that, and
// nobody else, is the sandbox.
type Attachment struct {
	Sandbox policy.Sandbox
	ID      uint32
}

// attachmentPrefix begins the names of attachments, and of no listener that a configuration
// can have.
const attachmentPrefix = "attachment#"

// Listener is the name that peers of the attached come by.
func (s *Attachment) Listener() string {
	return attachmentPrefix + strconv.FormatUint(uint64(s.ID), 10)
}

// attachments are those of a directory. The zero value has none.
type attachments struct {
	mu   sync.RWMutex // guards what follows
	last uint32
	open map[string]*Attachment
}

// Admit has peers of the listener that the attached names be who, until Dismiss. The
// sandbox has to be known at each time that a peer comes, too.
func (d *Directory) Attach(who policy.Sandbox) *Attachment {
	d.attachments.mu.Lock()
	defer d.attachments.mu.Unlock()
	if d.attachments.open == nil {
		d.attachments.open = map[string]*Attachment{}
	}
	s := &Attachment{Sandbox: who}
	for s.ID == 0 || d.attachments.open[s.Listener()] != nil { // the number may have come round
		d.attachments.last++
		s.ID = d.attachments.last
	}
	s.Sandbox.Stay = s.ID
	d.attachments.open[s.Listener()] = s
	return s
}

// Dismiss has peers of the attached be nobody from now on.
func (d *Directory) Detach(s *Attachment) {
	d.attachments.mu.Lock()
	defer d.attachments.mu.Unlock()
	delete(d.attachments.open, s.Listener())
}

// Listed reports whether the configuration names the sandbox.
func (d *Directory) Listed(name string) bool { return d.known.Load().byName[name] != nil }

// Expects reports whether somebody may still come as the sandbox with that name: the
// configuration names it, nobody needs to be named, or a network of its is there.
func (d *Directory) Expects(name string) bool {
	return name == Default || d.Listed(name) || d.attachments.has(name)
}

func (s *attachments) has(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, attached := range s.open {
		if attached.Sandbox.Name == name {
			return true
		}
	}
	return false
}

// identify returns whose attached a peer comes by. What it claims counts only against
// it.
func (s *attachments) identify(r *register, p *Peer) (policy.Sandbox, error) {
	s.mu.RLock()
	attached := s.open[p.Listener]
	s.mu.RUnlock()
	switch {
	case attached == nil:
		return policy.Sandbox{}, ErrUnknown
	case len(r.byName) > 0 && r.byName[attached.Sandbox.Name] == nil: // it was removed from the configuration
		return policy.Sandbox{}, ErrUnknown
	case p.HasCredentials && p.User != attached.Sandbox.Name:
		return policy.Sandbox{}, ErrUnknown
	}
	return attached.Sandbox, nil
}

// A Attacher is who hands a network in.
type Attacher struct {
	Listener string // the socket, as configured
	UID      uint32
	Name     string // the sandbox that it says it is; may be empty

	// Host is set where the visitor is root or the daemon's own user, and in the
	// daemon's own network: then it is believed.
	Host bool

	// Container is the one that the visitor is in, or whose network it hands in, or nil.
	Container *Container

	Network uint64 // that it has come from, by the kernel's number
}

// Enter returns the sandbox that a visitor is, or [ErrUnknown]: the one whose own
// socket it has come by, and by that alone; else who it says it is, where it is
// believed; else the one whose container it is in; else the one that its user is; else,
// where none are listed, [Default]. A user and a container that are given narrow that.
func (d *Directory) IdentifyAttacher(v Attacher) (policy.Sandbox, error) {
	r := d.known.Load()
	who, err := r.attacher(v)
	if v.Container != nil {
		who.Container = v.Container.Container
	}
	if err == nil && v.Name != "" && v.Name != who.Name {
		return policy.Sandbox{}, ErrUnknown
	}
	return who, err
}

// MayAttach says, before anything was handed in, why a visitor can be no sandbox. Nil is not
// yet a yes: the host's own have to say which one they are, and which container is behind a visitor is seen
// by what it hands in.
func (d *Directory) MayAttach(v Attacher) error {
	if v.Host || len(d.known.Load().docker) > 0 {
		return nil
	}
	_, err := d.IdentifyAttacher(v)
	return err
}

func (r *register) attacher(v Attacher) (policy.Sandbox, error) {
	if e := r.byEnter[v.Listener]; e != nil {
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
