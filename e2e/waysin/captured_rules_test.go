package waysin

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
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
	doctor := func(uid uint32) string {
		t.Helper()
		cmd := exec.Command(world.Egressd.Path(), "doctor", "--config", d.Config)
		cmd.Env = append(os.Environ(), "HOME="+d.Dir, "XDG_STATE_HOME="+d.Dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true}}
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		w.Gateway.Run(cmd) // what it says counts
		return out.String()
	}
	if got := doctor(0); !strings.Contains(got, "✗ listen.transparent: no rule of nftables leads to 10.99.0.2:3129") {
		t.Errorf("without rules:\n%s", got)
	}
	w.LoadRules(t, w.Gateway, world.ManualRules(t, "nft", "**With NAT**"))
	if got := doctor(0); !strings.Contains(got, "✓ listen.transparent: a rule leads to 10.99.0.2:3129") || !strings.Contains(got, "✓ listen.transparent: a rule leads to [fd99::2]:3129") || strings.Contains(got, "forwarding") {
		t.Errorf("with rules:\n%s", got)
	}
	if err := d.Chown(1338); err != nil {
		t.Fatal(err)
	}
	if got := doctor(1338); !strings.Contains(got, "✓ listen.transparent: whether rules lead there is for root to see") {
		t.Errorf("as somebody else:\n%s", got)
	}
}
