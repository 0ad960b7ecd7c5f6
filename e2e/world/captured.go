package world

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/policy"
)

// TalkTo connects to an address from a network, sends a text, and returns the bytes that the server sends until
// it closes the connection, or sends nothing for as long as wait.
func TalkTo(from *lab.Net, to, text string, wait time.Duration) (string, error) {
	c, err := from.Dial("tcp", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// Silent fails where the gateway has begun to speak to anybody since a mark, but to
// those who are excepted.
func (w *World) Silent(t *testing.T, mark int, but ...string) {
	t.Helper()
	packets, err := w.Wire.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		if !slices.Contains(but, p.To.Addr().String()) && p.Protocol != lab.ProtocolICMP && p.Protocol != lab.ProtocolICMPv6 {
			t.Errorf("sent %s", p)
		}
	}
}

// Mark returns the number of packets on the wire so far.
func (w *World) Mark(t *testing.T) int {
	t.Helper()
	mark, err := w.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

// Chown makes a user the owner of all that the daemon has.
func (d *Daemon) Chown(uid int) error {
	for dir := d.Dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return filepath.WalkDir(d.Dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
}

// The ways in of captured connections differ in how the kernel tells where they were
// going.
const (
	WayRedirect = "redirect"
	WayTProxy   = "tproxy"
)

// Elsewhere is where a program connects that claims a name: the name's host is
// another one, and nothing may be sent here. It is another address for each vector,
// since denials that repeat are summed.
func (v *Vector) Elsewhere() string {
	h := fnv.New32a()
	io.WriteString(h, v.ID+v.Says)
	sum := h.Sum32()
	return netip.AddrFrom4([4]byte{151, 101, byte(sum >> 8), byte(sum)}).String()
}

const capturePort = 3129

// gatewayPage has the rules and routes of a gateway.
const gatewayPage = "how-to/gateway.md"

// captureEntries are listen.transparent of the documentation for a way in.
func captureEntries(way string) string {
	if way == WayTProxy {
		return fmt.Sprintf(`["tproxy:127.0.0.1:%[1]d", "tproxy:[::1]:%[1]d"]`, capturePort)
	}
	return fmt.Sprintf(`["%[1]s:%[3]d", "[%[2]s]:%[3]d"]`, lab.GatewayIPv4, lab.GatewayIPv6, capturePort)
}

// WithCapture is a policy with all listeners, those for captured connections too.
func WithCapture(text, way string) string {
	return text + fmt.Sprintf("listen: {open_to_network: true, proxy: [\"%[1]s:%[2]d\", \"[%[3]s]:%[2]d\"], dns: [\"%[1]s:%[4]d\", \"[%[3]s]:%[4]d\"], transparent: %[5]s}\n",
		lab.GatewayIPv4, ProxyPort, lab.GatewayIPv6, NamesPort, captureEntries(way))
}

// Capture has the gateway capture what the sandbox sends, by the rules of the
// documentation, until the end of the test.
func (w *World) Capture(t *testing.T, way string) {
	t.Helper()
	rules := testfiles.Block(t, gatewayPage, "nft", "**With NAT**")
	if way == WayTProxy {
		rules = testfiles.Block(t, gatewayPage, "nft", "**With tproxy**")
		w.route(t)
	}
	w.LoadRules(t, w.Gateway, rules)
	w.reachOut(t)
}

// LoadRules loads rules of the table egressd until the end of the test.
func (w *World) LoadRules(t *testing.T, n *lab.Net, rules string) {
	t.Helper()
	if err := n.Load(rules); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Load("delete table inet egressd\n"); err != nil {
			t.Error(err)
		}
	})
}

// reachOut has the sandbox send everything to the gateway.
func (w *World) reachOut(t *testing.T) {
	t.Helper()
	if err := w.Route(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Unroute(); err != nil {
			t.Error(err)
		}
	})
}

// route adds the routes that tproxy needs, as that page has them.
func (w *World) route(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(testfiles.Block(t, gatewayPage, "sh", "**With tproxy**")) {
		line, isIP := strings.CutPrefix(strings.TrimSpace(line), "ip ")
		if !isIP {
			t.Fatalf("docs/how-to/gateway.md says %q", line)
		}
		if err := w.Gateway.IP(line); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.Gateway.IP(strings.Replace(line, " add ", " del ", 1)); err != nil {
				t.Error(err)
			}
		})
	}
}

func isCaptured(way string) bool { return way == WayRedirect || way == WayTProxy }

// CapturedTo is where a program connects for a destination of a vector, where its
// connection could be captured at all: the address itself, or elsewhere for a name.
func (v *Vector) CapturedTo(to string) (at netip.AddrPort, name string, ok bool) {
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return at, "", false
	}
	if at, err := netip.ParseAddrPort(to); err == nil {
		return at, "", at.Port() > 0 && at.Addr().Zone() == "" && leavesSandbox(at.Addr())
	}
	name, err = policy.ParseName(host)
	at, errPort := netip.ParseAddrPort(v.Elsewhere() + ":" + port)
	showsNone := slices.Contains([]uint16{21, 25}, at.Port())
	return at, name, err == nil && errPort == nil && at.Port() > 0 && !showsNone && !strings.ContainsAny(to, "[]")
}

