package waysin

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/record"
	"github.com/miekg/dns"
)

// opening is a recorded hello as a program would send it.
func opening(t *testing.T, hello string) string {
	t.Helper()
	b, err := os.ReadFile(world.Source("testdata", "conformance", "clienthello", hello))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eachCapture runs a test once with each kind of capture, and its rules.
func eachCapture(t *testing.T, policy string, test func(t *testing.T, d *world.Daemon)) {
	for _, way := range []string{world.WayRedirect, world.WayTProxy} {
		t.Run(way, func(t *testing.T) {
			world.Open(t).Capture(t, way)
			test(t, world.Start(t, world.WithCapture(policy, way)))
		})
	}
}

// refusals are the records since a mark that deny a host.
func refusals(t *testing.T, d *world.Daemon, mark int, host string) (found []record.Record) {
	t.Helper()
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Decision != nil && r.Decision.Action == "deny" && r.Dst != nil && r.Dst.Host == host {
			found = append(found, r)
		}
	}
	return found
}

// TestCapturedAddressesArePrivate connects to private addresses with the server name
// and the Host of an allowed one.
func TestCapturedAddressesArePrivate(t *testing.T) {
	world.Covers(t, "TL-34")
	eachCapture(t, world.PolicyText(t, "P0"), func(t *testing.T, d *world.Daemon) {
		for _, to := range []string{"10.0.0.5", "169.254.169.254", "fd12::5", "10.97.0.1"} {
			mark := d.World.Mark(t)
			got, _ := world.TalkTo(d.World.Sandbox, net.JoinHostPort(to, "80"), "GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n", world.Patience)
			if !strings.Contains(got, "origin 93.184.216.34:80") && !strings.Contains(got, "origin [2606:2800:220:1::1]:80") {
				t.Errorf("%s: got %q", to, got)
			}
			got, err := world.TalkTo(d.World.Sandbox, net.JoinHostPort(to, "443"), opening(t, "base-evil.bin"), world.Patience)
			if err != nil || !world.RefusedBy(got) {
				t.Errorf("%s: got %q, %v", to, got, err)
			}
			d.World.Silent(t, mark, "9.9.9.53", world.AllowedIPv4, world.AllowedIPv6)
		}
	})
}

// TestMailIsRefusedAtOnce tries the ports of protocols that begin in clear. Who waits
// for a hello would wait longer than the client.
func TestMailIsRefusedAtOnce(t *testing.T) {
	world.Covers(t, "TL-32")
	eachCapture(t, world.PolicyText(t, "P0")+"limits: {hello_timeout: 60s}\n", func(t *testing.T, d *world.Daemon) {
		for port, greeting := range map[string]string{"25": "554 ", "587": "554 ", "143": "* BYE ", "110": "-ERR ", "5222": "", "21": "421 "} {
			mark := d.World.Mark(t)
			written, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			got, err := world.TalkTo(d.World.Sandbox, net.JoinHostPort(world.AllowedIPv4, port), "", world.Patience)
			if !strings.HasPrefix(got, greeting) || greeting == "" && got != "" || err != nil && !world.Gone(err) {
				t.Errorf("port %s: got %q, %v", port, got, err)
			}
			if found := refusals(t, d, written, world.AllowedIPv4); len(found) != 1 || found[0].Decision.Class != "default-deny" || fmt.Sprint(found[0].Dst.Port) != port {
				t.Errorf("port %s: recorded %+v", port, found)
			}
			d.World.Silent(t, mark)
		}
	})
}

