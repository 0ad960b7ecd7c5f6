package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
)

// The ways in of captured connections differ in how the kernel tells where they were
// going.
const (
	wayRedirect = "redirect"
	wayTProxy   = "tproxy"
)

// elsewhere is where a program connects that claims a name: the name's host is
// another one, and nothing may be sent here. It is another address for each vector,
// since denials that repeat are summed.
func (v *vector) elsewhere() string {
	h := fnv.New32a()
	io.WriteString(h, v.ID+v.Says)
	sum := h.Sum32()
	return netip.AddrFrom4([4]byte{151, 101, byte(sum >> 8), byte(sum)}).String()
}

const capturePort = 3129

// captureEntries are listen.transparent of the manual for a way in.
func captureEntries(way string) string {
	if way == wayTProxy {
		return fmt.Sprintf(`["tproxy:127.0.0.1:%[1]d", "tproxy:[::1]:%[1]d"]`, capturePort)
	}
	return fmt.Sprintf(`["%[1]s:%[3]d", "[%[2]s]:%[3]d"]`, lab.GatewayIPv4, lab.GatewayIPv6, capturePort)
}

// withCapture is a policy with all listeners, those for captured connections too.
func withCapture(text, way string) string {
	return text + fmt.Sprintf("listen: {proxy: [\"%[1]s:%[2]d\", \"[%[3]s]:%[2]d\"], dns: [\"%[1]s:%[4]d\", \"[%[3]s]:%[4]d\"], transparent: %[5]s}\n",
		lab.GatewayIPv4, proxyPort, lab.GatewayIPv6, namesPort, captureEntries(way))
}

