package dns

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// respond returns the response to one message, which came from peer to the socket at, or nil for none: whoever asked asks
// again. It waits for the log, and for a policy or a name server that takes its time; Shutdown ends that wait.
func (s *Server) respond(network string, peer sandbox.Peer, at net.Addr, msg []byte) (response []byte) {
	m, bad := readMessage(msg)
	size := m.size
	if network == "tcp" {
		size = 1<<16 - 1
	}
	defer recovered.Log("answering a message to the name server", func() {
		response = answer{rcode: dns.RcodeServerFailure}.appendTo(nil, &m, size)
	})
	if s.Program != nil {
		peer.Process = s.Program(network, peer.Addr, plainAddr(at.(interface{ AddrPort() netip.AddrPort }).AddrPort()))
	}
	var a answer
	var err error
	if bad == (flaw{}) {
		a, err = s.answer(peer, &m)
	} else {
		err = s.Gate.Names.Refuse(peer, msg, bad.class, bad.why)
	}
	switch {
	case bad.silent:
		return nil
	case err != nil:
		a = refusedBy(err)
	}
	if bad.rcode != 0 && a.rcode != dns.RcodeServerFailure { // which says that there is no record
		a.rcode = bad.rcode
	}
	if network == "udp" && classOf(err) == policy.UnknownSandbox {
		size = min(size, len(msg)) // the address may be forged: its owner gets no more than was sent in its name
	}
	return a.appendTo(nil, &m, size)
}

// answer has the gate decide a question. The error is the gate's.
func (s *Server) answer(peer sandbox.Peer, m *message) (answer, error) {
	q := policy.DNSQuery{Name: m.name, Type: m.typeText()}
	a, same := m.sameEverywhere()
	if !same && !s.Placeholders && s.Gate.Inquiries.On() {
		a, same = m.inquiry()
	}
	if same {
		if s.Placeholders {
			return a, nil
		}
		return a, s.Gate.Names.Local(peer, q)
	}
	if s.Placeholders {
		switch q.Type {
		case "A", "AAAA":
			return s.placeholder(peer, q)
		case "HTTPS", "SVCB":
			return answer{}, nil
		}
	}
	told, err := s.Gate.Resolve(s.life, peer, q)
	return answer{addrs: told.Addrs, data: told.Data, ttl: told.TTL}, err
}

// placeholder answers with the placeholder address of a name. The answer is empty if the range has none of the family.
func (s *Server) placeholder(peer sandbox.Peer, q policy.DNSQuery) (answer, error) {
	both, err := s.Gate.Names.Bind(s.life, peer, q)
	addr := both.IPv6
	if q.Type == "A" {
		addr = both.IPv4
	}
	if err != nil || !addr.IsValid() {
		return answer{}, err
	}
	return answer{addrs: []netip.Addr{addr}, ttl: names.PlaceholderTTL}, nil
}

// sameEverywhere answers names that have the same answer in every sandbox:
//
//   - localhost and what is below it are the sandbox's own loopback (RFC 6761);
//   - use-application-dns.net does not exist, which keeps browsers from resolving
//     past this server;
//   - ipv4only.arpa has no IPv6 address: there is no NAT64 (RFC 7050).
func (m *message) sameEverywhere() (answer, bool) {
	if m.class != dns.ClassINET || m.kind != typeA && m.kind != typeAAAA {
		return answer{}, false
	}
	switch {
	case m.name == "localhost" || strings.HasSuffix(m.name, ".localhost"):
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if m.kind == typeAAAA {
			loopback = netip.IPv6Loopback()
		}
		return answer{ttl: 5 * time.Minute, addrs: []netip.Addr{loopback}}, true
	case m.name == "use-application-dns.net":
		return answer{rcode: dns.RcodeNameError}, true
	case m.name == "ipv4only.arpa":
		return answer{}, true
	}
	return answer{}, false
}

// inquiryAddr is the address that [policy.InquiryHost] has for a sandbox whose connections are captured: one that is nobody's
// (RFC 5737). It means nothing by itself. A request that comes to another address is answered, too, if it names the host.
var inquiryAddr = netip.AddrFrom4([4]byte{192, 0, 2, 80})

// inquiry answers the name of egressd itself, which is never asked for elsewhere.
func (m *message) inquiry() (answer, bool) {
	if m.name != policy.InquiryHost || m.class != dns.ClassINET || m.kind != typeA && m.kind != typeAAAA {
		return answer{}, false
	}
	a := answer{ttl: 5 * time.Minute}
	if m.kind == typeA {
		a.addrs = []netip.Addr{inquiryAddr}
	}
	return a, true
}

// typeText names the type of a question, and its class unless that is IN.
func (m *message) typeText() string {
	if m.class == dns.ClassINET {
		return dns.Type(m.kind).String()
	}
	return dns.Class(m.class).String() + " " + dns.Type(m.kind).String()
}

// A how is how one class of refusal looks in DNS: a response code, and an
// extended error (RFC 8914) for who takes one.
type how struct {
	rcode int
	ede   uint16
}

// Extended errors of RFC 8914 for what is no refusal.
const (
	edeNoReachableAuthority = 22
	edeNetworkError         = 23
)

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

// classOf returns the class of a refusal, or "" for no error.
func classOf(err error) policy.Class {
	if r, ok := errors.AsType[*egress.Refusal](err); ok {
		return r.Decision.Class
	}
	return ""
}

// refusedBy renders what the gate refuses, and what the network did not bring.
func refusedBy(err error) answer {
	var r *egress.Refusal
	var failed *Error
	switch {
	case errors.As(err, &failed) && failed.Kind == NotFound:
		a := answer{}
		if !failed.Exists {
			a.rcode = dns.RcodeNameError
		}
		return a
	case !errors.As(err, &r):
		return answer{rcode: dns.RcodeServerFailure}
	}
	h := howOf(r.Decision.Class)
	switch {
	case r.Decision.Class == policy.NetworkDNS && errors.Is(err, Timeout):
		h.ede = edeNoReachableAuthority
	case r.Decision.Layer == policy.Organisation && h.ede == dns.ExtendedErrorCodeBlocked:
		h.ede = dns.ExtendedErrorCodeProhibited
	}
	a := answer{rcode: h.rcode, ede: h.ede, text: strings.TrimSpace(string(r.Decision.Class) + " " + r.ID.String())}
	if r.Message != "" {
		a.more = ". The operator says: " + r.Message
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
