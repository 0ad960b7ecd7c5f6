package sandbox

import (
	"context"
	"slices"
)

// SetContainers has peers be known by their containers, too.
func (d *Directory) SetContainers(c *Containers) { d.containers.Store(c) }

// container returns the one that a peer's address is of. expected is set where that is
// an address that only containers have: nobody is known by anything else then.
func (d *Directory) container(r *register, p *Peer) (k *Known, expected bool) {
	if len(r.docker) == 0 || !p.Addr.IsValid() {
		return nil, false
	}
	return d.containers.Load().At(p.Addr.Addr())
}

// Await waits until it can be said who p is, where an engine has not said yet which
// container it has started at p's address; else it returns at once.
func (d *Directory) Await(ctx context.Context, p Peer) {
	if d.Awaits(p) {
		d.containers.Load().Await(ctx, p.Addr.Addr())
	}
}

// Awaits reports whether Await would wait.
func (d *Directory) Awaits(p Peer) bool {
	r := d.known.Load()
	if r == nil {
		return false
	}
	k, expected := d.container(r, &p)
	return k == nil && expected && d.containers.Load().Trouble() == nil
}

// Visits notes which container is behind an arrival, for [Directory.Enter].
func (d *Directory) Visits(a *Arrival) {
	if len(d.known.Load().docker) > 0 {
		a.Visitor.in = d.containers.Load().Container(a)
	}
}

// Claims are the names of the sandboxes whose container k is. Where there are two, a
// peer in it is nobody.
func (d *Directory) Claims(k *Known) (names []string) {
	for _, e := range d.known.Load().holding(k) {
		names = append(names, e.sandbox.Name)
	}
	return names
}

// fits reports whether a visitor is as an entry's user and container have to be.
func (e *entry) fits(v Visitor) bool {
	if e.docker.Given() && (v.in == nil || !e.docker.Holds(v.in.Name, v.in.Labels)) {
		return false
	}
	return len(e.uids) == 0 || slices.Contains(e.uids, v.UID)
}
