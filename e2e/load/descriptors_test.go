package load

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestFewDescriptors has egressd run where it may have few open files, and one sandbox take
// all the connections that it can. Another is served.
func TestFewDescriptors(t *testing.T) {
	d := world.NewDaemon(t, world.PolicyText(t, "P-auth"))
	d.Run(t, exec.Command("sh", "-c", `ulimit -n 256; exec "$0" serve --config "$1"`, world.Egressd.Path(), d.Config))
	t.Cleanup(func() { d.Stop(t) })
	if said := "enough for 64 connections"; !strings.Contains(d.Output.String(), said) {
		t.Errorf("it does not say %q: %s", said, d.Output.String())
	}
	ci, web := world.Authorization("ci", "open-sesame"), world.Authorization("web", "another-secret")
	began, status := 0, http.StatusOK
	for ; status == http.StatusOK && began < 256; began++ {
		var c *world.Tunnel
		var err error
		if c, status, err = d.OpenTunnel("allowed.test:443", ci); err != nil {
			t.Fatalf("connection %d: %v", began, err)
		}
		t.Cleanup(func() { c.Close() })
	}
	if began != 33 || status != http.StatusTooManyRequests {
		t.Errorf("connection %d came with status %d, want 32 that stand", began, status)
	}
	for range 8 {
		c, status, err := d.OpenTunnel("allowed.test:443", web)
		if err != nil || status != http.StatusOK {
			t.Fatalf("another sandbox: status %d, %v", status, err)
		}
		defer c.Close()
	}
}
