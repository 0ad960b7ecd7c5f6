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
	*intake
	socket *net.UDPConn
}

// perBurst is how many messages of one sandbox are read at once.
const perBurst = 3000

var twoAddresses = []sandbox.Entry{
	{Name: "one", Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}},
	{Name: "two", Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")}},
}

func newFlooded(t *testing.T, limits Limits) *flooded {
	t.Helper()
	d := newFilterWorld(t, setting{sandboxes: twoAddresses, limits: limits})
	d.ask(t, "udp", questionFor("allowed.test.", dns.TypeA)) // of nobody
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &flooded{d, newIntake(d.Server, c, "test"), c}
}

// peer is at 127.0.0.n.
func (f *flooded) peer(n byte) sandbox.Peer {
	return peerAt(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, n}), 40000), "test")
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

// TestASourceThatFloodsLeavesRoomForOthers has one sandbox send far more than the socket's buffer can
// hold while nobody reads from it, and then another one ask.
func TestASourceThatFloodsLeavesRoomForOthers(t *testing.T) {
	f := newFlooded(t, Limits{})
	one, two := f.from(t, 2), f.from(t, 3)
	for now := time.Now(); len(f.muted) == 0; {
		if who, ok := f.admit(f.peer(2), now); ok {
			f.flying.Release(who)
		}
	}
	send(t, one, 60_000, "localhost.")
	send(t, two, 8, "localhost.") // of which the kernel may lose some on the way
	if err := f.socket.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, from, err := f.socket.ReadFromUDPAddrPort(make([]byte, maxQuery)); err != nil || from.Addr() != netip.MustParseAddr("127.0.0.3") {
		t.Errorf("the first datagram is from %v, %v", from, err)
	}
}

// TestWhatIsBeyondTheBudgetIsNotReadAndCounted has one sandbox send more than is read.
func TestWhatIsBeyondTheBudgetIsNotReadAndCounted(t *testing.T) {
	f := newFlooded(t, Limits{})
	before, now := len(f.records(t)), time.Now()
	read, dropped := 0, 0
	for dropped < 2*muteAfter {
		who, ok := f.admit(f.peer(2), now)
		if !ok {
			dropped++
			continue
		}
		read++
		f.flying.Release(who)
	}
	if read != perBurst {
		t.Errorf("%d messages were read at once, want %d", read, perBurst)
	}
	f.tick(now.Add(time.Second))
	f.oneRecord(t, before, dropped)
	if len(f.muted) > 0 {
		t.Errorf("%v are muted after the second", f.muted)
	}
}

// oneRecord wants one record since some, which says that so many messages of sandbox one were not read.
func (f *flooded) oneRecord(t *testing.T, since, unread int) {
	t.Helper()
	all := f.records(t)[since:]
	if len(all) != 1 || all[0].Sandbox != "one" || all[0].Kind != record.KindRefused || all[0].Decision.Class != string(policy.DNSBudget) || int(all[0].Times()) != unread {
		t.Errorf("recorded is %+v, want %d messages that were not read", all, unread)
	}
}

// TestOneSandboxHasPartOfWhatIsUnderWay never answers what is read.
func TestOneSandboxHasPartOfWhatIsUnderWay(t *testing.T) {
	f := newFlooded(t, Limits{InFlight: 8})
	before, now := len(f.records(t)), time.Now()
	admitted := func(n byte) (count int) {
		for range 8 {
			if _, ok := f.admit(f.peer(n), now); ok {
				count++
			}
		}
		return count
	}
	if one, two, one2 := admitted(2), admitted(3), admitted(2); one != 4 || two != 2 || one2 != 0 {
		t.Errorf("one sandbox has %d under way, another one %d, and the first %d more", one, two, one2)
	}
	f.flying.Release(f.gate.Names.Holder(f.peer(2)))
	f.flying.Release(f.gate.Names.Holder(f.peer(2)))
	if _, ok := f.admit(f.peer(2), now); !ok {
		t.Error("it has no more when two are answered")
	}
	delete(f.senders, f.gate.Names.Holder(f.peer(3)))
	f.tick(now.Add(time.Second))
	f.oneRecord(t, before, 12)
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
		ignore(l, c.ignored)
		write(c.first, "first")
		if c.first == c.second {
			ignore(l, nil)
		}
		write(c.second, "second")
		msg := make([]byte, 16)
		n, err := l.Read(msg)
		if err != nil {
			t.Fatal(err)
		}
		if string(msg[:n]) != "second" {
			t.Errorf("%s on %s, ignoring %v: %q came", c.socket, c.at, c.ignored, msg[:n])
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
