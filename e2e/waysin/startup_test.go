package waysin

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
)

// TestBadConfigurationDoesNotStart runs egressd with files that are not right:
// it says why and what to do, and listens nowhere.
func TestBadConfigurationDoesNotStart(t *testing.T) {
	world.Covers(t, "SP-09")
	for name, policy := range map[string]string{
		"an unknown key":         "version: 1\nalow: [allowed.test]\n",
		"a bad prefix":           "version: 1\nallow: [\"10.0.0.0/33\"]\n",
		"host bits in a prefix":  "version: 1\nallow: [\"10.0.0.5/8\"]\n",
		"no version":             "allow: [allowed.test]\n",
		"a second document":      "version: 1\nallow: [allowed.test]\n---\nversion: 1\n",
		"a red test":             "version: 1\nallow: [evil.test]\ntests: [\"deny https://evil.test/\"]\n",
		"a missing token":        "version: 1\nsandboxes: [{name: ci, token_file: nowhere}]\n",
		"a key that is not YAML": "version: 1\n\tallow: x\n",
	} {
		t.Run(name, func(t *testing.T) {
			code, said := world.NewDaemon(t, policy).Fails(t)
			if code == 0 || !strings.Contains(said, "egressd: error: ") || !strings.Contains(said, "egressd: hint: ") {
				t.Errorf("exit %d, said %q", code, said)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		d := world.NewDaemon(t, "version: 1\n")
		os.Remove(d.Config)
		if code, said := d.Fails(t); code == 0 || !strings.Contains(said, "egressd: hint: ") {
			t.Errorf("exit %d, said %q", code, said)
		}
	})
	t.Run("a listener that is taken", func(t *testing.T) {
		d := world.NewDaemon(t, world.PolicyText(t, "P0"))
		taken, err := d.World.Gateway.Listen("tcp", fmt.Sprintf("[%s]:%d", lab.GatewayIPv6, d.Port))
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		if code, said := d.Fails(t); code == 0 || !strings.Contains(said, "egressd: hint: ") {
			t.Errorf("exit %d, said %q", code, said)
		}
	})
}

// TestListensWhereItSays compares the sockets that wait for connections and
// datagrams with the configuration.
func TestListensWhereItSays(t *testing.T) {
	world.Covers(t, "SP-04", "SK-09")
	d := world.Start(t, world.PolicyText(t, "P0"))
	d.ExpectBody(t, d.HTTPClient(nil), "GET", "http://allowed.test/", nil, "origin")
	if got := listening(t, d); !slices.Equal(got, []int{world.ProxyPort, world.ProxyPort}) {
		t.Errorf("egressd listens on ports %d", got)
	}
	c, err := d.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write([]byte("\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00")) // UDP ASSOCIATE
	c.Read(make([]byte, 12))
	if got := listening(t, d); !slices.Equal(got, []int{world.ProxyPort, world.ProxyPort}) {
		t.Errorf("after UDP ASSOCIATE, egressd listens on ports %d", got)
	}
}

// listening returns the ports at which the process itself listens: those of
// the gateway that are not the lab's.
func listening(t *testing.T, d *world.Daemon) (ports []int) {
	t.Helper()
	own := ownSockets(t, d)
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", d.Cmd.Process.Pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			const listen, unconnected = "0A", "07"
			waits := len(f) > 9 && (f[3] == listen || strings.HasPrefix(table, "udp") && f[3] == unconnected)
			if waits && own["socket:["+f[9]+"]"] {
				_, port, _ := strings.Cut(f[1], ":")
				n, _ := strconv.ParseInt(port, 16, 32)
				ports = append(ports, int(n))
			}
		}
	}
	return ports
}

func ownSockets(t *testing.T, d *world.Daemon) map[string]bool {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", d.Cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, e := range entries {
		if target, err := os.Readlink(dir + e.Name()); err == nil {
			own[target] = true
		}
	}
	return own
}

// TestBinaryResolvesNothingByItself checks that the C library's resolver,
// which takes 127.1 for an address, is not in the binary.
func TestBinaryResolvesNothingByItself(t *testing.T) {
	world.Covers(t, "SP-15")
	info, err := buildinfo.ReadFile(world.Egressd.Path())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" && s.Value != "0" {
			t.Errorf("egressd was built with CGO_ENABLED=%s", s.Value)
		}
	}
	out, err := exec.Command(world.Egressd.Path(), "version").CombinedOutput()
	if err != nil || len(out) == 0 {
		t.Errorf("egressd version: %q, %v", out, err)
	}
}
