package export

import (
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
)

// facts are what the forms ask of a record, worked out once.
type facts struct {
	*egress.Record
	kind   topic
	denied bool // by a decision: now, or, where cut is set, after it had been allowed
	cut    bool // a later policy, or the end of egressd, ended the flow
	ended  bool // the record is about the end of a flow
	failed bool // the network or the upstream did not do its part

	srcIP, dstIP     string
	srcPort, dstPort uint16
	host             string // that was asked for; empty where an address was
}

// A topic is what a record is about, as other forms divide the world.
type topic uint8

const (
	aboutFlow     topic = iota // a connection
	aboutRequest               // an HTTP request
	aboutQuestion              // a question for a name
	aboutItself                // egressd: start, stop, recovery, policy
	aboutSignal                // something that was noticed, and is no decision
)

// classUDP is the class of the one refusal that is about a datagram.
const classUDP = string(policy.UDPDenied)

const outcomeCut = "cut"

func factsOf(r *egress.Record) facts {
	f := facts{Record: r, kind: topicOf(r), ended: r.Kind == egress.KindClose}
	if d := r.Decision; d != nil && (f.kind == aboutFlow || f.kind == aboutRequest || f.kind == aboutQuestion) {
		f.denied = d.Action != "allow"
	}
	f.cut = f.ended && r.Outcome == outcomeCut
	f.failed = f.ended && strings.HasPrefix(r.Outcome, "network-")
	if src, err := netip.ParseAddrPort(r.Src); err == nil {
		f.srcIP, f.srcPort = src.Addr().Unmap().String(), src.Port()
	}
	f.destination()
	return f
}

func topicOf(r *egress.Record) topic {
	switch {
	case r.Kind == egress.KindSignal:
		return aboutSignal
	case r.Kind == egress.KindDNS:
		return aboutQuestion
	case r.HTTP != nil && r.HTTP.Method != "":
		return aboutRequest
	case r.Kind == egress.KindOpen, r.Kind == egress.KindClose, r.Kind == egress.KindRequest, r.Kind == egress.KindRefused:
		return aboutFlow
	default:
		return aboutItself
	}
}

// destination takes the address that was dialled, else the one that was asked for,
// else the first of those that were decided.
func (f *facts) destination() {
	if f.Dst == nil || f.kind == aboutQuestion { // whom a name server asks is in no record
		return
	}
	f.dstPort = f.Dst.Port
	asked, err := netip.ParseAddr(strings.Trim(f.Dst.Host, "[]"))
	if err != nil {
		f.host = f.Dst.Host
	}
	candidates := []string{f.Dst.Addr}
	if err == nil {
		candidates = append(candidates, asked.String())
	}
	for _, text := range append(candidates, f.Dst.Addrs...) {
		if a, err := netip.ParseAddr(text); err == nil {
			f.dstIP = a.Unmap().String()
			return
		}
	}
}

// name is the host that was asked for, as a name or an address, or the name that
// was asked about.
func (f *facts) name() string {
	switch {
	case f.DNS != nil:
		return f.DNS.Name
	case f.Dst != nil:
		return f.Dst.Host
	}
	return ""
}

// transport is "tcp" or "udp", or empty where the record does not tell.
func (f *facts) transport() string {
	switch {
	case f.class() == classUDP:
		return "udp"
	case f.kind == aboutQuestion, f.kind == aboutItself, f.kind == aboutSignal:
		return ""
	}
	return "tcp"
}

// application is what is spoken, as far as it was looked at: "http", "dns", "tls",
// or empty.
func (f *facts) application() string {
	switch {
	case f.kind == aboutRequest:
		return "http"
	case f.kind == aboutQuestion:
		return "dns"
	case f.TLS != nil:
		return "tls"
	}
	return ""
}

func (f *facts) start() time.Time {
	return f.Time.Add(-time.Duration(f.Duration) * time.Millisecond)
}