// manualRules returns the code block of the manual that follows a text.
func manualRules(t *testing.T, kind, after string) string {
	t.Helper()
	text, err := os.ReadFile(Source("docs", "manual.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), after)
	_, rest, open := strings.Cut(rest, "```"+kind+"\n")
	block, _, closed := strings.Cut(rest, "```")
	if !found || !open || !closed {
		t.Fatalf("the manual has no block %s after %q", kind, after)
	}
	return block
}

// capture has the gateway capture what the sandbox sends, by the rules of the
// manual, until the end of the test.
func (w *world) capture(t *testing.T, way string) {
	t.Helper()
	rules := manualRules(t, "nft", "**With NAT**")
	if way == wayTProxy {
		rules = manualRules(t, "nft", "**With tproxy**")
		w.route(t)
	}
	w.load(t, w.Gateway, rules)
	w.reachOut(t)
}

// load loads rules of the table egressd until the end of the test.
func (w *world) load(t *testing.T, n *lab.Net, rules string) {
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
func (w *world) reachOut(t *testing.T) {
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

// route adds the routes that tproxy needs, as the manual has them.
func (w *world) route(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(manualRules(t, "sh", "**With tproxy**")) {
		line, isIP := strings.CutPrefix(strings.TrimSpace(line), "ip ")
		if !isIP {
			t.Fatalf("the manual says %q", line)
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

func isCaptured(way string) bool { return way == wayRedirect || way == wayTProxy }

// capturedTo is where a program connects for a destination of a vector, where its
// connection could be captured at all: the address itself, or elsewhere for a name.
func (v *vector) capturedTo(to string) (at netip.AddrPort, name string, ok bool) {
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return at, "", false
	}
	if at, err := netip.ParseAddrPort(to); err == nil {
		return at, "", at.Port() > 0 && at.Addr().Zone() == "" && leavesSandbox(at.Addr())
	}
	name, err = policy.ParseName(host)
	at, errPort := netip.ParseAddrPort(v.elsewhere() + ":" + port)
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

// expressible reports whether a vector's case can be made by a captured connection.
func (v *vector) expressible(to string) bool {
	_, _, ok := v.capturedTo(to)
	return ok && v.Ways == nil && v.Inside == "" && v.Policy != "P-auth"
}

// TestConformanceCaptured runs the vectors through connections that the rules of
// the manual have captured.
func TestConformanceCaptured(t *testing.T) {
	covers(t, "KC-01", "KC-03", "KC-06", "TL-34")
	all := vectors(t)
	for _, way := range []string{wayRedirect, wayTProxy} {
		t.Run(way, func(t *testing.T) {
			theWorld(t).capture(t, way)
			for _, name := range policies() {
				t.Run(name, func(t *testing.T) { capturedConforms(t, way, name, all) })
			}
		})
	}
}

func capturedConforms(t *testing.T, way, name string, all []vector) {
	tried := 0
	var d *daemon
	for i := range all {
		v := &all[i]
		for _, to := range v.To {
			if v.Policy != name || !v.expressible(to) {
				continue
			}
			if d == nil {
				d = start(t, withCapture(policyText(t, name), way))
			}
			tried++
			d.tryCaptured(t, v, way, to)
		}
	}
	if d == nil {
		return
	}
	t.Logf("%d cases", tried)
	d.healthy(t, d.descriptors())
}

// tryCaptured is try, with what is expected of captured connections.
func (d *daemon) tryCaptured(t *testing.T, v *vector, way, to string) {
	t.Helper()
	own := *v
	own.Eager = false // there is nothing to be in one piece with
	if v.Captured != nil {
		own.Expect, own.Or = *v.Captured, nil
		if own.Expect.Host == "" && own.Expect.Deny != nil {
			own.Expect.Host = v.elsewhere()
		}
	} else if v.Expect.Cut != nil || v.Expect.Ended { // no name that counts was shown
		own.Expect, own.Or = expectation{Deny: []policy.Class{policy.DefaultDeny}, Host: v.elsewhere()}, nil
	}
	d.try(t, &own, way, to)
}

// nextPort is the source port of the next captured connection. The kernel would
// take one twice for two destinations, which are one to NAT, so that it would be
// another in the record.
var nextPort atomic.Int32

// dialCaptured connects from the sandbox to where a captured connection goes.
func (d *daemon) dialCaptured(v *vector, to string) (c net.Conn, err error) {
	at, _, _ := v.capturedTo(to)
	dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: 10000 + int(nextPort.Add(1))%22000}}
	err = d.world.Sandbox.Do(func() error {
		c, err = dialer.Dial("tcp", at.String())
		return err
	})
	return c, err
}

// captured carries out a vector as a program that knows of no proxy.
func (c *client) captured(t *testing.T, v *vector, to string) error {
	at, name, _ := v.capturedTo(to)
	c.opened = true
	host := name
	if host == "" {
		host = at.Addr().Unmap().String()
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
	inner := tls.Client(c, &tls.Config{ServerName: host, RootCAs: roots.origin.ca.pool()})
	if err := c.proveOver(inner, to); err != nil {
		c.closed = gone(err)
		return err
	}
	return nil
}

// getCaptured asks in clear, and answers as wayHTTP does.
func (c *client) getCaptured(host string) error {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	c.opened = false
	if err := c.send([]byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")); err != nil {
		return err
	}
	if err := c.readHTTP("GET"); err != nil {
		return err
	}
	if c.answers[0].status != 200 {
		return c.readEnd()
	}
	c.data = c.answers[0].body
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
		if j.data == "" || refusedBy(j.data) || j.err != nil {
			j.wrong("no data came from the far host: %q, %v, %s", j.data, j.err, j.explain())
		}
		j.reached(j.Allow)
		j.allowRecords()
	case j.Cut != nil || j.Ended:
		j.cut()
	case len(j.answers) > 0 && j.Fails != nil:
		j.failed()
	case len(j.answers) > 0:
		j.denied()
	case j.Fails != nil:
		j.capturedFailed()
	default:
		j.capturedDenied()
	}
}

func (j *judgement) capturedDenied() {
	j.silence()
	if !j.closed || j.data != "" && !refusedBy(j.data) {
		j.wrong("the connection stayed open (%v), or data came: %q, %v", !j.closed, j.data, j.err)
	}
	if d := j.decisions(); len(d) != 1 {
		j.wrong("%d decisions are recorded, want 1: %+v", len(d), d)
	} else {
		j.refusalRecord(&d[0], nil)
	}
}

func (j *judgement) capturedFailed() {
	if !j.closed || j.data != "" {
		j.wrong("the connection stayed open, or data came: %q", j.data)
	}
	for _, p := range j.packets {
		if p.To.String() != resolver && !slices.Contains(j.Dials, p.To.Addr().String()) {
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

// readLine reads a line of what comes, within the connection's deadline.
func readLine(c net.Conn) string {
	c.SetReadDeadline(time.Now().Add(patience))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return line
}
