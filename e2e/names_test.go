package e2e

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// The ways in to the name server.
const (
	wayNames    = "dns"
	wayNamesTCP = "dns-tcp"
)

const namesPort = 53

// withNames is a policy with all listeners, that for names too.
func withNames(text string) string {
	return text + fmt.Sprintf("listen: {proxy: [\"%[1]s:%[2]d\", \"[%[3]s]:%[2]d\"], dns: [\"%[1]s:%[4]d\", \"[%[3]s]:%[4]d\"]}\n",
		lab.GatewayIPv4, proxyPort, lab.GatewayIPv6, namesPort)
}

// A question is one message for the name server.
type question struct {
	name string // as it is recorded, "" where it cannot be read
	kind string
	wire []byte
}

// questions makes the messages of a vector.
func (v *vector) questions(t *testing.T) (all []question) {
	t.Helper()
	for _, text := range v.Ask {
		kind, name, _ := strings.Cut(text, " ")
		class := uint16(dns.ClassINET)
		if rest, chaos := strings.CutPrefix(kind, "CH/"); chaos {
			kind, class = rest, dns.ClassCHAOS
		}
		m := new(dns.Msg).SetQuestion(dns.Fqdn(name), typeOf(t, kind))
		m.Question[0].Qclass = class
		m.SetEdns0(1232, false)
		wire, err := m.Pack()
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if class != dns.ClassINET {
			kind = "CH " + kind
		}
		all = append(all, question{name: strings.ToLower(strings.TrimSuffix(name, ".")), kind: kind, wire: wire})
	}
	for _, digits := range v.Wire {
		wire, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", v.ID, err)
		}
		all = append(all, question{wire: wire})
	}
	return all
}

func typeOf(t *testing.T, kind string) uint16 {
	t.Helper()
	if number, plain := strings.CutPrefix(kind, "TYPE"); plain {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		return uint16(n)
	}
	n, ok := dns.StringToType[kind]
	if !ok {
		t.Fatalf("%s is no type", kind)
	}
	return n
}

// asks puts every question of a vector through both ways in.
func (d *daemon) asks(t *testing.T, v *vector) {
	t.Helper()
	for _, q := range v.questions(t) {
		for _, way := range []string{wayNames, wayNamesTCP} {
			s := d.observeQuestion(t, v, way, q)
			for _, p := range judge(&v.Expect, s) {
				t.Errorf("%s %s, %s %s %q %x: %s", v.ID, v.Says, way, q.kind, q.name, q.wire[:min(len(q.wire), 40)], p)
			}
		}
	}
}

// observeQuestion asks, and returns what was seen of it on all sides. A record is
// there before its answer is.
func (d *daemon) observeQuestion(t *testing.T, v *vector, way string, q question) *sight {
	t.Helper()
	kind, most := fmt.Sprint(way, q.name, v.Expect.Deny), singles
	if v.Policy == "P-auth" {
		kind, most = "nobody", 1 // all that asks without being a sandbox is summed together
	}
	d.pacing.pace(kind, most)
	wire, err := d.world.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked, arrivals := d.world.zone.mark(), d.world.Sink.Mark()
	written, err := d.log.mark()
	if err != nil {
		t.Fatal(err)
	}
	s := &sight{sandbox: "default", digest: d.digest(t), exchange: &exchange{way: way, sent: q.wire}, asked: q}
	began := time.Now()
	var src string
	src, s.said, s.err = d.putQuestion(v, way, q.wire)
	if s.took = time.Since(began); v.Expect.RCode == "none" {
		s.took = 0 // the client waited in vain
		eventually(settling, func() bool { return d.recorded(src, written) })
	}
	if s.records, err = d.log.of(src, written); err != nil {
		t.Error(err)
	}
	if s.packets, err = d.world.Wire.Since(wire); err != nil {
		t.Fatal(err)
	}
	s.queries, s.arrived, s.alive = distinct(d.world.zone.since(asked)), d.arrived(arrivals), d.alive()
	if v.Policy == "P-auth" {
		s.sandbox = ""
	}
	return s
}

// putQuestion sends one message and returns the response.
func (d *daemon) putQuestion(v *vector, way string, wire []byte) (src string, said []byte, err error) {
	network := map[string]string{wayNames: "udp", wayNamesTCP: "tcp"}[way]
	c, err := d.world.Sandbox.Dial(network, net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(namesPort)))
	if err != nil {
		return "", nil, err
	}
	defer c.Close()
	wait := patience
	if v.Expect.RCode == "none" && way == wayNames {
		wait = 100 * time.Millisecond
	}
	c.SetDeadline(time.Now().Add(wait))
	src = c.LocalAddr().String()
	b := make([]byte, 1<<16)
	if way == wayNames {
		if _, err := c.Write(wire); err != nil {
			return src, nil, err
		}
		n, err := c.Read(b)
		return src, b[:n], err
	}
	if _, err := c.Write(append([]byte{byte(len(wire) >> 8), byte(len(wire))}, wire...)); err != nil {
		return src, nil, err
	}
	if _, err := io.ReadFull(c, b[:2]); err != nil {
		return src, nil, err
	}
	n := int(b[0])<<8 | int(b[1])
	_, err = io.ReadFull(c, b[:n])
	return src, b[:n], err
}

