package sandbox

import (
	"net/netip"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A Holder is what connections are counted by. Equal holders are the same holder.
type Holder struct {
	Sandbox string // empty if the peer is known by its source only

	addr     netip.Addr // of IPv6, its network of 64 bits: who has one address there has all
	listener string     // of a unix socket
	uid      uint32
}

// Holder returns the holder of a connection, without regard to credentials: the sandbox that the peer's
// listener, user, address, container or certificate belongs to, or else the peer's source. Only credentials tell the
// sandboxes of a template apart, so a peer of a template is known by its source.
func (d *Directory) Holder(p *Peer) Holder {
	r := d.known.Load()
	if strings.HasPrefix(p.Listener, attachmentPrefix) {
		if who, err := d.attachments.identify(r, &Peer{Listener: p.Listener}); err == nil {
			return Holder{Sandbox: who.Name}
		}
		return Holder{listener: p.Listener}
	}
	if k, expected := d.container(r, p); len(r.byName) > 0 && (k != nil || !expected) {
		if e := r.evident(p, k); e != nil && e != r.absent && e.name == (policy.Template{}) {
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
