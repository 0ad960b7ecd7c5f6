package sandbox

import (
	"net/netip"
	"strings"
)

// A Holder is who a connection is counted with. Two that are equal are the same.
type Holder struct {
	Sandbox string // empty where only its place is known

	addr     netip.Addr // of IPv6, its network of 64 bits: who has one address there has all
	listener string     // of a unix socket
	uid      uint32
}

// Holder returns who has a connection, as far as p says so without credentials:
// the sandbox whose listener, user, address, container or certificate p has, or else where it comes from.
func (d *Directory) Holder(p *Peer) Holder {
	r := d.known.Load()
	if strings.HasPrefix(p.Listener, attachmentPrefix) {
		if who, err := d.attachments.identify(r, &Peer{Listener: p.Listener}); err == nil {
			return Holder{Sandbox: who.Name}
		}
		return Holder{listener: p.Listener}
	}
	if k, expected := d.container(r, p); len(r.byName) > 0 && (k != nil || !expected) {
		if e := r.place(p, k); e != nil && e != r.absent {
			return Holder{Sandbox: e.sandbox.Name}
		}
	}
	addr := p.Addr.Addr().Unmap().WithZone("")
	switch {
	case !addr.IsValid():
		return Holder{listener: p.Listener, uid: p.UID}
	case addr.Is6():
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return Holder{addr: addr}
}
