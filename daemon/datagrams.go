//go:build linux

package daemon

import (
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/capture"
)

// A datagramMemory keeps the flows of datagrams that were refused lately, since
// one record says it all of each.
type datagramMemory struct {
	now, before map[capture.Datagram]struct{}
}

const datagramsMost = 1024

// first reports whether g is the first of its flow that is remembered.
func (m *datagramMemory) first(g capture.Datagram) bool {
	_, now := m.now[g]
	_, before := m.before[g]
	if now || before {
		return false
	}
	if m.now == nil || len(m.now) >= datagramsMost {
		m.now, m.before = map[capture.Datagram]struct{}{}, m.now
	}
	m.now[g] = struct{}{}
	return true
}

// RefuseDatagrams records the first datagram of every flow that comes in at listener, and
// refuses them all, until d is closed.
func RefuseDatagrams(gate *egress.Gate, listener string, programs *sandbox.Programs, d *capture.Datagrams) {
	var seen datagramMemory
	for {
		g, err := d.Next()
		if err != nil {
			return
		}
		if seen.first(g) {
			recordDatagram(gate, listener, g, programs.Sent(g.From))
		}
		_ = d.Refuse(g) // it is lost either way
	}
}

func recordDatagram(gate *egress.Gate, listener string, g capture.Datagram, who *policy.Process) {
	peer := sandbox.Peer{Addr: g.From, Listener: listener, Process: who}
	to := policy.Destination{Port: g.To.Port()}
	if name, _ := gate.Names.OfPlaceholder(peer, g.To.Addr()); name != "" {
		to.Host = name
	} else {
		to.Addr = g.To.Addr().Unmap().WithZone("")
		to.Host = to.Addr.String()
	}
	gate.Deny(peer, policy.Request{Via: policy.ViaTransparent, Destination: to}, policy.UDPDenied, "datagrams are not passed on; HTTP/3 clients go on with TCP by themselves")
}
