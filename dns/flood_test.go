package dns

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A flooded is a socket that a test reads from by hand, with a sandbox at 127.0.0.2 and one at 127.0.0.3.
type flooded struct {
	*filterWorld
	*datagrams
	socket *net.UDPConn
}

// perBurst is how many messages of one sandbox are read at once.
const perBurst = 3000

func newFlooded(t *testing.T) *flooded {
	t.Helper()
	d := newFilterWorld(t, setting{sandboxes: []sandbox.Entry{
		{Name: "one", Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}},
		{Name: "two", Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")}},
	}})
	d.ask(t, "udp", questionFor("allowed.test.", dns.TypeA)) // of nobody
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	p, err := newPackets(c)
	if err != nil {
		t.Fatal(err)
	}
	return &flooded{d, newDatagrams(d.FilteringServer, p, "test"), c}
}

// from is a client of the socket at 127.0.0.n.
func (f *flooded) from(t *testing.T, n byte) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, n)}, f.socket.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// send sends n equal questions.
func send(t *testing.T, c *net.UDPConn, n int, name string) {
	t.Helper()
	msg, err := questionFor(name, dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if _, err := c.Write(msg); err != nil {
			t.Fatal(err)
		}
	}
}

// take serves what waits at the socket, and returns the number of datagrams.
func (f *flooded) take(t *testing.T) int {
	t.Helper()
	n, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	f.serve(n)
	return n
}

// TestASourceThatFloodsLeavesRoomForOthers has one sandbox send far more than the socket's buffer can
// hold while nobody reads from it, and then another one ask.
func TestASourceThatFloodsLeavesRoomForOthers(t *testing.T) {
	f := newFlooded(t)
	one, two := f.from(t, 2), f.from(t, 3)
	send(t, two, 1, "localhost.")
	f.take(t) // the policy and the log are warm
	hear(t, two)
	for taken := 0; taken < 2*perBurst && len(f.flood.muted) == 0; {
		send(t, one, 16, "localhost.")
		taken += f.take(t)
	}
	send(t, one, 60_000, "localhost.")
	send(t, two, 8, "localhost.") // of which the kernel may lose some on the way
	served := make(chan struct{})
	go func() {
		defer close(served)
		for f.next() == nil {
		}
	}()
	if m := hear(t, two); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
		t.Errorf("the other sandbox was answered %s", summary(m))
	}
	f.socket.Close()
	<-served
}

// TestWhatIsBeyondTheBudgetIsNotReadAndCounted sends more than is read.
func TestWhatIsBeyondTheBudgetIsNotReadAndCounted(t *testing.T) {
	f := newFlooded(t)
	one := f.from(t, 2)
	before := len(f.records(t))
	taken := 0
	for taken < 2*perBurst && len(f.flood.muted) == 0 {
		send(t, one, 16, "evil.test.")
		taken += f.take(t)
	}
	f.flood.tick(time.Now().Add(time.Second))
	f.gate.Records.Settle()
	total, unread := 0, 0
	for _, r := range f.records(t)[before:] {
		if r.Sandbox != "one" {
			t.Errorf("a record is of sandbox %q", r.Sandbox)
		}
		total += int(r.Times())
		if r.Kind == record.KindRefused && r.Decision.Class == string(policy.DNSBudget) {
			unread += int(r.Times())
		}
	}
	if total != taken {
		t.Errorf("the records stand for %d of %d messages", total, taken)
	}
	if unread < muteAfter || unread > taken-perBurst {
		t.Errorf("%d of %d messages were not read", unread, taken)
	}
	if n := len(f.records(t)) - before; n > 200 {
		t.Errorf("%d records of %d messages", n, taken)
	}
	if muted := f.flood.muted; len(muted) > 0 {
		t.Errorf("%v are muted after the second", muted)
	}
}

// TestTheKernelIgnoresTheAddressesThatItIsTold sends from an address that is to be ignored, and then from another
// or after the end of that. Only the second datagram is there.
func TestTheKernelIgnoresTheAddressesThatItIsTold(t *testing.T) {
	far, ip := netip.MustParseAddr("2001:db8::"), netip.MustParseAddr
	cases := []struct {
		socket, at    string
		ignored       []netip.Addr
		first, second string // who sends; where they are the same, the second sends when nobody is ignored
	}{
		{"udp4", "127.0.0.1", []netip.Addr{ip("127.0.0.2")}, "127.0.0.2", "127.0.0.3"},
		{"udp4", "0.0.0.0", []netip.Addr{far, ip("127.0.0.9"), ip("127.0.0.2")}, "127.0.0.2", "127.0.0.3"},
		{"udp", "::", []netip.Addr{ip("127.0.0.2"), far}, "127.0.0.2", "127.0.0.3"},
		{"udp", "::", []netip.Addr{ip("127.0.0.2"), far, ip("::")}, "::1", "127.0.0.3"},
		{"udp6", "::1", []netip.Addr{far, ip("::"), ip("127.0.0.2")}, "::1", "::1"},
	}
	for _, c := range cases {
		l, err := net.ListenUDP(c.socket, net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip(c.at), 0)))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		p, err := newPackets(l)
		if err != nil {
			t.Fatal(err)
		}
		port := l.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		write := func(from, text string) {
			to := netip.AddrPortFrom(ip("127.0.0.1"), port)
			if ip(from).Is6() {
				to = netip.AddrPortFrom(netip.IPv6Loopback(), port)
			}
			s, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip(from), 0)), net.UDPAddrFromAddrPort(to))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := s.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		p.ignore(c.ignored)
		write(c.first, "first")
		if c.first == c.second {
			p.ignore(nil)
		}
		write(c.second, "second")
		if _, err := p.read(); err != nil {
			t.Fatal(err)
		}
		if msg, _ := p.message(0); string(msg) != "second" {
			t.Errorf("%s on %s, ignoring %v: %q came", c.socket, c.at, c.ignored, msg)
		}
	}
}

// TestTheSocketOfOneSandboxIsReadAsItsBudgetAllows reads without pause from a sandbox that has always more to say.
func TestTheSocketOfOneSandboxIsReadAsItsBudgetAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := readBudget(200)
		began := time.Now()
		for range perBurst + 5000 {
			await(budget)
		}
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("%d messages were read in %v, at 500 a second", perBurst+5000, took)
		}
	})
}
