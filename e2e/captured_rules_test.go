package e2e

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestRulesThatGoAreMissed has an operator flush the rules while egressd runs.
func TestRulesThatGoAreMissed(t *testing.T) {
	covers(t, "KC-12")
	w := theWorld(t)
	w.capture(t, wayRedirect)
	d := start(t, withCapture(policyText(t, "P-any"), wayRedirect))
	const ask = "GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"
	if got, err := says(w.Sandbox, allowedIPv4+":80", ask, patience); !strings.Contains(got, "origin") {
		t.Fatalf("got %q, %v", got, err)
	}
	rules, err := w.Gateway.Tool("nft", "list", "table", "inet", "egressd")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gateway.Load("flush ruleset\n"); err != nil {
		t.Fatal(err)
	}
	mark := w.mark(t)
	d.notes(t, "no rule leads to the transparent listener 10.99.0.2:3129")
	const moment = 300 * time.Millisecond
	if c, err := w.dialFor(moment, allowedIPv4+":80"); err == nil {
		c.Close()
		t.Error("without rules there is a connection")
	}
	w.silent(t, mark)
	if err := w.Gateway.Load(rules); err != nil {
		t.Fatal(err)
	}
	d.notes(t, "rules lead to the transparent listener 10.99.0.2:3129")
	if got, err := says(w.Sandbox, allowedIPv4+":80", ask, patience); !strings.Contains(got, "origin") {
		t.Errorf("with rules again: got %q, %v", got, err)
	}
}

// dialFor tries to connect from the sandbox.
func (w *world) dialFor(d time.Duration, to string) (c net.Conn, err error) {
	dialer := net.Dialer{Timeout: d}
	err = w.Sandbox.Do(func() error {
		c, err = dialer.Dial("tcp", to)
		return err
	})
	return c, err
}

// notes waits until egressd has said something, and has it in the log.
func (d *daemon) notes(t *testing.T, text string) {
	t.Helper()
	const patient = 30 * time.Second // it looks every two
	logged := func() bool {
		records, err := d.log.since(0)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(records, func(r record.Record) bool {
			return r.Kind == record.KindPolicy && strings.Contains(r.Note, text)
		})
	}
	if !eventually(patient, func() bool { return strings.Contains(d.talk.String(), text) && logged() }) {
		t.Fatalf("egressd did not say and record %q:\n%s", text, d.talk.String())
	}
}

// TestTheRouteOfTProxyIsPartOfIt takes away what keeps taken packets here.
func TestTheRouteOfTProxyIsPartOfIt(t *testing.T) {
	w := theWorld(t)
	w.capture(t, wayTProxy)
	d := start(t, withCapture(policyText(t, "P0"), wayTProxy))
	if err := w.Gateway.IP("rule del fwmark 1 lookup 3129"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Gateway.IP("rule add fwmark 1 lookup 3129"); err != nil {
			t.Error(err)
		}
	}()
	d.notes(t, "no rule leads to the transparent listener tproxy:127.0.0.1:3129")
	if strings.Contains(d.talk.String(), "listener tproxy:[::1]:3129") {
		t.Errorf("of IPv6, which is as it was, it said:\n%s", d.talk.String())
	}
}

// TestDoctorLooksAtTheRules asks it as root, with and without rules, and as somebody
// who may not look.
func TestDoctorLooksAtTheRules(t *testing.T) {
	w := theWorld(t)
	d := newDaemon(t, withCapture(policyText(t, "P0"), wayRedirect))
	doctor := func(uid uint32) string {
		t.Helper()
		cmd := exec.Command(Egressd.Path(), "doctor", "--config", d.config)
		cmd.Env = append(os.Environ(), "HOME="+d.dir, "XDG_STATE_HOME="+d.dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: true}}
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		w.Gateway.Run(cmd) // what it says counts
		return out.String()
	}
	if got := doctor(0); !strings.Contains(got, "✗ listen.transparent: no rule of nftables leads to 10.99.0.2:3129") {
		t.Errorf("without rules:\n%s", got)
	}
	w.load(t, w.Gateway, manualRules(t, "nft", "**With NAT**"))
	if got := doctor(0); !strings.Contains(got, "✓ listen.transparent: a rule leads to 10.99.0.2:3129") || !strings.Contains(got, "✓ listen.transparent: a rule leads to [fd99::2]:3129") || strings.Contains(got, "forwarding") {
		t.Errorf("with rules:\n%s", got)
	}
	if err := d.giveTo(1338); err != nil {
		t.Fatal(err)
	}
	if got := doctor(1338); !strings.Contains(got, "✓ listen.transparent: whether rules lead there is for root to see") {
		t.Errorf("as somebody else:\n%s", got)
	}
}
