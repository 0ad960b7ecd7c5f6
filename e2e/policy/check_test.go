package policy

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

const checkedPolicy = `version: 1
allow:
  - allowed.test
  - "*.allowed.test"
  - example.test:8443
  - 10.0.0.5:8443
  - 11.0.0.0/24:443
  - "[2606:2800::/32]:443"
deny:
  - secret.allowed.test
  - 11.0.0.7:443
`

// TestCheckAgreesWithServe asks egressd check, which uses no network, and the
// daemon about the same destinations.
func TestCheckAgreesWithServe(t *testing.T) {
	d := world.Start(t, checkedPolicy)
	allowed, denied := 0, 0
	for _, to := range []string{
		"allowed.test:443", "ALLOWED.test.:443", "a.allowed.test:443", "a.b.allowed.test:80", "secret.allowed.test:443",
		"Secret.Allowed.Test:80", "allowed.test:22", "evil.test:443", "evilallowed.test:443", "example.test:8443", "example.test:443",
		"10.0.0.5:8443", "10.0.0.5:443", "10.0.0.6:8443", "[::ffff:10.0.0.5]:8443", "11.0.0.1:443", "11.0.0.7:443", "11.0.1.1:443",
		"[2606:2800:220:1::1]:443", "[2607::1]:443", "127.0.0.1:443", "169.254.169.254:80", "localhost:80", "93.184.216.34:443",
	} {
		want := map[int]int{0: 200, 1: 403}[check(t, d, to)]
		c, status, err := d.OpenTunnel(to, "")
		if err != nil || status != want {
			t.Errorf("%s: serve answers %d (%v), check says %d", to, status, err, want)
		}
		switch status {
		case 200:
			allowed++
			c.Close()
		case 403:
			denied++
		}
	}
	if allowed < 8 || denied < 8 {
		t.Errorf("%d allowed and %d denied show little", allowed, denied)
	}
}

// check returns the exit code of egressd check.
func check(t *testing.T, d *world.Daemon, to string) int {
	t.Helper()
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(world.Egressd.Path(), "check", "--config", d.Config, to)
	var exit *exec.ExitError
	if err := d.World.Gateway.Run(cmd); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	packets, err := d.World.Wire.Since(wire)
	if err != nil || len(packets) > 0 {
		t.Errorf("check %s sent %v (%v)", to, packets, err)
	}
	return cmd.ProcessState.ExitCode()
}
