package sandbox

import (
	"context"
	"net/netip"
	"slices"

	"github.com/egressd/egressd/policy"
)

// A Container is a running container, as its engine describes it. It is never changed.
type Container struct {
	*policy.Container
	Labels map[string]string
	PID    int // of its first process, as the engine sees it
}

// An Engine knows the running containers. It is safe for concurrent use.
type Engine interface {
	// At returns the container with an address, or nil. expected is set if only containers can have the address.
	At(netip.Addr) (k *Container, expected bool)
	// Await waits until the container of such an address is known, or the engine fails.
	Await(context.Context, netip.Addr)
	// Behind returns the container of a process, or nil. It may wait for the engine.
	Behind(pid int) *Container
	// Trouble returns why the engine cannot be asked, or nil.
	Trouble() error
}

// SetEngine lets the directory identify peers by their containers, too.
func (d *Directory) SetEngine(e Engine) { d.engine.Store(&e) }

// container returns the container with the peer's address. If expected is set, only a container can have this
// address, and nothing else identifies the peer.
func (d *Directory) container(r *register, p *Peer) (k *Container, expected bool) {
	e := d.engine.Load()
	if len(r.docker) == 0 || !p.Addr.IsValid() || e == nil {
		return nil, false
	}
	return (*e).At(p.Addr.Addr())
}

// Await waits for the engine to name the container at the peer's address, if it has not done so yet. An engine
// reports a started container a little late.
func (d *Directory) Await(ctx context.Context, p Peer) {
	if d.Awaits(p) {
		(*d.engine.Load()).Await(ctx, p.Addr.Addr())
	}
}

// Awaits reports whether Await would wait.
func (d *Directory) Awaits(p Peer) bool {
	r := d.known.Load()
	if r == nil {
		return false
	}
	k, expected := d.container(r, &p)
	return k == nil && expected && (*d.engine.Load()).Trouble() == nil
}

// Behind returns the container of a process, for [Attacher]. It returns nil if no sandbox is identified by
// containers.
func (d *Directory) Behind(pid int) *Container {
	e := d.engine.Load()
	if e == nil || len(d.known.Load().docker) == 0 {
		return nil
	}
	return (*e).Behind(pid)
}

// Claims returns the names of the sandboxes that a container belongs to. If there are two, peers in the
// container are unknown.
func (d *Directory) Claims(k *Container) (names []string) {
	for _, e := range d.known.Load().holding(k) {
		names = append(names, e.sandbox.Name)
	}
	return names
}

// fits reports whether a client has the user and the container that the entry requires.
func (e *registered) fits(v Attacher) bool {
	if e.docker.Given() && (v.Container == nil || !e.docker.Holds(v.Container.Name, v.Container.Labels)) {
		return false
	}
	return len(e.uids) == 0 || slices.Contains(e.uids, v.UID)
}