// named checks what a question came to.
func (j *judgement) named() {
	j.namesTraffic()
	j.namesRecords()
	if j.RCode == "none" {
		if len(j.said) > 0 {
			j.wrong("the answer is %x, want none", j.said)
		}
		return
	}
	m := new(dns.Msg)
	if err := m.Unpack(j.said); err != nil || j.err != nil {
		j.wrong("no answer came, but %x, %v, %v", j.said, err, j.err)
		return
	}
	got := dns.RcodeToString[m.Rcode]
	if m.Rcode == dns.RcodeBadVers { // which is the number of another as well
		got = "BADVERS"
	}
	if got != j.RCode || !m.Response || len(j.said) < 2 || string(j.said[:2]) != string(j.sent[:2]) {
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
	if j.sandbox == "" && j.way == wayNames {
		if len(j.said) > len(j.sent) {
			j.wrong("%d bytes were answered to %d of nobody's", len(j.said), len(j.sent))
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
	for _, p := range j.packets {
		if p.From.String() == net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(namesPort)) {
			continue // the answer
		}
		if p.To.String() != resolver || !asks {
			j.wrong("a packet was sent: %s", p)
		}
	}
	for _, q := range j.queries {
		if !asks || q != j.asked.name {
			j.wrong("the name server was asked for %q", q)
		}
	}
	for _, a := range j.arrived {
		j.wrong("a connection reached %s", a.to)
	}
}

// namesRecords checks that the last record is the decision, and that there is one
// before it only where the name was looked up and then refused.
func (j *judgement) namesRecords() {
	n := len(j.records)
	if n == 0 || n > 2 || n == 2 && !(j.Asks && len(j.Deny) > 0) {
		j.wrong("%d records: %+v", n, j.records)
		return
	}
	r := j.last()
	d := r.Decision
	switch {
	case d == nil || r.Via != "dns" || r.Sandbox != j.sandbox || d.Policy != j.digest:
		j.wrong("the record is %+v", r)
	case len(j.Deny) == 0 && d.Action != "allow", len(j.Deny) > 0 && (d.Action != "deny" || !slices.Contains(j.Deny, policy.Class(d.Class))):
		j.wrong("the record decides %+v", d)
	case j.DstClass != "" && (r.Dst == nil || r.Dst.Class != j.DstClass):
		j.wrong("the record's destination is %+v, want class %s", r.Dst, j.DstClass)
	case r.Kind == record.KindRefused:
		if r.Raw == "" || !strings.HasPrefix(latin1(j.sent), r.Raw) {
			j.wrong("raw is %q", r.Raw)
		}
	case r.Kind != record.KindDNS || r.DNS == nil || r.DNS.Name != j.asked.name || r.DNS.Type != j.asked.kind:
		j.wrong("the record is %+v with %+v", r, r.DNS)
	}
}

// TestManyIdleNameConnections opens many connections to the name server, silent
// or a byte at a time, and asks beside them.
func TestManyIdleNameConnections(t *testing.T) {
	covers(t, "DN-34")
	d := start(t, withNames(policyText(t, "P0")))
	before := d.descriptors()
	to := net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(namesPort))
	var idle []net.Conn
	for range 500 {
		c, err := d.world.Sandbox.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	began := time.Now()
	for _, c := range idle[:20] {
		c.Write([]byte{0, 40, 1})
	}
	v := &vector{ID: "DN-34", Says: "a question beside idle connections", Policy: "P0", Ask: []string{"A allowed.test"}, Expect: expectation{RCode: "NOERROR", Addrs: []string{allowedIPv4}}}
	q := v.questions(t)[0]
	if s := d.observeQuestion(t, v, wayNames, q); len(judge(&v.Expect, s)) > 0 {
		t.Error(judge(&v.Expect, s))
	}
	for _, c := range idle {
		c.SetReadDeadline(began.Add(10*time.Second + patience))
		if _, err := c.Read(make([]byte, 1)); !gone(err) {
			t.Fatalf("a connection stayed open for %v: %v", time.Since(began), err)
		}
	}
	const pools = 8
	if !eventually(settling, func() bool { return d.descriptors() <= before+pools }) {
		t.Errorf("%d descriptors are left, %d were there before", d.descriptors(), before)
	}
	records, err := d.log.since(0)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(records, func(r record.Record) bool {
		return r.Decision != nil && r.Decision.Class == "too-many-flows" && r.Via == "dns"
	}) {
		t.Error("no record says that there were too many")
	}
}

// TestNamesForKnownAddresses has a name server whose sandboxes are known by their
// addresses, and asks from one that is nobody's.
func TestNamesForKnownAddresses(t *testing.T) {
	d := start(t, withNames(policyText(t, "P0")+"sandboxes: [{name: web, source: [10.99.0.77/32]}]\n"))
	v := &vector{Policy: "P-auth", Ask: []string{"A allowed.test"}}
	q := v.questions(t)[0]
	s := d.observeQuestion(t, v, wayNames, q)
	m := new(dns.Msg)
	if err := m.Unpack(s.said); err != nil || m.Rcode != dns.RcodeRefused || len(s.said) > len(q.wire) {
		t.Errorf("answered %d bytes to %d: %v %v", len(s.said), len(q.wire), m, err)
	}
	if len(s.records) != 1 || s.records[0].Decision.Class != "unknown-sandbox" || s.records[0].Sandbox != "" {
		t.Errorf("recorded %+v", s.records)
	}
	if len(s.queries) > 0 {
		t.Errorf("the name server was asked for %q", s.queries)
	}
	if _, err := netip.ParseAddrPort(s.records[0].Src); err != nil {
		t.Errorf("src is %q", s.records[0].Src)
	}
}