// TestTheListenerIsNoWayOut connects to the listener itself, by each address that
// the host has, where no rule keeps the sandbox from it, and says an allowed name.
func TestTheListenerIsNoWayOut(t *testing.T) {
	w := world.Open(t)
	hello := opening(t, "base-allowed.bin")
	for _, row := range []struct{ says, listen string }{
		{"NAT", `["0.0.0.0:3129", "[::]:3129"]`},
		{"tproxy", `["tproxy:0.0.0.0:3129", "tproxy:[::]:3129"]`},
		{"NAT, at one address", fmt.Sprintf(`["%s:3129", "[%s]:3129"]`, lab.GatewayIPv4, lab.GatewayIPv6)},
	} {
		t.Run(row.says, func(t *testing.T) {
			d := world.Start(t, "version: 1\nunsafe_allow: [\"10.99.0.2:*\"]\ndefault: allow\n"+fmt.Sprintf("listen: {open_to_network: true, proxy: [\"%[1]s:%[2]d\", \"[%[3]s]:%[2]d\"], transparent: %[4]s}\n", lab.GatewayIPv4, world.ProxyPort, lab.GatewayIPv6, row.listen))
			if row.says == "NAT" { // conntrack has to be in use for there to be an answer at all
				w.LoadRules(t, w.Gateway, "table inet egressd { chain c { type nat hook prerouting priority dstnat; tcp dport 9 redirect to :3129; }; }\n")
			}
			for _, to := range []string{lab.GatewayIPv4, lab.GatewayIPv6} {
				mark := w.Mark(t)
				written, err := d.Log.Mark()
				if err != nil {
					t.Fatal(err)
				}
				if got, err := world.TalkTo(w.Sandbox, net.JoinHostPort(to, "3129"), hello, world.Patience); got != "" || err == nil || os.IsTimeout(err) {
					t.Errorf("%s: got %q, %v", to, got, err)
				}
				records, err := d.Log.Since(written)
				if err != nil {
					t.Fatal(err)
				}
				records = slices.DeleteFunc(records, func(r record.Record) bool { return r.Kind == record.KindPolicy }) // of rules that it misses
				if len(records) != 1 || records[0].Decision == nil || records[0].Decision.Class != "address-denied" || records[0].Via != "transparent" {
					t.Errorf("%s: recorded %+v", to, records)
				}
				w.Silent(t, mark)
			}
		})
	}
}

// TestAClaimDoesNotCountForTheHostItself captures a connection to a service of the
// gateway and claims an allowed name there.
func TestAClaimDoesNotCountForTheHostItself(t *testing.T) {
	w := world.Open(t)
	w.LoadRules(t, w.Gateway, "table inet egressd { chain c { type nat hook prerouting priority dstnat; iifname gw0 tcp dport { 80, 443 } redirect to :3129; }; }\n")
	d := world.Start(t, world.WithCapture(world.PolicyText(t, "P0"), world.WayRedirect))
	for port, hello := range map[string]string{"443": opening(t, "base-allowed.bin"), "80": "GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n"} {
		mark := w.Mark(t)
		got, _ := world.TalkTo(w.Sandbox, net.JoinHostPort(lab.GatewayIPv4, port), hello, world.Patience)
		if !world.RefusedBy(got) && !strings.Contains(got, `"class":"address-denied"`) {
			t.Errorf("port %s: got %q", port, got)
		}
		w.Silent(t, mark)
	}
	if found := refusals(t, d, 0, lab.GatewayIPv4); len(found) != 2 || found[0].Dst.Class != "self" {
		t.Errorf("recorded %+v", found)
	}
}

// TestNeighboursAndServicesAreClosed scans from the sandbox.
func TestNeighboursAndServicesAreClosed(t *testing.T) {
	world.Covers(t, "KC-08")
	eachCapture(t, world.PolicyText(t, "P-any"), func(t *testing.T, d *world.Daemon) {
		w := d.World
		service, err := w.Gateway.Listen("tcp", "0.0.0.0:2375")
		if err != nil {
			t.Fatal(err)
		}
		defer service.Close()
		mark := w.Mark(t)
		for _, port := range []string{"2375", "22", "3129", "9999"} {
			for _, host := range []string{lab.GatewayIPv4, lab.GatewayIPv6, "10.98.0.1"} {
				if got, err := world.TalkTo(w.Sandbox, net.JoinHostPort(host, port), "x", world.Patience); err == nil || os.IsTimeout(err) {
					t.Errorf("%s %s: got %q, %v", host, port, got, err)
				}
			}
		}
		if got, err := world.TalkTo(w.Sandbox, "10.97.0.1:22", "SSH-2.0-x\r\n", world.Patience); err != nil || !world.RefusedBy(got) {
			t.Errorf("a neighbour: got %q, %v", got, err)
		}
		if found := refusals(t, d, 0, "10.97.0.1"); len(found) != 1 || found[0].Decision.Class != "address-denied" {
			t.Errorf("recorded %+v", found)
		}
		w.Silent(t, mark)
	})
}

