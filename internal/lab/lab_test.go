package lab

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if code, inside := Enter(); !inside {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func newWorld(t *testing.T) *World {
	t.Helper()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func TestInsideIsRoot(t *testing.T) {
	if os.Getenv(stageVariable) != "" {
		t.Error("children would take themselves for the second run")
	}
	if os.Getuid() != 0 {
		t.Errorf("uid %d inside, want 0", os.Getuid())
	}
}

// Whatever a test dials by mistake outside a Net goes nowhere.
func TestNothingIsReachableOutsideTheWorld(t *testing.T) {
	newWorld(t)
	for _, address := range []string{"93.184.216.34:80", "10.99.0.2:80", "[fd99::2]:80"} {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			t.Errorf("dialled %s from the test's own namespace", address)
		}
	}
}

func TestEveryAddressIsInTheInternet(t *testing.T) {
	w := newWorld(t)
	go w.Sink.Serve(func(a *Arrival) {
		io.WriteString(a, "hello from "+a.To.String())
		a.CloseWrite()
		io.Copy(io.Discard, a)
	})
	for _, address := range []string{
		"93.184.216.34:443", "10.0.0.5:8443", "169.254.169.254:80", "100.64.0.5:1", "198.18.0.5:65535", "240.0.0.5:80",
		"[2606:2800:220:1::1]:443", "[fd12::5]:443", "[64:ff9b::a9fe:a9fe]:80", "[2002:a9fe:a9fe::1]:80", "[100::1]:80",
	} {
		mark := w.Sink.Mark()
		c, err := w.Gateway.Dial("tcp", address)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		io.WriteString(c, "ping")
		c.(*net.TCPConn).CloseWrite()
		answer, _ := io.ReadAll(c)
		c.Close()
		if want := "hello from " + address; string(answer) != want {
			t.Errorf("%s answered %q", address, answer)
		}
		arrived := w.Sink.Since(mark)
		if len(arrived) != 1 || arrived[0].To.String() != address {
			t.Errorf("%s: arrivals %v", address, arrived)
			continue
		}
		<-arrived[0].Ended()
		if got, n := arrived[0].Received(); string(got) != "ping" || n != 4 {
			t.Errorf("%s received %q (%d bytes)", address, got, n)
		}
	}
}

func TestSandboxReachesOnlyTheGateway(t *testing.T) {
	w := newWorld(t)
	for _, address := range []string{"10.99.0.2:3128", "[fd99::2]:3128"} {
		l, err := w.Gateway.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := w.Sandbox.Dial("tcp", address)
		if err != nil {
			t.Errorf("gateway at %s: %v", address, err)
			continue
		}
		c.Close()
	}
	for _, address := range []string{"93.184.216.34:80", "10.0.0.5:80", "10.98.0.2:80", "[2606:2800:220:1::1]:80"} {
		if c, err := w.Sandbox.Dial("tcp", address); err == nil {
			c.Close()
			t.Errorf("the sandbox reached %s", address)
		}
	}
}

func TestWireSeesEveryFirstPacket(t *testing.T) {
	w := newWorld(t)
	go w.Sink.Serve(func(a *Arrival) { io.Copy(a, a) })
	udp, err := w.Gateway.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for _, row := range []struct {
		says  string
		do    func() error
		wants string
	}{
		{"a connection", func() error { return w.touch("93.184.216.34:443") }, "tcp 10.98.0.1:* > 93.184.216.34:443"},
		{"one over IPv6", func() error { return w.touch("[fd12::1]:443") }, "tcp [fd98::1]:* > [fd12::1]:443"},
		{"one to loopback that is refused", func() error { return refused(w.touch("127.0.0.1:8080")) }, "tcp 127.0.0.1:* > 127.0.0.1:8080"},
		{"one back to the sandbox that is refused", func() error { return refused(w.touch("10.99.0.1:22")) }, "tcp 10.99.0.2:* > 10.99.0.1:22"},
		{"a datagram", func() error {
			_, err := udp.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(9, 9, 9, 53), Port: 53})
			return err
		}, "udp 10.98.0.1:* > 9.9.9.53:53"},
	} {
		mark, err := w.Wire.Mark()
		if err != nil {
			t.Fatal(err)
		}
		if err := row.do(); err != nil {
			t.Errorf("%s: %v", row.says, err)
		}
		packets, err := w.Wire.Since(mark)
		if err != nil {
			t.Fatal(err)
		}
		if len(packets) != 1 || withoutSourcePort(packets[0]) != row.wants {
			t.Errorf("%s: the wire saw %v, want %s", row.says, packets, row.wants)
		}
	}
}

