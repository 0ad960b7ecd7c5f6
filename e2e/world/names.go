package world

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/miekg/dns"
)

// The ways in to the name server.
const (
	WayNames    = "dns"
	WayNamesTCP = "dns-tcp"
)

const NamesPort = 53

// WithNames is a policy with all listeners, that for names too.
func WithNames(text string) string {
	return text + fmt.Sprintf("listen: {open_to_network: true, proxy: [\"%[1]s:%[2]d\", \"[%[3]s]:%[2]d\"], dns: [\"%[1]s:%[4]d\", \"[%[3]s]:%[4]d\"]}\n",
		lab.GatewayIPv4, ProxyPort, lab.GatewayIPv6, NamesPort)
}

// A Question is one message for the name server.
type Question struct {
	Name string // as it is recorded, "" where it cannot be read
	Kind string
	Wire []byte
}

// named checks what a question came to.
func (j *judgement) named() {
	j.namesTraffic()
	j.namesRecords()
	if j.RCode == "none" {
		if len(j.Said) > 0 {
			j.wrong("the answer is %x, want none", j.Said)
		}
		return
	}
	m := new(dns.Msg)
	if err := m.Unpack(j.Said); err != nil || j.Err != nil {
		j.wrong("no answer came, but %x, %v, %v", j.Said, err, j.Err)
		return
	}
	got := dns.RcodeToString[m.Rcode]
	if m.Rcode == dns.RcodeBadVers { // which is the number of another as well
		got = "BADVERS"
	}
	if got != j.RCode || !m.Response || len(j.Said) < 2 || string(j.Said[:2]) != string(j.Sent[:2]) {
		j.wrong("the answer is %s, want %s: %v", got, j.RCode, m)
	}
	if len(m.Ns) > 0 || len(m.Extra) > 1 || m.Truncated {
		j.wrong("the answer holds more than addresses: %v", m)
	}
	j.namesAnswer(m)
}

func (j *judgement) namesAnswer(m *dns.Msg) {
	var addrs []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			addrs = append(addrs, rr.A.String())
		case *dns.AAAA:
			addrs = append(addrs, rr.AAAA.String())
		default:
			j.wrong("the answer holds %v", rr)
		}
		if h := rr.Header(); h.Ttl < 1 || h.Ttl > 300 || h.Name != m.Question[0].Name {
			j.wrong("the answer holds %v", rr)
		}
	}
	if !slices.Equal(addrs, j.Addrs) {
		j.wrong("the addresses are %v, want %v", addrs, j.Addrs)
	}
	var ede uint16
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			e, ok := o.(*dns.EDNS0_EDE)
			if !ok {
				j.wrong("the answer has option %v", o)
				continue
			}
			ede = e.InfoCode
			if j.last() == nil {
				j.wrong("nothing is recorded, and the extended error says %q", e.ExtraText)
				continue
			}
			if class, id, _ := strings.Cut(e.ExtraText, " "); len(j.Deny) > 0 && (!slices.Contains(j.Deny, policy.Class(class)) || id != j.last().Flow) {
				j.wrong("the extended error says %q", e.ExtraText)
			}
		}
	}
	if j.Sandbox == "" && j.Way == WayNames {
		if len(j.Said) > len(j.Sent) {
			j.wrong("%d bytes were answered to %d of nobody's", len(j.Said), len(j.Sent))
		}
		return // there may be no room for an extended error
	}
	if ede != j.EDE {
		j.wrong("the extended error is %d, want %d", ede, j.EDE)
	}
}

// namesTraffic checks that nothing left but questions for an allowed name, to the
// configured name server.
func (j *judgement) namesTraffic() {
	asks := j.Asks || len(j.Addrs) > 0
	for _, p := range j.Packets {
		if p.From.String() == net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(NamesPort)) {
			continue // the answer
		}
		if p.To.String() != Resolver || !asks {
			j.wrong("a packet was sent: %s", p)
		}
	}
	for _, q := range j.Queries {
		if !asks || q != j.Asked.Name {
			j.wrong("the name server was asked for %q", q)
		}
	}
	for _, a := range j.Arrived {
		j.wrong("a connection reached %s", a.to)
	}
}

// namesRecords checks that the last record is the decision. Another record may precede
// it only if egressd looked the name up and then refused it.
func (j *judgement) namesRecords() {
	n := len(j.Records)
	if n == 0 || n > 2 || n == 2 && !(j.Asks && len(j.Deny) > 0) {
		j.wrong("%d records: %+v", n, j.Records)
		return
	}
	r := j.last()
	d := r.Decision
	switch {
	case d == nil || r.Via != "dns" || r.Sandbox != j.Sandbox || d.Policy != j.Digest:
		j.wrong("the record is %+v", r)
	case len(j.Deny) == 0 && d.Action != "allow", len(j.Deny) > 0 && (d.Action != "deny" || !slices.Contains(j.Deny, policy.Class(d.Class))):
		j.wrong("the record decides %+v", d)
	case j.DstClass != "" && (r.Dst == nil || r.Dst.Class != j.DstClass):
		j.wrong("the record's destination is %+v, want class %s", r.Dst, j.DstClass)
	case r.Kind == record.KindRefused:
		if r.Raw == "" || !strings.HasPrefix(latin1(j.Sent), r.Raw) {
			j.wrong("raw is %q", r.Raw)
		}
	case r.Kind != record.KindDNS || r.DNS == nil || r.DNS.Name != j.Asked.Name || r.DNS.Type != j.Asked.Kind:
		j.wrong("the record is %+v with %+v", r, r.DNS)
	}
}
