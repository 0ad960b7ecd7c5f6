package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

const twoHosts = "version: 1\nallow: [allowed.test, other.allowed.test]\n"

// TestReloadCutsOpenTunnel removes a host from the policy while a tunnel to it
// is open.
func TestReloadCutsOpenTunnel(t *testing.T) {
	covers(t, "DN-32")
	d := start(t, twoHosts)
	tunnel := d.mustOpen(t, "allowed.test:443")
	before := d.digest(t)
	d.edit(t, strings.Replace(twoHosts, "allowed.test, ", "", 1))
	if !tunnel.endsWithin(patience) {
		t.Error("the tunnel was not cut")
	}
	d.expectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	r := d.closeRecord(t, tunnel.LocalAddr().String())
	if r.Decision == nil || r.Decision.Action != "deny" || r.Decision.Class != "default-deny" || r.Decision.Policy == before || r.Outcome != "cut" {
		t.Errorf("the close record does not say why: outcome %q, %+v", r.Outcome, r.Decision)
	}
	if status := d.status(t, "allowed.test:443"); status != http.StatusForbidden {
		t.Errorf("a new tunnel is answered %d", status)
	}
	if status := d.status(t, "other.allowed.test:443"); status != http.StatusOK {
		t.Errorf("the other host is answered %d", status)
	}
}

// TestReloadKeepsOtherTunnels changes a line that an open tunnel does not
// depend on.
func TestReloadKeepsOtherTunnels(t *testing.T) {
	d := start(t, twoHosts)
	tunnel := d.mustOpen(t, "allowed.test:443")
	before := d.digest(t)
	d.edit(t, strings.Replace(twoHosts, ", other.allowed.test", "", 1))
	d.expectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	if tunnel.endsWithin(500 * time.Millisecond) {
		t.Error("a tunnel was cut that the new policy allows")
	}
}

// TestBrokenEditChangesNothing saves policy files that are not right.
func TestBrokenEditChangesNothing(t *testing.T) {
	d := start(t, twoHosts)
	tunnel := d.mustOpen(t, "allowed.test:443")
	before := d.digest(t)
	for _, broken := range []string{
		"", "version: 1\nallow: [allowed.test", "version: 1\nalow: [evil.test]\n", "version: 2\nallow: [evil.test]\n",
		"version: 1\nallow: [\"*.*\"]\n", "version: 1\nallow: [evil.test]\ntests: [\"deny https://evil.test/\"]\n",
		"version: 1\nallow: [evil.test]\n---\nversion: 1\n",
	} {
		mark, _ := d.log.mark()
		if err := os.WriteFile(d.config, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		d.cmd.Process.Signal(syscall.SIGHUP)
		rejected := func() bool {
			records, _ := d.log.since(mark)
			for _, r := range records {
				if r.Kind == record.KindPolicy && strings.Contains(r.Note, "rejected") && r.Decision.Policy == before {
					return true
				}
			}
			return false
		}
		if !eventually(settling, rejected) {
			t.Errorf("no record says that %q was rejected", broken)
		}
		if status := d.status(t, "evil.test:443"); status != http.StatusForbidden {
			t.Errorf("after %q, evil.test is answered %d", broken, status)
		}
		if status := d.status(t, "allowed.test:443"); status != http.StatusOK {
			t.Errorf("after %q, allowed.test is answered %d", broken, status)
		}
	}
	if tunnel.endsWithin(100 * time.Millisecond) {
		t.Error("the open tunnel was cut")
	}
}

// TestKeptConnectionIsDecidedAnew revokes a host between two requests on one
// connection, whose upstream connection may have been kept.
func TestKeptConnectionIsDecidedAnew(t *testing.T) {
	covers(t, "H1-23")
	d := start(t, twoHosts)
	c, err := d.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	in := bufio.NewReader(c)
	ask := func() answer {
		fmt.Fprint(c, "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
		a, err := readAnswer(in, "GET")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(); a.status != http.StatusOK {
		t.Fatalf("the first request is answered %d", a.status)
	}
	before := d.digest(t)
	d.edit(t, "version: 1\nallow: []\n")
	d.expectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before })
	if a := ask(); a.status != http.StatusForbidden || a.problem().Class != "default-deny" {
		t.Errorf("the second request is answered %d %q", a.status, a.body)
	}
}

// edit writes a new policy and has egressd read it.
func (d *daemon) edit(t *testing.T, policy string) {
	t.Helper()
	d.writeConfig(t, policy)
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// expectPolicy waits for a record that puts a policy in force.
func (d *daemon) expectPolicy(t *testing.T, ok func(record.Record) bool) {
	t.Helper()
	found := func() bool {
		records, _ := d.log.since(0)
		for _, r := range records {
			if r.Kind == record.KindPolicy && ok(r) {
				return true
			}
		}
		return false
	}
	if !eventually(settling, found) {
		t.Errorf("no record says that the policy is in force; egressd said:\n%s", d.talk.String())
	}
}

// closeRecord waits for the record that ends a client's flow.
func (d *daemon) closeRecord(t *testing.T, src string) (last record.Record) {
	t.Helper()
	closed := func() bool {
		records, _ := d.log.of(src, 0)
		if len(records) > 0 {
			last = records[len(records)-1]
		}
		return last.Kind == record.KindClose
	}
	if !eventually(settling, closed) {
		t.Errorf("no record ends the flow of %s: %+v", src, last)
	}
	return last
}
