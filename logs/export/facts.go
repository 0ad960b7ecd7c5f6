package export

import (
	"cmp"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/record/count"
)

// facts are values derived from a record that several formats need.
type facts struct {
	*record.Record
	said   record.Decision // the record's, or the zero one
	kind   topic
	denied bool // by a decision; if cut is set, the flow was allowed before
	cut    bool // a later policy or the end of egressd ended the flow
	ended  bool // the record describes the end of a flow
	failed bool // the network or the upstream failed

	srcIP, dstIP     string
	srcPort, dstPort uint16
	host             string // requested host name; empty if an address was requested
}

// A topic is the subject of a record, in the categories of other formats.
type topic uint8

const (
	aboutFlow     topic = iota // a connection
	aboutRequest               // an HTTP request
	aboutQuestion              // a DNS question
	aboutItself                // egressd itself: start, stop, recovery, policy
	aboutSignal                // an observation without a decision
)

// classUDP is the only class that concerns a datagram.
const classUDP = string(policy.UDPDenied)

func factsOf(r *record.Record) facts {
	f := facts{Record: r, kind: topicOf(r), ended: r.Kind == record.KindClose}
	if r.Decision != nil {
		f.said = *r.Decision
		f.denied = f.said.Action != "allow" && (f.kind == aboutFlow || f.kind == aboutRequest || f.kind == aboutQuestion)
	}
	f.cut = f.ended && r.Outcome == record.OutcomeCut
	f.failed = f.ended && count.Failed(r.Outcome)
	if src, err := netip.ParseAddrPort(r.Src); err == nil {
		f.srcIP, f.srcPort = src.Addr().Unmap().String(), src.Port()
	}
	f.destination()
	return f
}

func topicOf(r *record.Record) topic {
	switch {
	case r.Kind == record.KindSignal:
		return aboutSignal
	case r.Kind == record.KindDNS:
		return aboutQuestion
	case r.HTTP != nil && r.HTTP.Method != "":
		return aboutRequest
	case r.Kind == record.KindOpen, r.Kind == record.KindClose, r.Kind == record.KindRequest, r.Kind == record.KindRefused:
		return aboutFlow
	default:
		return aboutItself
	}
}

// destination sets the destination: the dialled address, else the requested address, else the first
// decided address.
func (f *facts) destination() {
	if f.Dst == nil || f.kind == aboutQuestion { // no record holds the address of the name server
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

// name returns the requested host or address, or the name of a DNS question.
func (f *facts) name() string {
	switch {
	case f.DNS != nil:
		return f.DNS.Name
	case f.Dst != nil:
		return f.Dst.Host
	}
	return ""
}

// transport returns "tcp" or "udp", or "" if the record does not say.
func (f *facts) transport() string {
	switch {
	case f.said.Class == classUDP:
		return "udp"
	case f.kind == aboutQuestion, f.kind == aboutItself, f.kind == aboutSignal:
		return ""
	}
	return "tcp"
}

// application returns "http", "dns", "tls" or "".
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

// code returns the class of a denial, else the outcome of the flow.
func (f *facts) code() string {
	return cmp.Or(f.said.Class, string(f.Outcome))
}

// A level is the severity of a record.
type level uint8

const (
	informational level = iota // allowed traffic; start and stop of egressd
	low                        // traffic that no rule allows
	medium                     // traffic that no rule can allow, and attempts to bypass rules
	high                       // signals, and failures to decide or to record
)

// level returns the severity. A record marked by a rule ("log") has at least medium.
func (f *facts) level() level {
	l := f.plainLevel()
	if f.said.Log {
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
	switch policy.Class(f.said.Class) {
	case policy.PolicyError, policy.AuditUnavailable, policy.PolicyNotLoaded, policy.Canary:
		return high
	case policy.AddressDenied, policy.NameMismatch, policy.NoServerName, policy.NotTLS, policy.ECHRefused,
		policy.MalformedRequest, policy.MalformedHost, policy.UnknownSandbox, policy.ContainerRefused, policy.DNSBudget, policy.ByteBudget:
		return medium
	default:
		return low
	}
}

// url returns the requested URL. Records hold no query.
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

// program returns the file name of the executable.
func (f *facts) program() string {
	if f.Process == nil || f.Process.Exe == "" {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(f.Process.Exe, " (deleted)"))
}

// sentence returns a short description for people.
func (f *facts) sentence() string {
	switch {
	case f.kind == aboutItself, f.kind == aboutSignal:
		return strings.TrimSpace(string(f.Kind) + " " + cmp.Or(f.noticed(), f.said.Reason))
	case f.cut:
		return "cut " + f.subject()
	case f.denied:
		return "denied " + f.subject() + " " + f.said.Class
	case f.ended:
		return "ended " + f.subject() + " " + string(f.Outcome)
	default:
		return "allowed " + f.subject()
	}
}

func (f *facts) noticed() string {
	if s := f.Signal; s != nil {
		return strings.TrimSpace(s.What + " " + s.Name + " in " + s.Where + " " + s.Encoding)
	}
	return f.Note
}

func (f *facts) subject() string {
	text := cmp.Or(f.name(), "what nobody could read")
	if f.dstPort != 0 {
		text += ":" + strconv.Itoa(int(f.dstPort))
	}
	if f.kind == aboutRequest {
		text = f.HTTP.Method + " " + text
	}
	return text
}

// bytes returns the payload bytes, and whether the record has them.
func (f *facts) bytes() (up, down int64, known bool) {
	if f.Bytes == nil {
		return 0, 0, false
	}
	return f.Bytes.Up, f.Bytes.Down, true
}
