package waysin

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/record"
)

// TestRulesThatGoAreMissed has an operator flush the rules while egressd runs.
func TestRulesThatGoAreMissed(t *testing.T) {
	world.Covers(t, "KC-12")
	w := world.Open(t)
	w.Capture(t, world.WayRedirect)
	d := world.Start(t, world.WithCapture(world.PolicyText(t, "P-any"), world.WayRedirect))
	const ask = "GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"
	if got, err := world.TalkTo(w.Sandbox, world.AllowedIPv4+":80", ask, world.Patience); !strings.Contains(got, "origin") {
		t.Fatalf("got %q, %v", got, err)
	}
	rules, err := w.Gateway.Tool("nft", "list", "table", "inet", "egressd")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gateway.Load("flush ruleset\n"); err != nil {
		t.Fatal(err)
	}
	mark := w.Mark(t)
	notes(t, d, "no rule leads to the transparent listener 10.99.0.2:3129")
	const moment = 300 * time.Millisecond
	if c, err := dialFor(w, moment, world.AllowedIPv4+":80"); err == nil {
		c.Close()
		t.Error("without rules there is a connection")
	}
	w.Silent(t, mark)
	if err := w.Gateway.Load(rules); err != nil {
		t.Fatal(err)
	}
	notes(t, d, "rules lead to the transparent listener 10.99.0.2:3129")
	if got, err := world.TalkTo(w.Sandbox, world.AllowedIPv4+":80", ask, world.Patience); !strings.Contains(got, "origin") {
		t.Errorf("with rules again: got %q, %v", got, err)
	}
}

// dialFor tries to connect from the sandbox.
func dialFor(w *world.World, d time.Duration, to string) (c net.Conn, err error) {
	dialer := net.Dialer{Timeout: d}
	err = w.Sandbox.Do(func() error {
		c, err = dialer.Dial("tcp", to)
		return err
	})
	return c, err
}

// notes waits until egressd has said something, and has it in the log.
func notes(t *testing.T, d *world.Daemon, text string) {
	t.Helper()
	const patient = 30 * time.Second // it looks every two
	logged := func() bool {
		records, err := d.Log.Since(0)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(records, func(r record.Record) bool {
			return r.Kind == record.KindPolicy && strings.Contains(r.Note, text)
		})
	}
	if !world.Eventually(patient, func() bool { return strings.Contains(d.Output.String(), text) && logged() }) {
		t.Fatalf("egressd did not say and record %q:\n%s", text, d.Output.String())
	}
}

// TestTheRouteOfTProxyIsPartOfIt takes away what keeps taken packets here.
func TestTheRouteOfTProxyIsPartOfIt(t *testing.T) {
	w := world.Open(t)
	w.Capture(t, world.WayTProxy)
	d := world.Start(t, world.WithCapture(world.PolicyText(t, "P0"), world.WayTProxy))
	if err := w.Gateway.IP("rule del fwmark 1 lookup 3129"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Gateway.IP("rule add fwmark 1 lookup 3129"); err != nil {
			t.Error(err)
		}
	}()
	notes(t, d, "no rule leads to the transparent listener tproxy:127.0.0.1:3129")
	if strings.Contains(d.Output.String(), "listener tproxy:[::1]:3129") {
		t.Errorf("of IPv6, which is as it was, it said:\n%s", d.Output.String())
	}
}

// TestDoctorLooksAtTheRules asks it as root, with and without rules, and as somebody
// who may not look.
func TestDoctorLooksAtTheRules(t *testing.T) {
	w := world.Open(t)
	d := world.NewDaemon(t, world.WithCapture(world.PolicyText(t, "P0"), world.WayRedirect))
	const ipv4, ipv6 = "10.99.0.2:3129", "[fd99::2]:3129"
	about := func(all []doctor.Finding, address string, fault bool) bool {
		return slices.ContainsFunc(all, func(f doctor.Finding) bool { return strings.Contains(f.Says, address) && (f.Fix != "") == fault })
	}
	if got := d.Findings(t, 0, "listen.transparent"); !about(got, ipv4, true) {
		t.Errorf("without rules: %q", got)
	}
	w.LoadRules(t, w.Gateway, testfiles.Block(t, "how-to/gateway.md", "nft", "**With NAT**"))
	if got := d.Findings(t, 0, "listen.transparent"); len(got) != 2 || len(d.Findings(t, 0, "forwarding")) > 0 || !about(got, ipv4, false) || !about(got, ipv6, false) {
		t.Errorf("with rules: %q", got)
	}
	if err := d.Chown(1338); err != nil {
		t.Fatal(err)
	}
	if got := d.Findings(t, 1338, "listen.transparent"); len(got) != 1 || got[0].Fix != "" {
		t.Errorf("as somebody else: %q", got)
	}
}
