package load

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// TestTheLocalPortsAreShared has one sandbox connect and leave until it may not any more,
// on a gateway with few ports. Another still reaches the same place.
func TestTheLocalPortsAreShared(t *testing.T) {
	const setting = "/proc/sys/net/ipv4/ip_local_port_range"
	var before []byte
	err := world.Open(t).Gateway.Do(func() (err error) {
		if before, err = os.ReadFile(setting); err != nil {
			return err
		}
		return os.WriteFile(setting, []byte("40000 40099"), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.Open(t).Gateway.Do(func() error { return os.WriteFile(setting, before, 0) }); err != nil {
			t.Error(err)
		}
	})
	d := world.Start(t, world.PolicyText(t, "P-auth"))
	ci, web := world.Authorization("ci", "open-sesame"), world.Authorization("web", "another-secret")
	began, status := 0, http.StatusOK
	for ; status == http.StatusOK && began < 100; began++ {
		var c *world.Tunnel
		if c, status, err = d.OpenTunnel("allowed.test:443", ci); err != nil {
			t.Fatalf("connection %d: %v", began, err)
		}
		c.Close()
	}
	if status != http.StatusTooManyRequests || began < 22 {
		t.Errorf("%d connections were begun, and then came status %d", began, status)
	}
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	noted := slices.ContainsFunc(records, func(r record.Record) bool {
		return r.Kind == record.KindClose && r.Outcome == "too-many-flows" && strings.Contains(r.Note, "net.ipv4.ip_local_port_range")
	})
	if !noted {
		t.Error("no record names the setting that is the limit")
	}
	if _, status, err := d.OpenTunnel("allowed.test:443", web); err != nil || status != http.StatusOK {
		t.Errorf("another sandbox: status %d, %v", status, err)
	}
}
