package dns

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestQuestionsThatWaitTogetherAreAnsweredEach has more questions wait at a socket than
// one system call takes, of three clients and all kinds, before it is served.
func TestQuestionsThatWaitTogetherAreAnsweredEach(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
		t.Run(at, func(t *testing.T) { askTogether(t, netip.MustParseAddr(at)) })
	}
}

func askTogether(t *testing.T, at netip.Addr) {
	d := newFilterWorld(t, setting{})
	names := []string{"allowed.test.", "evil.test.", "new%d.allowed.test.", "localhost.", "nx.allowed.test.", "x\\.allowed.test."}
	d.ask(t, "udp", questionFor("allowed.test.", dns.TypeA)) // is cached from now on
	before := len(d.records(t))
	wants := map[string]string{}
	for _, name := range names {
		wants[name] = summary(d.ask(t, "tcp", questionFor(numbered(name, 1000), dns.TypeA)))
	}
	each := len(d.records(t)) - before
	if each != len(names) {
		t.Fatalf("%d records of %d questions", each, len(names))
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
	if err != nil {
		t.Fatal(err)
	}
	to := c.LocalAddr().(*net.UDPAddr).AddrPort()
	switch {
	case at.IsUnspecified() && at.Is4():
		to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.9"), to.Port()) // has to be where the response comes from
	case at.IsUnspecified():
		to = netip.AddrPortFrom(netip.IPv6Loopback(), to.Port())
	}
	var clients []*net.UDPConn
	const perClient = 3 // of each name; seven are one record each
	for k := range 3 {
		client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) // takes what comes from there alone
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		clients = append(clients, client)
		for n := range perClient * len(names) {
			q := questionFor(numbered(names[n%len(names)], 100*k+n), dns.TypeA)
			q.Id = uint16(1000*k + n)
			msg, err := q.Pack()
			if err == nil {
				_, err = client.Write(msg)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- d.ServeUDP(c, "test") }()
	for k, client := range clients {
		seen := map[uint16]bool{}
		for range perClient * len(names) {
			m := hear(t, client)
			n := int(m.Id) - 1000*k
			if n < 0 || n >= perClient*len(names) || seen[m.Id] {
				t.Fatalf("client %d got %v", k, m)
			}
			seen[m.Id] = true
			name := names[n%len(names)]
			for _, rr := range m.Answer {
				rr.Header().Name = numbered(name, 1000) // of which the answer is known
			}
			if got := summary(m); got != wants[name] {
				t.Errorf("client %d, %s: %s, want %s", k, name, got, wants[name])
			}
		}
	}
	d.Shutdown()
	if err := <-ended; err != ErrServerClosed {
		t.Error(err)
	}
	d.gate.Records.Settle()
	total := 0
	for _, r := range d.records(t)[before+each:] {
		total += int(r.Times())
	}
	if want := 3 * perClient * len(names); total != want {
		t.Errorf("%d records, sums counted, of %d questions", total, want)
	}
}

// numbered is a name, the n-th of its kind where there are more.
func numbered(name string, n int) string {
	if name == "new%d.allowed.test." {
		return fmt.Sprintf(name, n)
	}
	return name
}

func hear(t *testing.T, c net.Conn) *dns.Msg {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	m := new(dns.Msg)
	if err := m.Unpack(b[:n]); err != nil {
		t.Fatal(err)
	}
	return m
}
