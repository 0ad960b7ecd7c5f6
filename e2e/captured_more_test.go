package e2e

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

	"github.com/miekg/dns"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// opening is a recorded hello as a program would send it.
func opening(t *testing.T, hello string) string {
	t.Helper()
	b, err := os.ReadFile(Source("testdata", "conformance", "clienthello", hello))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// says connects from a place to an address, says something, and returns what comes
// back until the end, or until nothing has come for a while.
func says(from *lab.Net, to, text string, wait time.Duration) (string, error) {
	c, err := from.Dial("tcp", to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// eachCapture runs a test once with each kind of capture, and its rules.
func eachCapture(t *testing.T, policy string, test func(t *testing.T, d *daemon)) {
	for _, way := range []string{wayRedirect, wayTProxy} {
		t.Run(way, func(t *testing.T) {
			theWorld(t).capture(t, way)
			test(t, start(t, withCapture(policy, way)))
		})
	}
}

// refusals are the records since a mark that deny a host.
func (d *daemon) refusals(t *testing.T, mark int, host string) (found []record.Record) {
	t.Helper()
	records, err := d.log.since(mark)
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

// silent fails where the gateway has begun to speak to anybody since a mark, but to
// those who are excepted.
func (w *world) silent(t *testing.T, mark int, but ...string) {
	t.Helper()
	packets, err := w.Wire.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		if !slices.Contains(but, p.To.Addr().String()) && p.Protocol != lab.ProtocolICMP && p.Protocol != lab.ProtocolICMPv6 {
			t.Errorf("sent %s", p)
		}
	}
}

func (w *world) mark(t *testing.T) int {
	t.Helper()
	mark, err := w.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

// TestCapturedAddressesArePrivate connects to private addresses with the server name
// and the Host of an allowed one.
func TestCapturedAddressesArePrivate(t *testing.T) {
	covers(t, "TL-34")
	eachCapture(t, policyText(t, "P0"), func(t *testing.T, d *daemon) {
		for _, to := range []string{"10.0.0.5", "169.254.169.254", "fd12::5", "10.97.0.1"} {
			mark := d.world.mark(t)
			got, _ := says(d.world.Sandbox, net.JoinHostPort(to, "80"), "GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n", patience)
			if !strings.Contains(got, "origin 93.184.216.34:80") && !strings.Contains(got, "origin [2606:2800:220:1::1]:80") {
				t.Errorf("%s: got %q", to, got)
			}
			got, err := says(d.world.Sandbox, net.JoinHostPort(to, "443"), opening(t, "base-evil.bin"), patience)
			if err != nil || !refusedBy(got) {
				t.Errorf("%s: got %q, %v", to, got, err)
			}
			d.world.silent(t, mark, "9.9.9.53", allowedIPv4, allowedIPv6)
		}
	})
}

// TestMailIsRefusedAtOnce tries the ports of protocols that begin in clear. Who waits
// for a hello would wait longer than the client.
func TestMailIsRefusedAtOnce(t *testing.T) {
	covers(t, "TL-32")
	eachCapture(t, policyText(t, "P0")+"limits: {hello_timeout: 60s}\n", func(t *testing.T, d *daemon) {
		for _, port := range []string{"25", "587", "143", "110", "5222", "21"} {
			mark := d.world.mark(t)
			written, err := d.log.mark()
			if err != nil {
				t.Fatal(err)
			}
			got, err := says(d.world.Sandbox, net.JoinHostPort(allowedIPv4, port), "", patience)
			if got != "" || !gone(err) {
				t.Errorf("port %s: got %q, %v", port, got, err)
			}
			if found := d.refusals(t, written, allowedIPv4); len(found) != 1 || found[0].Decision.Class != "default-deny" || fmt.Sprint(found[0].Dst.Port) != port {
				t.Errorf("port %s: recorded %+v", port, found)
			}
			d.world.silent(t, mark)
		}
	})
}

// TestTheListenerIsNoWayOut connects to the listener itself, by each address that
// the host has, where no rule keeps the sandbox from it, and says an allowed name.
func TestTheListenerIsNoWayOut(t *testing.T) {
	w := theWorld(t)
	hello := opening(t, "base-allowed.bin")
	for _, row := range []struct{ says, listen string }{
		{"NAT", `["0.0.0.0:3129", "[::]:3129"]`},
		{"tproxy", `["tproxy:0.0.0.0:3129", "tproxy:[::]:3129"]`},
		{"NAT, at one address", fmt.Sprintf(`["%s:3129", "[%s]:3129"]`, lab.GatewayIPv4, lab.GatewayIPv6)},
	} {
		t.Run(row.says, func(t *testing.T) {
			d := start(t, "version: 1\nunsafe_allow: [\"10.99.0.2:*\"]\ndefault: allow\n"+fmt.Sprintf("listen: {proxy: [\"%[1]s:%[2]d\", \"[%[3]s]:%[2]d\"], transparent: %[4]s}\n", lab.GatewayIPv4, proxyPort, lab.GatewayIPv6, row.listen))
			if row.says == "NAT" { // conntrack has to be in use for there to be an answer at all
				w.load(t, w.Gateway, "table inet egressd { chain c { type nat hook prerouting priority dstnat; tcp dport 9 redirect to :3129; }; }\n")
			}
			for _, to := range []string{lab.GatewayIPv4, lab.GatewayIPv6} {
				mark := w.mark(t)
				written, err := d.log.mark()
				if err != nil {
					t.Fatal(err)
				}
				if got, err := says(w.Sandbox, net.JoinHostPort(to, "3129"), hello, patience); got != "" || err == nil || os.IsTimeout(err) {
					t.Errorf("%s: got %q, %v", to, got, err)
				}
				records, err := d.log.since(written)
				if err != nil {
					t.Fatal(err)
				}
				records = slices.DeleteFunc(records, func(r record.Record) bool { return r.Kind == record.KindPolicy }) // of rules that it misses
				if len(records) != 1 || records[0].Decision == nil || records[0].Decision.Class != "address-denied" || records[0].Via != "transparent" {
					t.Errorf("%s: recorded %+v", to, records)
				}
				w.silent(t, mark)
			}
		})
	}
}

// TestAClaimDoesNotCountForTheHostItself captures a connection to a service of the
// gateway and claims an allowed name there.
func TestAClaimDoesNotCountForTheHostItself(t *testing.T) {
	w := theWorld(t)
	w.load(t, w.Gateway, "table inet egressd { chain c { type nat hook prerouting priority dstnat; iifname gw0 tcp dport { 80, 443 } redirect to :3129; }; }\n")
	d := start(t, withCapture(policyText(t, "P0"), wayRedirect))
	for port, hello := range map[string]string{"443": opening(t, "base-allowed.bin"), "80": "GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n"} {
		mark := w.mark(t)
		got, _ := says(w.Sandbox, net.JoinHostPort(lab.GatewayIPv4, port), hello, patience)
		if !refusedBy(got) && !strings.Contains(got, `"class":"address-denied"`) {
			t.Errorf("port %s: got %q", port, got)
		}
		w.silent(t, mark)
	}
	if found := d.refusals(t, 0, lab.GatewayIPv4); len(found) != 2 || found[0].Dst.Class != "self" {
		t.Errorf("recorded %+v", found)
	}
}

// TestNeighboursAndServicesAreClosed scans from the sandbox.
func TestNeighboursAndServicesAreClosed(t *testing.T) {
	covers(t, "KC-08")
	eachCapture(t, policyText(t, "P-any"), func(t *testing.T, d *daemon) {
		w := d.world
		service, err := w.Gateway.Listen("tcp", "0.0.0.0:2375")
		if err != nil {
			t.Fatal(err)
		}
		defer service.Close()
		mark := w.mark(t)
		for _, port := range []string{"2375", "22", "3129", "9999"} {
			for _, host := range []string{lab.GatewayIPv4, lab.GatewayIPv6, "10.98.0.1"} {
				if got, err := says(w.Sandbox, net.JoinHostPort(host, port), "x", patience); err == nil || os.IsTimeout(err) {
					t.Errorf("%s %s: got %q, %v", host, port, got, err)
				}
			}
		}
		if got, err := says(w.Sandbox, "10.97.0.1:22", "SSH-2.0-x\r\n", patience); err != nil || !refusedBy(got) {
			t.Errorf("a neighbour: got %q, %v", got, err)
		}
		if found := d.refusals(t, 0, "10.97.0.1"); len(found) != 1 || found[0].Decision.Class != "address-denied" {
			t.Errorf("recorded %+v", found)
		}
		w.silent(t, mark)
	})
}

// TestDatagramsAndEchoesAreRefused sends what is no TCP.
func TestDatagramsAndEchoesAreRefused(t *testing.T) {
	covers(t, "KC-02", "TL-31", "DN-05")
	eachCapture(t, "version: 1\nallow: [\"0.0.0.0/0:*\", \"[::/0]:*\"]\n", func(t *testing.T, d *daemon) {
		w := d.world
		mark, asked := w.mark(t), w.zone.mark()
		for _, to := range []string{"93.184.216.34:443", "[2606:2800:220:1::1]:443", "1.1.1.1:853"} {
			c, err := w.Sandbox.Dial("udp", to)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(patience))
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
			if answer := w.asks(t, network, "1.1.1.1:53", m); answer == nil || answer.Rcode != dns.RcodeRefused {
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
		if asked := w.zone.since(asked); len(asked) > 0 {
			t.Errorf("asked for %q", asked)
		}
	})
}

// asks puts a question to a name server from the sandbox.
func (w *world) asks(t *testing.T, network, server string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c, err := w.Sandbox.Dial(network, server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
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
	eachCapture(t, "version: 1\nallow: [\"db.allowed.test:5432\", \"other.allowed.test:5432\", \"mail.allowed.test:25\"]\n", func(t *testing.T, d *daemon) {
		w := d.world
		to := allowedIPv4 + ":5432"
		if got, err := says(w.Sandbox, to, "before\n", patience); got != "" || err == nil {
			t.Errorf("without a name: got %q, %v", got, err)
		}
		ask := func(name string) {
			t.Helper()
			if answer := w.asks(t, "udp", lab.GatewayIPv4+":53", new(dns.Msg).SetQuestion(name, dns.TypeA)); len(answer.Answer) != 1 {
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
		if got, err := says(w.Sandbox, allowedIPv4+":25", "", patience); got != "" || err == nil {
			t.Errorf("a port that the name has not: got %q, %v", got, err)
		}
		if found := d.refusals(t, 0, "db.allowed.test"); len(found) != 1 || found[0].Dst.Port != 25 {
			t.Errorf("recorded %+v", found)
		}
		ask("other.allowed.test.")
		if got, err := says(w.Sandbox, to, "after\n", patience); got != "" || err == nil {
			t.Errorf("with two names: got %q, %v", got, err)
		}
	})
}

// TestFragmentsAreJudged sends the packets of a connection in fragments, in order
// and out of order, some of them overlapping. What the gateway makes of them is
// judged, or nothing.
func TestFragmentsAreJudged(t *testing.T) {
	covers(t, "KC-05")
	eachCapture(t, policyText(t, "P0"), func(t *testing.T, d *daemon) {
		w := d.world
		for _, how := range []string{"in order", "last first", "tiny", "overlapping"} {
			t.Run(how, func(t *testing.T) {
				mark := w.mark(t)
				written, err := d.log.mark()
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command("python3", filepath.Join("testdata", "fragments.py"), how, Source("testdata", "conformance", "clienthello", "base-evil.bin"))
				out, err := w.output(cmd)
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				found := d.refusals(t, written, "evil.test")
				switch {
				case how == "overlapping" && (strings.TrimSpace(out) != "silence" || len(found) > 0):
					t.Errorf("said %q, recorded %+v", out, found)
				case how != "overlapping" && (strings.TrimSpace(out) != "15030300020231" || len(found) != 1):
					t.Errorf("said %q, recorded %+v", out, found)
				}
				w.silent(t, mark)
			})
		}
	})
}

// output runs a command in the sandbox.
func (w *world) output(cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := w.Sandbox.Run(cmd)
	return out.String(), err
}

// TestOneNetworkForAll runs egressd beside the programs that it holds, in one
// network, told apart by its user.
func TestOneNetworkForAll(t *testing.T) {
	covers(t, "KC-01", "KC-03", "KC-06")
	const own, other = 1337, 1338
	w := theWorld(t)
	d := newDaemon(t, policyText(t, "P0")+`listen: {proxy: ["127.0.0.1:3128", "[::1]:3128"], transparent: ["127.0.0.1:3129", "[::1]:3129"], dns: ["127.0.0.1:15053", "[::1]:15053"]}`+"\n")
	if err := d.giveTo(own); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(Egressd.Path(), "serve", "--config", d.config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: own, Gid: own, NoSetGroups: true}}
	d.run(t, cmd)
	t.Cleanup(func() { d.stop(t) })
	w.load(t, w.Gateway, manualRules(t, "nft", "**In a network that egressd shares**"))
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
	for _, row := range []struct{ says, script, want string }{
		{"an allowed name", `curl -sS -m9 --resolve allowed.test:80:151.101.1.69 http://allowed.test/`, "origin "},
		{"an allowed name, by IPv6", `curl -sS -m9 -g --resolve 'allowed.test:80:[2a00:1450::1]' http://allowed.test/`, "origin "},
		{"a denied name", `curl -sS -m9 --resolve evil.test:80:151.101.1.69 http://evil.test/`, `"class":"default-deny"`},
		{"metadata", `curl -sS -m9 http://169.254.169.254/`, `"class":"address-denied"`},
		{"without variables", `env -u HTTPS_PROXY NO_PROXY='*' curl -sS -m9 -k --resolve evil.test:443:151.101.1.69 https://evil.test/`, "alert access denied"},
		{"names", `dig +time=3 +tries=1 @8.8.8.8 secret.evil.test`, "REFUSED"},
		{"names of a loopback server", `dig +short +time=3 +tries=1 @127.0.0.53 a.allowed.test`, allowedIPv4},
		{"a datagram", `echo x | socat -t1 - UDP:151.101.1.69:443 2>&1; echo done`, "done"},
	} {
		mark := w.mark(t)
		if got := program(row.script); !strings.Contains(got, row.want) {
			t.Errorf("%s: got %q", row.says, got)
		}
		packets, err := w.Wire.Since(mark)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packets {
			if to := p.To.Addr(); !to.IsLoopback() && !slices.Contains([]string{"9.9.9.53", allowedIPv4, allowedIPv6, "10.98.0.1", "fd98::1"}, to.String()) {
				t.Errorf("%s: sent %s", row.says, p)
			}
		}
	}
}

// giveTo makes a user the owner of all that the daemon has.
func (d *daemon) giveTo(uid int) error {
	for dir := d.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return filepath.WalkDir(d.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
}