func (w *World) touch(address string) error {
	c, err := w.Gateway.Dial("tcp", address)
	if err != nil {
		return err
	}
	return c.Close()
}

func refused(err error) error {
	if err != nil && strings.Contains(err.Error(), "refused") {
		return nil
	}
	return err
}

func withoutSourcePort(p Packet) string {
	s := p.String()
	from, to, _ := strings.Cut(s, " > ")
	return from[:strings.LastIndexByte(from, ':')] + ":* > " + to
}

func TestHostsThatDoNotAnswer(t *testing.T) {
	w := newWorld(t)
	go w.Sink.Serve(func(*Arrival) {})
	if err := w.touch(RefusingHost + ":443"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the refusing host: %v", err)
	}
	if err := w.touch(UnreachableHost + ":443"); err == nil || !strings.Contains(err.Error(), "no route") {
		t.Errorf("the unreachable host: %v", err)
	}
	if got := w.Sink.Since(0); len(got) != 0 {
		t.Errorf("the sink got %v", got)
	}
	for _, host := range []string{RefusingHost, UnreachableHost, SilentHost, GatewayIPv4, "127.0.0.1"} {
		if !Unanswering(netip.MustParseAddr(host)) {
			t.Errorf("%s passes for a host of the sink", host)
		}
	}
	if Unanswering(netip.MustParseAddr("93.184.216.34")) {
		t.Error("a host of the sink passes for one that does not answer")
	}
}

// What the gateway answers is not a first word: a served connection from the
// sandbox leaves no trace.
func TestWireIgnoresAnswers(t *testing.T) {
	w := newWorld(t)
	l, err := w.Gateway.Listen("tcp", "10.99.0.2:3128")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mark, err := w.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.Sandbox.Dial("tcp", "10.99.0.2:3128")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(served, "bytes")
	io.ReadFull(c, make([]byte, 5))
	served.Close()
	packets, err := w.Wire.Since(mark)
	if err != nil || len(packets) != 0 {
		t.Errorf("the wire saw %v (%v), want nothing", packets, err)
	}
}

func TestCommandsRunInTheirNamespace(t *testing.T) {
	w := newWorld(t)
	var out bytes.Buffer
	path, err := find("ip")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-brief", "addr")
	cmd.Stdout = &out
	if err := w.Sandbox.Run(cmd); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "10.99.0.1/24") || strings.Contains(out.String(), "10.98.") {
		t.Errorf("ip in the sandbox printed %s", out.String())
	}
}

func TestWorldsAreApart(t *testing.T) {
	a, b := newWorld(t), newWorld(t)
	go a.Sink.Serve(func(*Arrival) {})
	mark := b.Sink.Mark()
	if err := a.touch("93.184.216.34:80"); err != nil {
		t.Fatal(err)
	}
	if got := b.Sink.Since(mark); len(got) != 0 {
		t.Errorf("a connection of one world arrived in the other: %v", got)
	}
	packets, err := b.Wire.Since(0)
	if err != nil || len(packets) != 0 {
		t.Errorf("the other world's wire saw %v (%v)", packets, err)
	}
}

func TestArrivalKeepsOnlyTheBeginning(t *testing.T) {
	w := newWorld(t)
	go w.Sink.Serve(func(a *Arrival) { io.Copy(io.Discard, onlyReader{a}) })
	c, err := w.Gateway.Dial("tcp", "93.184.216.34:80")
	if err != nil {
		t.Fatal(err)
	}
	const sent = keptBytes + 12345
	if _, err := c.Write(make([]byte, sent)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	a := waitForArrival(t, w)
	<-a.Ended()
	if kept, n := a.Received(); len(kept) != keptBytes || n != sent {
		t.Errorf("kept %d of %d bytes, want %d of %d", len(kept), n, keptBytes, sent)
	}
}

type onlyReader struct{ io.Reader }

func waitForArrival(t *testing.T, w *World) *Arrival {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if got := w.Sink.Since(0); len(got) > 0 {
			return got[0]
		}
	}
	t.Fatal("nothing arrived")
	return nil
}

func TestAddressesOfArrivalsAreUnmapped(t *testing.T) {
	if got := unmap(netip.MustParseAddrPort("[::ffff:10.0.0.5]:80")); got.String() != "10.0.0.5:80" {
		t.Errorf("unmap gave %s", got)
	}
}