// leavesSandbox reports whether the sandbox's kernel sends a SYN for a to the
// gateway, and the gateway's rules take it for somebody else's.
func leavesSandbox(a netip.Addr) bool {
	own := slices.ContainsFunc([]string{"10.99.0.0/24", "10.98.0.1/32", "10.97.0.0/16", "fd99::/64", "fd98::1/128", "0.0.0.0/8", "240.0.0.0/4", "fe80::/10", "fec0::/10"}, func(p string) bool {
		return netip.MustParsePrefix(p).Contains(a)
	})
	return !own && !a.Is4In6() && !a.IsLoopback() && !a.IsMulticast() && !a.IsUnspecified()
}

// nextPort is the source port of the next captured connection. The kernel would give
// one source port to connections with two destinations. NAT makes one destination of
// the two and replaces the port of one connection, so the record would show another.
var nextPort atomic.Int32

// DialCaptured connects from the sandbox to where a captured connection goes.
func (d *Daemon) DialCaptured(v *Vector, to string) (c net.Conn, err error) {
	at, _, _ := v.CapturedTo(to)
	dialer := net.Dialer{Timeout: Patience, LocalAddr: &net.TCPAddr{Port: 10000 + int(nextPort.Add(1))%22000}}
	err = d.World.Sandbox.Do(func() error {
		c, err = dialer.Dial("tcp", at.String())
		return err
	})
	return c, err
}

// captured carries out a vector as a program that knows of no proxy.
func (c *client) captured(t *testing.T, v *Vector, to string) error {
	at, name, _ := v.CapturedTo(to)
	c.Opened = true
	host := name
	if host == "" {
		host = cmp.Or(v.Claims, at.Addr().Unmap().String())
	}
	switch {
	case v.First != "" || v.Hello != "":
		return c.sendFirst(t, v)
	case at.Port() == 80:
		return c.getCaptured(host)
	}
	roots, err := openWorld()
	if err != nil {
		return err
	}
	inner := tls.Client(c, &tls.Config{ServerName: host, RootCAs: roots.Origin.Ca.pool()})
	if err := c.proveOver(inner, to); err != nil {
		c.closed = Gone(err)
		return err
	}
	return nil
}

// getCaptured asks in clear, and answers as [WayHTTP] does.
func (c *client) getCaptured(host string) error {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	c.Opened = false
	if err := c.send([]byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")); err != nil {
		return err
	}
	if err := c.readHTTP("GET"); err != nil {
		return err
	}
	if c.Answers[0].Status != 200 {
		return c.readEnd()
	}
	c.Data = c.Answers[0].Body
	return nil
}

// judgeCaptured is the oracle for a captured connection, which waits for no answer:
// it is there from the beginning, and what it carries passes or does not.
func (j *judgement) judgeCaptured() {
	if _, port := canonical(j.to); j.Host != "" { // that is where it asked to go
		j.to = net.JoinHostPort(j.Host, port)
	}
	switch {
	case j.Allow != nil:
		if j.Data == "" || RefusedBy(j.Data) || j.Err != nil {
			j.wrong("no data came from the far host: %q, %v, %s", j.Data, j.Err, j.explain())
		}
		j.reached(j.Allow)
		j.allowRecords()
	case j.Cut != nil || j.Ended:
		j.cut()
	case len(j.Answers) > 0 && j.Fails != nil:
		j.failed()
	case len(j.Answers) > 0:
		j.denied()
	case j.Fails != nil:
		j.capturedFailed()
	default:
		j.capturedDenied()
	}
}

func (j *judgement) capturedDenied() {
	j.silence()
	if !j.closed || j.Data != "" && !RefusedBy(j.Data) {
		j.wrong("the connection stayed open (%v), or data came: %q, %v", !j.closed, j.Data, j.Err)
	}
	if d := j.decisions(); len(d) != 1 {
		j.wrong("%d decisions are recorded, want 1: %+v", len(d), d)
	} else {
		j.refusalRecord(&d[0], nil)
	}
}

func (j *judgement) capturedFailed() {
	if !j.closed || j.Data != "" {
		j.wrong("the connection stayed open, or data came: %q", j.Data)
	}
	for _, p := range j.Packets {
		if p.To.String() != Resolver && !slices.Contains(j.Dials, p.To.Addr().String()) {
			j.wrong("a packet was sent: %s", p)
		}
	}
	if d := j.decisions(); len(d) != 1 || d[0].Decision.Action != "allow" {
		j.wrong("want one decision that allows: %+v", d)
	}
	if last := j.last(); last == nil || !slices.Contains(j.Fails, policy.Class(last.Outcome)) {
		j.wrong("the last record does not say %q: %+v", j.Fails, last)
	}
}
