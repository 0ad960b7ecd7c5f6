package dns

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

func framedMessage(t *testing.T, q *dns.Msg) []byte {
	t.Helper()
	b, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{byte(len(b) >> 8), byte(len(b))}, b...)
}

// connect opens a connection from one of the addresses of loopback.
func (d *filterWorld) connect(t *testing.T, from string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", d.tcp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

func (d *filterWorld) has(t *testing.T, class string) bool {
	t.Helper()
	return slices.ContainsFunc(d.records(t), func(r record.Record) bool { return r.Decision.Class == class })
}

// TestQuestionsInARowAreAnsweredInOrder sends three at once on one connection.
func TestQuestionsInARowAreAnsweredInOrder(t *testing.T) {
	d := newFilterWorld(t, setting{})
	c := d.connect(t, "127.0.0.1")
	var all []byte
	names := []string{"a.allowed.test.", "evil.test.", "b.allowed.test."}
	for _, name := range names {
		all = append(all, framedMessage(t, questionFor(name, dns.TypeA))...)
	}
	if _, err := c.Write(all); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := readFrame(c, nil)
		m := new(dns.Msg)
		if err != nil || m.Unpack(b) != nil || m.Question[0].Name != name {
			t.Fatalf("%s: %v, %v", name, m, err)
		}
	}
}

// TestOneAddressHasFewConnections opens more than it may.
func TestOneAddressHasFewConnections(t *testing.T) {
	d := newFilterWorld(t, setting{limits: Limits{PerSource: 2}})
	ask := func(c net.Conn) error {
		c.Write(framedMessage(t, questionFor("evil.test.", dns.TypeA)))
		_, err := readFrame(c, nil)
		return err
	}
	for range 2 {
		if err := ask(d.connect(t, "127.0.0.1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(d.connect(t, "127.0.0.1")); err == nil {
		t.Error("a third connection was served")
	}
	if err := ask(d.connect(t, "127.0.0.2")); err != nil {
		t.Errorf("another address: %v", err)
	}
	if !d.has(t, "too-many-flows") {
		t.Error("no record says so")
	}
}

// twoSandboxes are known by their networks, of which each has all addresses.
var twoSandboxes = []sandbox.Entry{
	{Name: "one", Sources: []netip.Prefix{netip.MustParsePrefix("127.1.0.0/16")}},
	{Name: "two", Sources: []netip.Prefix{netip.MustParsePrefix("127.2.0.0/16")}},
}

const forBoth = "sandboxes: [{name: one, source: [127.1.0.0/16]}, {name: two, source: [127.2.0.0/16]}]\n"

// TestOneSandboxHasPartOfTheConnections has it come from as many addresses as it likes.
func TestOneSandboxHasPartOfTheConnections(t *testing.T) {
	d := newFilterWorld(t, setting{policy: onlyAllowed + forBoth, sandboxes: twoSandboxes, limits: Limits{Connections: 8}})
	ask := func(from string) (net.Conn, error) {
		c := d.connect(t, from)
		c.Write(framedMessage(t, questionFor("evil.test.", dns.TypeA)))
		_, err := readFrame(c, nil)
		return c, err
	}
	var all []net.Conn
	for i := range 6 {
		c, err := ask(fmt.Sprintf("127.1.0.%d", i+1))
		if served := err == nil; served != (i < 4) {
			t.Errorf("connection %d: %v", i, err)
		}
		all = append(all, c)
	}
	if _, err := ask("127.2.0.1"); err != nil {
		t.Errorf("another sandbox: %v", err)
	}
	for _, c := range all {
		c.Close()
	}
	for free := false; !free; {
		c, err := ask("127.1.0.1")
		c.Close()
		free = err == nil
	}
}

// TestSlowAndLongMessagesEndTheConnection sends half a message, and one that is
// longer than any question.
func TestSlowAndLongMessagesEndTheConnection(t *testing.T) {
	d := newFilterWorld(t, setting{limits: Limits{Idle: 200 * time.Millisecond}})
	for says, sent := range map[string]string{
		"nothing": "", "half a length": "\x00", "half a message": "\x00\x28half", "a long one": "\xff\xffx", "an empty one": "\x00\x00",
	} {
		c := d.connect(t, "127.0.0.1")
		if _, err := io.WriteString(c, sent); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: %q, %v", says, b, err)
		}
	}
	if !d.has(t, "malformed-request") {
		t.Error("nothing is recorded")
	}
}

// TestASilentNameServerDelaysNobody has one sandbox wait for as many names as it may, and another one ask.
func TestASilentNameServerDelaysNobody(t *testing.T) {
	const most = 128 // names of one sandbox
	d := newFilterWorld(t, setting{policy: onlyAllowed + "sandboxes: [{name: one, source: [127.0.0.2/32]}, {name: two, source: [127.0.0.3/32]}]\n", sandboxes: twoAddresses, patience: time.Minute, script: func(q *asked) {
		if !strings.HasPrefix(strings.ToLower(q.msg.Question[0].Name), "slow") {
			scripted(q)
		}
	}})
	from := func(at string) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(at)}}).Dial("udp", d.udp)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ask := func(c net.Conn, name string) {
		b, _ := questionFor(name, dns.TypeA).Pack()
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	one, two := from("127.0.0.2"), from("127.0.0.3")
	ask(one, "known.allowed.test.")
	hear(t, one)
	for i := range most + 1 {
		ask(one, fmt.Sprintf("slow%d.allowed.test.", i))
	}
	if _, text := extended(hear(t, one)); !strings.HasPrefix(text, "dns-budget") { // one of them, and then the rest waits
		t.Errorf("beyond what may wait: %q", text)
	}
	for _, row := range []struct {
		from net.Conn
		name string
		want int
	}{{two, "new.allowed.test.", dns.RcodeSuccess}, {one, "known.allowed.test.", dns.RcodeSuccess}, {one, "evil.test.", dns.RcodeRefused}} {
		began := time.Now()
		ask(row.from, row.name)
		if m := hear(t, row.from); m.Rcode != row.want || time.Since(began) > 5*time.Second {
			t.Errorf("%s for %s: %s after %v", row.name, row.from.LocalAddr(), summary(m), time.Since(began))
		}
	}
}

// TestShutdownDoesNotWaitForNameServers has a question wait for one that says nothing, and
// then says it too late.
func TestShutdownDoesNotWaitForNameServers(t *testing.T) {
	late := make(chan func(), 2)
	d := newFilterWorld(t, setting{patience: time.Hour, script: func(q *asked) {
		late <- func() { q.answer(q.msg.Question[0].Name + " 60 A 93.184.216.34") }
	}})
	c, err := net.Dial("udp", d.udp)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	slow, _ := questionFor("slow.allowed.test.", dns.TypeA).Pack()
	if _, err := c.Write(slow); err != nil {
		t.Fatal(err)
	}
	first := <-late
	down := make(chan struct{})
	go func() { d.Shutdown(); close(down) }()
	select {
	case <-down:
	case <-time.After(time.Minute):
		t.Fatal("it waits for the name server")
	}
	first()
}
