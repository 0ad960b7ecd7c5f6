package dns

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/names"
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

// answer makes the response to q, which has one question.
func (h *handler) answer(peer sandbox.Peer, q *dns.Msg) *dns.Msg {
	if ok, _ := h.budget.Take(1, time.Now()); !ok {
		return h.overBudget(peer, q)
	}
	question := q.Question[0]
	name, err := policy.ParseName(question.Name)
	if err != nil {
		return refusedTo(q, h.server.Gate.Refuse(peer, policy.ViaDNS, []byte(question.Name), policy.MalformedHost, problemOf(err)))
	}
	if m := known(q, name); m != nil {
		return m
	}
	a, err := h.server.Gate.Names.Bind(context.Background(), peer, policy.Question{Name: name, Type: typeText(question)})
	if err != nil {
		return refusedTo(q, err)
	}
	if question.Qtype == dns.TypeA {
		return addressed(q, a.IPv4)
	}
	return addressed(q, a.IPv6)
}

// problemOf says what is wrong with a name.
func problemOf(err error) string {
	var bad *policy.DestinationError
	if errors.As(err, &bad) {
		return bad.Problem
	}
	return "the name cannot be used"
}

// typeText names the type of a question, and its class unless that is IN.
func typeText(q dns.Question) string {
	if q.Qclass == dns.ClassINET {
		return dns.Type(q.Qtype).String()
	}
	return dns.Class(q.Qclass).String() + " " + dns.Type(q.Qtype).String()
}

// known answers what has the same answer in every sandbox, without a record:
// it says nothing about anybody. For other names it returns nil.
//
//   - localhost and what is below it are the sandbox's own loopback (RFC 6761);
//   - use-application-dns.net does not exist, which keeps browsers from resolving
//     past this server;
//   - ipv4only.arpa has no IPv6 address: there is no NAT64 (RFC 7050);
//   - HTTPS and SVCB records (RFC 9460), with their own addresses, ports and keys
//     for hiding server names, do not exist for any name.
func known(q *dns.Msg, name string) *dns.Msg {
	kind := q.Question[0].Qtype
	switch {
	case q.Question[0].Qclass != dns.ClassINET:
		return nil
	case kind == dns.TypeHTTPS || kind == dns.TypeSVCB:
		return respond(q)
	case kind != dns.TypeA && kind != dns.TypeAAAA:
		return nil
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		if kind == dns.TypeA {
			return addressed(q, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		}
		return addressed(q, netip.IPv6Loopback())
	case name == "use-application-dns.net":
		return respond(q).SetRcode(q, dns.RcodeNameError)
	case name == "ipv4only.arpa":
		return respond(q)
	}
	return nil
}

func (h *handler) overBudget(peer sandbox.Peer, q *dns.Msg) *dns.Msg {
	return refusedTo(q, h.server.Gate.Refuse(peer, policy.ViaDNS, nil, policy.DNSBudget, "the sandbox asks for too many names in too short a time"))
}

func respond(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	if q.IsEdns0() != nil {
		m.SetEdns0(maxUDP, false)
	}
	return m
}

// addressed answers with one address, or with none where there is none of the
// kind.
func addressed(q *dns.Msg, a netip.Addr) *dns.Msg {
	m := respond(q)
	head := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET, Ttl: uint32(names.PlaceholderTTL / time.Second)}
	switch {
	case !a.IsValid():
	case a.Is4():
		m.Answer = append(m.Answer, &dns.A{Hdr: head, A: a.AsSlice()})
	default:
		m.Answer = append(m.Answer, &dns.AAAA{Hdr: head, AAAA: a.AsSlice()})
	}
	return m
}

func refusedTo(q *dns.Msg, err error) *dns.Msg {
	var r *egress.Refusal
	if !errors.As(err, &r) {
		return refused(q, policy.PolicyError, "")
	}
	return refused(q, r.Decision.Class, r.ID.String())
}

// refused answers with a refusal. Its extended error names the class and the id
// by which the log knows it.
func refused(q *dns.Msg, class policy.Class, id string) *dns.Msg {
	h := howOf(class)
	m := respond(q).SetRcode(q, h.rcode)
	m.RecursionAvailable = true
	if opt := m.IsEdns0(); opt != nil {
		opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: h.ede, ExtraText: strings.TrimSpace(string(class) + " " + id)})
	}
	return m
}