// TestDatagramsAndEchoesAreRefused sends what is no TCP.
func TestDatagramsAndEchoesAreRefused(t *testing.T) {
	world.Covers(t, "KC-02", "TL-31", "DN-05")
	eachCapture(t, "version: 1\nallow: [\"0.0.0.0/0:*\", \"[::/0]:*\"]\n", func(t *testing.T, d *world.Daemon) {
		w := d.World
		mark, asked := w.Mark(t), w.Zone.Mark()
		for _, to := range []string{"93.184.216.34:443", "[2606:2800:220:1::1]:443", "1.1.1.1:853"} {
			c, err := w.Sandbox.Dial("udp", to)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(world.Patience))
			c.Write([]byte("x"))
			if _, err := c.Read(make([]byte, 9)); err == nil || os.IsTimeout(err) {
				t.Errorf("%s: %v", to, err)
			}
			c.Close()
		}
		if err := w.Sandbox.Run(exec.Command("python3", "-c", `
import socket
for f, kind, p, to in ((2, 8, 1, "1.1.1.1"), (10, 128, 58, "2606:4700:4700::1111")):
    s = socket.socket(f, socket.SOCK_RAW, p)
    s.sendto(bytes([kind, 0, 0, 0, 0, 1, 0, 1]), (to, 0))
`)); err != nil {
			t.Fatal(err)
		}
		m := new(dns.Msg).SetQuestion("secret.evil.test.", dns.TypeA)
		for _, network := range []string{"udp", "tcp"} {
			if answer := askServer(t, w, network, "1.1.1.1:53", m); answer == nil || answer.Rcode != dns.RcodeRefused {
				t.Errorf("over %s: %v", network, answer)
			}
		}
		packets, err := w.Wire.Since(mark)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packets {
			if to := p.To.Addr(); to != netip.MustParseAddr("10.99.0.1") && to != netip.MustParseAddr("fd99::1") {
				t.Errorf("sent %s", p)
			}
		}
		if asked := w.Zone.Since(asked); len(asked) > 0 {
			t.Errorf("asked for %q", asked)
		}
	})
}

// askServer puts a question to a name server from the sandbox.
func askServer(t *testing.T, w *world.World, network, server string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c, err := w.Sandbox.Dial(network, server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(world.Patience))
	conn := &dns.Conn{Conn: c}
	if err := conn.WriteMsg(m); err != nil {
		t.Fatal(err)
	}
	answer, err := conn.ReadMsg()
	if err != nil {
		t.Errorf("%s %s: %v", network, server, err)
	}
	return answer
}

// TestServersThatSpeakFirstByName asks for a name, and then connects to the address
// that it was told, without showing the name.
func TestServersThatSpeakFirstByName(t *testing.T) {
	eachCapture(t, "version: 1\nallow: [\"db.allowed.test:5432\", \"other.allowed.test:5432\", \"mail.allowed.test:25\"]\n", func(t *testing.T, d *world.Daemon) {
		w := d.World
		to := world.AllowedIPv4 + ":5432"
		if got, err := world.TalkTo(w.Sandbox, to, "before\n", world.Patience); got != "" || err == nil {
			t.Errorf("without a name: got %q, %v", got, err)
		}
		ask := func(name string) {
			t.Helper()
			if answer := askServer(t, w, "udp", lab.GatewayIPv4+":53", new(dns.Msg).SetQuestion(name, dns.TypeA)); len(answer.Answer) != 1 {
				t.Fatalf("%s: %v", name, answer)
			}
		}
		ask("db.allowed.test.")
		c, err := w.Sandbox.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "marker\n")
		if got := readLine(c); !strings.HasSuffix(got, "marker\n") {
			t.Errorf("with a name: got %q", got)
		}
		if got, err := world.TalkTo(w.Sandbox, world.AllowedIPv4+":25", "", world.Patience); !strings.HasPrefix(got, "554 ") {
			t.Errorf("a port that the name has not: got %q, %v", got, err)
		}
		if found := refusals(t, d, 0, "db.allowed.test"); len(found) != 1 || found[0].Dst.Port != 25 {
			t.Errorf("recorded %+v", found)
		}
		ask("other.allowed.test.")
		if got, err := world.TalkTo(w.Sandbox, to, "after\n", world.Patience); got != "" || err == nil {
			t.Errorf("with two names: got %q, %v", got, err)
		}
	})
}

