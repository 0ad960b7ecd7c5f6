package sandbox

import (
	"context"
	"net/netip"
	"slices"

	"github.com/egressd/egressd/policy"
)

// A Container runs, as its engine says. It does not change.
type Container struct {
	*policy.Container
	Labels map[string]string
	PID    int // of its first process, as the engine sees it
}

// An Engine says which containers run. It is safe for concurrent use.
type Engine interface {
	// At returns the container that has an address, or nil. expected is set where nobody but
	// a container can have the address.
	At(netip.Addr) (k *Container, expected bool)
	// Await waits until it is known which container has an address that only containers have.
	Await(context.Context, netip.Addr)
	// Behind returns the container that a process is in, or nil. It may wait for the engine.
	Behind(pid int) *Container
	// Trouble is why the engine cannot be asked, or nil.
	Trouble() error
}

// SetEngine has peers be known by their containers, too.
func (d *Directory) SetEngine(e Engine) { d.engine.Store(&e) }

// container returns the one that a peer's address is of. expected is set where that is
// an address that only containers have: nobody is known by anything else then.
func (d *Directory) container(r *register, p *Peer) (k *Container, expected bool) {
	e := d.engine.Load()
	if len(r.docker) == 0 || !p.Addr.IsValid() || e == nil {
		return nil, false
	}
	return (*e).At(p.Addr.Addr())
}

// Await waits until it can be said who p is, where an engine has not said yet which
// container it has started at p's address; else it returns at once.
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

// Behind returns the container that a process is in, for [Attacher]: nil where no sandbox is told by
// its container.
func (d *Directory) Behind(pid int) *Container {
	e := d.engine.Load()
	if e == nil || len(d.known.Load().docker) == 0 {
		return nil
	}
	return (*e).Behind(pid)
}

// Claims are the names of the sandboxes whose container k is. Where there are two, a
// peer in it is nobody.
func (d *Directory) Claims(k *Container) (names []string) {
	for _, e := range d.known.Load().holding(k) {
		names = append(names, e.sandbox.Name)
	}
	return names
}

// fits reports whether a visitor is as an entry's user and container have to be.
func (e *entry) fits(v Attacher) bool {
	if e.docker.Given() && (v.Container == nil || !e.docker.Holds(v.Container.Name, v.Container.Labels)) {
		return false
	}
	return len(e.uids) == 0 || slices.Contains(e.uids, v.UID)
}
