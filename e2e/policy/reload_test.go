package policy

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

const twoHosts = "version: 1\nallow: [allowed.test, other.allowed.test]\n"

// TestReloadCutsOpenTunnel removes a host from the policy while a tunnel to it
// is open.
func TestReloadCutsOpenTunnel(t *testing.T) {
	world.Covers(t, "DN-32")
	d := world.Start(t, twoHosts)
	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	before := d.Digest(t)
	d.Edit(t, strings.Replace(twoHosts, "allowed.test, ", "", 1))
	if !tunnel.EndsWithin(world.Patience) {
		t.Error("the tunnel was not cut")
	}
	d.ExpectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	r := d.CloseRecord(t, tunnel.LocalAddr().String())
	if r.Decision == nil || r.Decision.Action != "deny" || r.Decision.Class != "default-deny" || r.Decision.Policy == before || r.Outcome != "cut" {
		t.Errorf("the close record does not say why: outcome %q, %+v", r.Outcome, r.Decision)
	}
	if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("a new tunnel is answered %d", status)
	}
	if status := d.ConnectStatus(t, "other.allowed.test:443"); status != http.StatusOK {
		t.Errorf("the other host is answered %d", status)
	}
}

// TestReloadKeepsOtherTunnels changes a line that an open tunnel does not
// depend on.
func TestReloadKeepsOtherTunnels(t *testing.T) {
	d := world.Start(t, twoHosts)
	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	before := d.Digest(t)
	d.Edit(t, strings.Replace(twoHosts, ", other.allowed.test", "", 1))
	d.ExpectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	if tunnel.EndsWithin(500 * time.Millisecond) {
		t.Error("a tunnel was cut that the new policy allows")
	}
}

// TestBrokenEditChangesNothing saves policy files that are not right.
func TestBrokenEditChangesNothing(t *testing.T) {
	d := world.Start(t, twoHosts)
	tunnel := d.MustOpenTunnel(t, "allowed.test:443")
	before := d.Digest(t)
	for _, broken := range []string{
		"", "version: 1\nallow: [allowed.test", "version: 1\nalow: [evil.test]\n", "version: 2\nallow: [evil.test]\n",
		"version: 1\nallow: [\"*.*\"]\n", "version: 1\nallow: [evil.test]\ntests: [\"deny https://evil.test/\"]\n",
		"version: 1\nallow: [evil.test]\n---\nversion: 1\n",
	} {
		mark, _ := d.Log.Mark()
		if err := os.WriteFile(d.Config, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		d.Cmd.Process.Signal(syscall.SIGHUP)
		rejected := func() bool {
			records, _ := d.Log.Since(mark)
			for _, r := range records {
				if r.Kind == record.KindPolicy && strings.Contains(r.Note, "rejected") && r.Decision.Policy == before {
					return true
				}
			}
			return false
		}
		if !world.Eventually(world.Settling, rejected) {
			t.Errorf("no record says that %q was rejected", broken)
		}
		if status := d.ConnectStatus(t, "evil.test:443"); status != http.StatusForbidden {
			t.Errorf("after %q, evil.test is answered %d", broken, status)
		}
		if status := d.ConnectStatus(t, "allowed.test:443"); status != http.StatusOK {
			t.Errorf("after %q, allowed.test is answered %d", broken, status)
		}
	}
	if tunnel.EndsWithin(100 * time.Millisecond) {
		t.Error("the open tunnel was cut")
	}
}

// TestKeptConnectionIsDecidedAnew revokes a host between two requests on one
// connection, whose upstream connection may have been kept.
func TestKeptConnectionIsDecidedAnew(t *testing.T) {
	world.Covers(t, "H1-23")
	d := world.Start(t, twoHosts)
	c, err := d.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(world.Patience))
	in := bufio.NewReader(c)
	ask := func() world.Answer {
		fmt.Fprint(c, "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
		a, err := world.ReadAnswer(in, "GET")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(); a.Status != http.StatusOK {
		t.Fatalf("the first request is answered %d", a.Status)
	}
	before := d.Digest(t)
	d.Edit(t, "version: 1\nallow: []\n")
	d.ExpectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	if a := ask(); a.Status != http.StatusForbidden || a.Problem().Class != "default-deny" {
		t.Errorf("the second request is answered %d %q", a.Status, a.Body)
	}
}
