package sandbox

import (
	"strconv"
	"sync"

	"github.com/egressd/egressd/policy"
)

// An Attachment is one network that a sandbox has attached. [Attachment.Listener] is the listener of the
// network's peers, and every peer of that listener is the sandbox.
type Attachment struct {
	Sandbox policy.Sandbox
	ID      uint32
}

// attachmentPrefix begins the listener names of attachments. No configured listener can begin with it.
const attachmentPrefix = "attachment#"

// Listener returns the listener name of the attachment's peers.
func (s *Attachment) Listener() string {
	return attachmentPrefix + strconv.FormatUint(uint64(s.ID), 10)
}

// attachedNetworks are the attachments of a directory. The zero value has none.
type attachedNetworks struct {
	mu   sync.RWMutex // guards what follows
	last uint32
	open map[string]*Attachment
}

// Attach makes peers of a new attachment the sandbox, until Detach. While sandboxes are listed, the sandbox has
// to be listed, too.
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
	s.Sandbox.Attachment = s.ID
	d.attachments.open[s.Listener()] = s
	return s
}

// Detach makes peers of the attachment unknown.
func (d *Directory) Detach(s *Attachment) {
	d.attachments.mu.Lock()
	defer d.attachments.mu.Unlock()
	delete(d.attachments.open, s.Listener())
}

// Listed reports whether the configuration names the sandbox, or has a template for it.
func (d *Directory) Listed(name string) bool {
	return d.known.Load().byName[name] != nil || d.Template(name) != ""
}

// Expects reports whether a peer may come as the sandbox with that name: the sandbox is listed, is [Default],
// or has an attachment.
func (d *Directory) Expects(name string) bool {
	return name == Default || d.Listed(name) || d.attachments.has(name)
}

func (s *attachedNetworks) has(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, attached := range s.open {
		if attached.Sandbox.Name == name {
			return true
		}
	}
	return false
}

// identify returns the sandbox whose attachment a peer comes from. A claim of another name makes the peer
// unknown.
func (s *attachedNetworks) identify(r *register, p *Peer) (policy.Sandbox, error) {
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

// An Attacher is a client that attaches a network.
type Attacher struct {
	Listener string // the socket, as configured
	UID      uint32
	Name     string // the sandbox that it says it is; may be empty

	// Host is set for root and for the daemon's own user, in the daemon's own network. The daemon believes the
	// name that such a client gives.
	Host bool

	// Container is the container of the client or of the attached process, or nil.
	Container *Container

	Network uint64 // that it has come from, by the kernel's number
}

// IdentifyAttacher returns the sandbox of a client that attaches a network, or [ErrUnknown]. The first of these
// decides: the sandbox whose own socket the client uses; the name that a client of the host gives; the client's
// container; the client's user; [Default], if no sandboxes are listed. A sandbox that lists users or containers
// accepts no other clients at its own socket.
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

// MayAttach returns an error if a client can be no sandbox, before the client has sent a request. Nil does not
// mean that it is one: a client of the host gives its name with the request, and the container follows from the
// attached process.
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
	case v.Host && e != nil && e.name == (policy.Template{}):
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
