package waysin

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

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
	"github.com/miekg/dns"
)

// questions makes the messages of a vector.
func questions(t *testing.T, v *world.Vector) (all []world.Question) {
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
		all = append(all, world.Question{Name: strings.ToLower(strings.TrimSuffix(name, ".")), Kind: kind, Wire: wire})
	}
	for _, digits := range v.Wire {
		wire, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%s: %v", v.ID, err)
		}
		all = append(all, world.Question{Wire: wire})
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

// putQuestions puts every question of a vector through both ways in.
func putQuestions(t *testing.T, d *world.Daemon, v *world.Vector) {
	t.Helper()
	for _, q := range questions(t, v) {
		for _, way := range []string{world.WayNames, world.WayNamesTCP} {
			s := observeQuestion(t, d, v, way, q)
			for _, p := range world.Judge(&v.Expect, s) {
				t.Errorf("%s %s, %s %s %q %x: %s", v.ID, v.Says, way, q.Kind, q.Name, q.Wire[:min(len(q.Wire), 40)], p)
			}
		}
	}
}

// observeQuestion asks, and returns what was seen of it on all sides. A record is
// there before its answer is.
func observeQuestion(t *testing.T, d *world.Daemon, v *world.Vector, way string, q world.Question) *world.Observation {
	t.Helper()
	kind, most := fmt.Sprint(way, q.Name, v.Expect.Deny), world.Singles
	if v.Policy == "P-auth" {
		kind, most = "nobody", 1 // all that asks without being a sandbox is summed together
	}
	d.Pacing.Pace(kind, most)
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	asked, arrivals := d.World.Zone.Mark(), d.World.Sink.Mark()
	written, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	s := &world.Observation{Sandbox: "default", Digest: d.Digest(t), Exchange: &world.Exchange{Way: way, Sent: q.Wire}, Asked: q}
	began := time.Now()
	var src string
	src, s.Said, s.Err = putQuestion(d, v, way, q.Wire)
	if s.Took = time.Since(began); v.Expect.RCode == "none" {
		s.Took = 0 // the client waited in vain
		world.Eventually(world.Settling, func() bool { return d.Recorded(src, written) })
	}
	if s.Records, err = d.Log.Of(src, written); err != nil {
		t.Error(err)
	}
	if s.Packets, err = d.World.Wire.Since(wire); err != nil {
		t.Fatal(err)
	}
	s.Queries, s.Arrived, s.Alive = world.Distinct(d.World.Zone.Since(asked)), d.Arrived(arrivals), d.Alive()
	if v.Policy == "P-auth" {
		s.Sandbox = ""
	}
	return s
}

// putQuestion sends one message and returns the response.
func putQuestion(d *world.Daemon, v *world.Vector, way string, wire []byte) (src string, said []byte, err error) {
	network := map[string]string{world.WayNames: "udp", world.WayNamesTCP: "tcp"}[way]
	c, err := d.World.Sandbox.Dial(network, net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(world.NamesPort)))
	if err != nil {
		return "", nil, err
	}
	defer c.Close()
	wait := world.Patience
	if v.Expect.RCode == "none" && way == world.WayNames {
		wait = 100 * time.Millisecond
	}
	c.SetDeadline(time.Now().Add(wait))
	src = c.LocalAddr().String()
	b := make([]byte, 1<<16)
	if way == world.WayNames {
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

// TestManyIdleNameConnections opens many connections to the name server, silent
// or a byte at a time, and asks beside them.
func TestManyIdleNameConnections(t *testing.T) {
	world.Covers(t, "DN-34")
	d := world.Start(t, world.WithNames(world.PolicyText(t, "P0")))
	before := d.Descriptors()
	to := net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(world.NamesPort))
	var idle []net.Conn
	for range 500 {
		c, err := d.World.Sandbox.Dial("tcp", to)
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
	v := &world.Vector{ID: "DN-34", Says: "a question beside idle connections", Policy: "P0", Ask: []string{"A allowed.test"}, Expect: world.Expectation{RCode: "NOERROR", Addrs: []string{world.AllowedIPv4}}}
	q := questions(t, v)[0]
	if s := observeQuestion(t, d, v, world.WayNames, q); len(world.Judge(&v.Expect, s)) > 0 {
		t.Error(world.Judge(&v.Expect, s))
	}
	for _, c := range idle {
		c.SetReadDeadline(began.Add(10*time.Second + world.Patience))
		if _, err := c.Read(make([]byte, 1)); !world.Gone(err) {
			t.Fatalf("a connection stayed open for %v: %v", time.Since(began), err)
		}
	}
	const pools = 8
	if !world.Eventually(world.Settling, func() bool { return d.Descriptors() <= before+pools }) {
		t.Errorf("%d descriptors are left, %d were there before", d.Descriptors(), before)
	}
	records, err := d.Log.Since(0)
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
	d := world.Start(t, world.WithNames(world.PolicyText(t, "P0")+"sandboxes: [{name: web, source: [10.99.0.77/32]}]\n"))
	v := &world.Vector{Policy: "P-auth", Ask: []string{"A allowed.test"}}
	q := questions(t, v)[0]
	s := observeQuestion(t, d, v, world.WayNames, q)
	m := new(dns.Msg)
	if err := m.Unpack(s.Said); err != nil || m.Rcode != dns.RcodeRefused || len(s.Said) > len(q.Wire) {
		t.Errorf("answered %d bytes to %d: %v %v", len(s.Said), len(q.Wire), m, err)
	}
	if len(s.Records) != 1 || s.Records[0].Decision.Class != "unknown-sandbox" || s.Records[0].Sandbox != "" {
		t.Errorf("recorded %+v", s.Records)
	}
	if len(s.Queries) > 0 {
		t.Errorf("the name server was asked for %q", s.Queries)
	}
	if _, err := netip.ParseAddrPort(s.Records[0].Src); err != nil {
		t.Errorf("src is %q", s.Records[0].Src)
	}
}
