package dns

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/internal/tokens"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A how is how one class of refusal looks in DNS: a response code, and an
// extended error (RFC 8914) for who takes one.
type how struct {
	rcode int
	ede   uint16
}

var refusals = map[policy.Class]how{
	policy.MalformedHost:    {dns.RcodeFormatError, dns.ExtendedErrorCodeOther},
	policy.MalformedRequest: {dns.RcodeFormatError, dns.ExtendedErrorCodeOther},
	policy.UnknownSandbox:   {dns.RcodeRefused, dns.ExtendedErrorCodeProhibited},
	policy.DNSTypeDenied:    {dns.RcodeRefused, dns.ExtendedErrorCodeFiltered},
	policy.DNSBudget:        {dns.RcodeRefused, dns.ExtendedErrorCodeOther},
	policy.AuditUnavailable: {dns.RcodeServerFailure, dns.ExtendedErrorCodeOther},
	policy.AskRejected:      {dns.RcodeRefused, dns.ExtendedErrorCodeProhibited},
	policy.AddressDenied:    {dns.RcodeRefused, dns.ExtendedErrorCodeFiltered},
	policy.NetworkDNS:       {dns.RcodeServerFailure, edeNetworkError},
}

func howOf(c policy.Class) how {
	if h, ok := refusals[c]; ok {
		return h
	}
	return how{dns.RcodeRefused, dns.ExtendedErrorCodeBlocked}
}

// A handler answers the questions of one sandbox, which come to sockets of one name.
type handler struct {
	server *PlaceholderServer
	name   string
	budget *tokens.Bucket
}

func (s *PlaceholderServer) handler(name string) *handler {
	return &handler{server: s, name: name, budget: &tokens.Bucket{Rate: float64(s.limits.PerSecond), Most: float64(s.limits.Burst)}}
}

// peer says who asks from an address, at another.
func (h *handler) peer(network string, from netip.AddrPort, at net.Addr) func() sandbox.Peer {
	return func() sandbox.Peer {
		p := peerAt(from, h.name)
		if who := h.server.Program; who != nil {
			p.Process = who(network, p.Addr, addrPortAt(at))
		}
		return p
	}
}

// addrPortAt returns the address of a socket.
func addrPortAt(a net.Addr) netip.AddrPort {
	at := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// respond appends the response to msg, or returns nil for none: whoever asked asks again. A response over UDP has at
// most as many bytes as the question says; most is 0 then.
func (h *handler) respond(b, msg []byte, peer func() sandbox.Peer, most int) (response []byte) {
	defer h.server.inFlight.Add(-1)
	if h.server.inFlight.Add(1) > int64(h.server.limits.InFlight) {
		return nil
	}
	m, bad := readMessage(msg)
	if bad.silent {
		return nil
	}
	most = cmp.Or(most, m.size)
	defer recovered.Log(toAnswer, func() {
		response = answer{rcode: dns.RcodeServerFailure}.appendTo(b, &m, most)
	})
	return h.answer(&m, bad, msg, peer).appendTo(b, &m, most)
}

// answer answers a question, and records what is none.
func (h *handler) answer(m *message, bad flaw, msg []byte, peer func() sandbox.Peer) answer {
	within, _ := h.budget.Take(1, time.Now())
	refuse := h.server.Gate.Refuse
	switch {
	case within && bad == (flaw{}):
		return h.question(m, peer)
	case within:
		return bad.refused(refuse(peer(), policy.ViaDNS, msg, bad.class, bad.why))
	case bad == (flaw{}):
		return refusedBy(refuse(peer(), policy.ViaDNS, nil, policy.DNSBudget, "the sandbox asks for too many names in too short a time"))
	}
	// Without the message and its sender, those that repeat are one record.
	return bad.refused(refuse(sandbox.Peer{Listener: h.name}, policy.ViaDNS, nil, bad.class, bad.why))
}

// question answers with one address, or with none where there is none of the kind. HTTPS and SVCB records (RFC 9460),
// with their own addresses, ports and keys for hiding server names, do not exist for any name.
func (h *handler) question(m *message, peer func() sandbox.Peer) answer {
	if a, same := m.sameEverywhere(names.PlaceholderTTL); same {
		return a
	}
	if m.class == dns.ClassINET && (m.kind == dns.TypeHTTPS || m.kind == dns.TypeSVCB) {
		return answer{}
	}
	q := policy.DNSQuery{Name: m.name, Type: m.typeText()}
	if q.Type != "A" && q.Type != "AAAA" {
		return h.records(q, peer())
	}
	a, err := h.server.Gate.Names.Bind(context.Background(), peer(), q)
	if err != nil {
		return refusedBy(err)
	}
	addr := a.IPv6
	if m.kind == typeA {
		addr = a.IPv4
	}
	if !addr.IsValid() {
		return answer{}
	}
	return answer{addrs: []netip.Addr{addr}, ttl: names.PlaceholderTTL}
}

// records answers with what an upstream says, where the gate lets it be asked.
func (h *handler) records(q policy.DNSQuery, peer sandbox.Peer) answer {
	i, err := h.server.Gate.Names.Inquire(peer, q)
	if err != nil {
		return refusedBy(err)
	}
	told, err := i.Answer(h.server.life)
	if err != nil {
		return refusedBy(err)
	}
	return recordsOf(told)
}

// sameEverywhere answers names that have the same answer in every sandbox:
//
//   - localhost and what is below it are the sandbox's own loopback (RFC 6761);
//   - use-application-dns.net does not exist, which keeps browsers from resolving
//     past this server;
//   - ipv4only.arpa has no IPv6 address: there is no NAT64 (RFC 7050).
func (m *message) sameEverywhere(ttl time.Duration) (answer, bool) {
	if m.class != dns.ClassINET || m.kind != typeA && m.kind != typeAAAA {
		return answer{}, false
	}
	switch {
	case m.name == "localhost" || strings.HasSuffix(m.name, ".localhost"):
		return answer{ttl: ttl, addrs: m.ofFamily([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()})}, true
	case m.name == "use-application-dns.net":
		return answer{rcode: dns.RcodeNameError}, true
	case m.name == "ipv4only.arpa":
		return answer{}, true
	}
	return answer{}, false
}

// ofFamily returns those of addrs that are of the type that was asked for. All of
// one are the slice itself.
func (m *message) ofFamily(addrs []netip.Addr) []netip.Addr {
	other := func(a netip.Addr) bool { return a.Is4() != (m.kind == typeA) }
	if !slices.ContainsFunc(addrs, other) {
		return addrs
	}
	return slices.DeleteFunc(slices.Clone(addrs), other)
}

// typeText names the type of a question, and its class unless that is IN.
func (m *message) typeText() string {
	if m.class == dns.ClassINET {
		return dns.Type(m.kind).String()
	}
	return dns.Class(m.class).String() + " " + dns.Type(m.kind).String()
}

// refused answers a message with a flaw, which the gate has refused.
func (f flaw) refused(err error) answer {
	a := refusedBy(err)
	if a.rcode != dns.RcodeServerFailure { // which says that there is no record
		a.rcode = f.rcode
	}
	return a
}

// problemOf says what is wrong with a name.
func problemOf(err error) string {
	if bad, ok := errors.AsType[*policy.DestinationError](err); ok {
		return bad.Problem
	}
	return "the name cannot be used"
}