// TestFragmentsAreJudged sends the packets of a connection in fragments, in order
// and out of order, some of them overlapping. What the gateway makes of them is
// judged, or nothing.
func TestFragmentsAreJudged(t *testing.T) {
	world.Covers(t, "KC-05")
	eachCapture(t, world.PolicyText(t, "P0"), func(t *testing.T, d *world.Daemon) {
		w := d.World
		for _, how := range []string{"in order", "last first", "tiny", "overlapping"} {
			t.Run(how, func(t *testing.T) {
				mark := w.Mark(t)
				written, err := d.Log.Mark()
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command("python3", filepath.Join("testdata", "fragments.py"), how, world.Source("testdata", "conformance", "clienthello", "base-evil.bin"))
				out, err := output(w, cmd)
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				found := refusals(t, d, written, "evil.test")
				switch {
				case how == "overlapping" && (strings.TrimSpace(out) != "silence" || len(found) > 0):
					t.Errorf("said %q, recorded %+v", out, found)
				case how != "overlapping" && (strings.TrimSpace(out) != "15030300020231" || len(found) != 1):
					t.Errorf("said %q, recorded %+v", out, found)
				}
				w.Silent(t, mark)
			})
		}
	})
}

// output runs a command in the sandbox.
func output(w *world.World, cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := w.Sandbox.Run(cmd)
	return out.String(), err
}

// TestOneNetworkForAll runs egressd beside the programs that it holds, in one
// network, told apart by its user.
func TestOneNetworkForAll(t *testing.T) {
	world.Covers(t, "KC-01", "KC-03", "KC-06")
	const own, other = 1337, 1338
	w := world.Open(t)
	d := world.NewDaemon(t, world.PolicyText(t, "P0")+`listen: {proxy: ["127.0.0.1:3128", "[::1]:3128"], transparent: ["127.0.0.1:3129", "[::1]:3129"], dns: ["127.0.0.1:15053", "[::1]:15053"]}`+"\n")
	if err := d.Chown(own); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(world.Egressd.Path(), "serve", "--config", d.Config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: own, Gid: own, NoSetGroups: true}}
	d.Run(t, cmd)
	t.Cleanup(func() { d.Stop(t) })
	w.LoadRules(t, w.Gateway, testfiles.Block(t, "how-to/gateway.md", "nft", "**In a network that egressd shares**"))
	program := func(script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other, NoSetGroups: true}}
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		w.Gateway.Run(cmd) // what it says counts
		return out.String()
	}
	// egressd runs as a user that cannot write /etc/hosts, so that file counts: the names are none of it.
	for _, row := range []struct{ says, script, want string }{
		{"an allowed name", `curl -sS -m9 --resolve one.allowed.test:80:151.101.1.69 http://one.allowed.test/`, "origin "},
		{"an allowed name, by IPv6", `curl -sS -m9 -g --resolve 'one.allowed.test:80:[2a00:1450::1]' http://one.allowed.test/`, "origin "},
		{"a denied name", `curl -sS -m9 --resolve evil.test:80:151.101.1.69 http://evil.test/`, `"class":"default-deny"`},
		{"metadata", `curl -sS -m9 http://169.254.169.254/`, `"class":"address-denied"`},
		{"without variables", `env -u HTTPS_PROXY NO_PROXY='*' curl -sS -m9 -k --resolve evil.test:443:151.101.1.69 https://evil.test/`, "alert access denied"},
		{"names", `dig +time=3 +tries=1 @8.8.8.8 secret.evil.test`, "REFUSED"},
		{"names of a loopback server", `dig +short +time=3 +tries=1 @127.0.0.53 one.allowed.test`, world.AllowedIPv4},
		{"a datagram", `echo x | socat -t1 - UDP:151.101.1.69:443 2>&1; echo done`, "done"},
	} {
		mark := w.Mark(t)
		if got := program(row.script); !strings.Contains(got, row.want) {
			t.Errorf("%s: got %q", row.says, got)
		}
		packets, err := w.Wire.Since(mark)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packets {
			if to := p.To.Addr(); !to.IsLoopback() && !slices.Contains([]string{"9.9.9.53", world.AllowedIPv4, world.AllowedIPv6, "10.98.0.1", "fd98::1"}, to.String()) {
				t.Errorf("%s: sent %s", row.says, p)
			}
		}
	}
}