func (f *facts) action() string {
	return decision(f, func(d *egress.RecordDecision) string { return d.Action })
}
func (f *facts) class() string {
	return decision(f, func(d *egress.RecordDecision) string { return d.Class })
}
func (f *facts) rule() string {
	return decision(f, func(d *egress.RecordDecision) string { return d.Rule })
}
func (f *facts) layer() string {
	return decision(f, func(d *egress.RecordDecision) string { return d.Layer })
}
func (f *facts) reason() string {
	return decision(f, func(d *egress.RecordDecision) string { return d.Reason })
}
func (f *facts) digest() string {
	return decision(f, func(d *egress.RecordDecision) string { return d.Policy })
}

func decision(f *facts, part func(*egress.RecordDecision) string) string {
	if f.Decision == nil {
		return ""
	}
	return part(f.Decision)
}

// code is why a flow did not do what was asked of it: the class of a refusal, or
// how it ended.
func (f *facts) code() string {
	if class := f.class(); class != "" {
		return class
	}
	return f.Outcome
}

// A level is how much somebody should care.
type level uint8

const (
	informational level = iota // what was allowed, and egressd's own comings and goings
	low                        // what no rule allows
	medium                     // what is refused whatever the rules say, or looks like a way around them
	high                       // what was noticed, and what keeps egressd from deciding or recording
)

// level of a record. What a rule marks ("log") is at least medium.
func (f *facts) level() level {
	l := f.plainLevel()
	if f.Decision != nil && f.Decision.Log {
		l = max(l, medium)
	}
	return l
}

func (f *facts) plainLevel() level {
	switch {
	case f.kind == aboutSignal:
		return high
	case !f.denied:
		return informational
	}
	switch policy.Class(f.class()) {
	case policy.PolicyError, policy.AuditUnavailable, policy.PolicyNotLoaded, policy.Canary:
		return high
	case policy.AddressDenied, policy.NameMismatch, policy.NoServerName, policy.NotTLS, policy.ECHRefused,
		policy.MalformedRequest, policy.MalformedHost, policy.UnknownSandbox, policy.DNSBudget, policy.ByteBudget:
		return medium
	default:
		return low
	}
}

// url is what was asked for of an HTTP server, without its query, which no record
// holds.
func (f *facts) url() string {
	if f.HTTP == nil || f.Dst == nil {
		return ""
	}
	host := f.Dst.Host
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	if standard := map[string]uint16{"http": 80, "https": 443}[f.scheme()]; f.dstPort != standard {
		host += ":" + strconv.Itoa(int(f.dstPort))
	}
	return f.scheme() + "://" + host + f.HTTP.Path
}

func (f *facts) scheme() string {
	if f.TLS != nil {
		return "https"
	}
	return "http"
}

// program is the name of the file that a sandbox's program executes.
func (f *facts) program() string {
	if f.Process == nil || f.Process.Exe == "" {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(f.Process.Exe, " (deleted)"))
}

// sentence says in a line for people what the record says.
func (f *facts) sentence() string {
	switch {
	case f.kind == aboutItself, f.kind == aboutSignal:
		return strings.TrimSpace(string(f.Kind) + " " + firstOf(f.noticed(), f.reason()))
	case f.cut:
		return "cut " + f.place()
	case f.denied:
		return "denied " + f.place() + " " + f.class()
	case f.ended:
		return "ended " + f.place() + " " + f.Outcome
	default:
		return "allowed " + f.place()
	}
}

// noticed is what a signal says, or a note.
func (f *facts) noticed() string {
	if s := f.Signal; s != nil {
		return strings.TrimSpace(s.What + " " + s.Name + " in " + s.Where + " " + s.Encoding)
	}
	return f.Note
}

func (f *facts) place() string {
	place := firstOf(f.name(), "what nobody could read")
	if f.dstPort != 0 {
		place += ":" + strconv.Itoa(int(f.dstPort))
	}
	if f.kind == aboutRequest {
		place = f.HTTP.Method + " " + place
	}
	return place
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// bytes are those that went up and down, and whether the record tells.
func (f *facts) bytes() (up, down int64, told bool) {
	if f.Bytes == nil {
		return 0, 0, false
	}
	return f.Bytes.Up, f.Bytes.Down, true
}

// questionTypes are the types that were asked for: one, or the two that a lookup for
// a flow asks for at once.
func (f *facts) questionTypes() []string {
	if f.DNS.Type == "A AAAA" {
		return []string{"A", "AAAA"}
	}
	return []string{f.DNS.Type}
}
