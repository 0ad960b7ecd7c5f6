package waysin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/record"
)

// askedAddress is an address in the internet that no rule of P0 is about and that no host of the zone has.
const askedAddress = "151.101.1.70"

// redsocksRules hand what the sandbox sends to that address to redsocks.
const redsocksRules = `table inet egressd {
	chain out {
		type nat hook output priority -100; policy accept;
		ip daddr ` + askedAddress + ` meta l4proto tcp redirect to :12345
	}
}
`

// redsocks runs Debian's redsocks in the sandbox until the end of the test.
func redsocks(t *testing.T, d *world.Daemon, token string) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "redsocks.conf")
	host, port, _ := strings.Cut(d.Address(), ":")
	text := fmt.Sprintf(`base { log_debug = off; log_info = off; log = "stderr"; daemon = off; redirector = iptables; }
redsocks { local_ip = 127.0.0.1; local_port = 12345; ip = %s; port = %s; type = socks5; login = "e2b"; password = "%s"; }
`, host, port, token)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.World.Route(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.World.Unroute() })
	d.World.LoadRules(t, d.World.Sandbox, redsocksRules)
	cmd := exec.Command("redsocks", "-c", conf)
	cmd.Stderr = os.Stderr
	if err := d.World.Sandbox.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if !world.Eventually(world.Patience, func() bool {
		c, err := d.World.Sandbox.Dial("tcp", "127.0.0.1:12345")
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatal("redsocks does not listen")
	}
}

// TestWrongProtocolsAreTold: a program that speaks to the proxy in the wrong way shows what the page for troubles lists, and the log has why.
func TestWrongProtocolsAreTold(t *testing.T) {
	d := world.Start(t, world.PolicyText(t, "P0"))
	page := testfiles.Page(t, "how-to/troubleshoot.md")
	for command, row := range map[string]struct{ shown, reason string }{
		"curl -sS -m20 --socks4 $LAB_PROXY http://93.184.216.34/":               {"(91), request rejected or failed", "use SOCKS5"},
		"curl -sS -m20 --socks4a $LAB_PROXY http://allowed.test/":               {"(91), request rejected or failed", "use SOCKS5"},
		"curl -sS -m20 -x '' --request-target https://allowed.test/ $LAB_PROXY": {"For https, open a tunnel with CONNECT", "another scheme than http"},
	} {
		mark := d.LogMark(t)
		out, _ := d.Shell(t.TempDir(), "", command+" 2>&1")
		if !strings.Contains(out, row.shown) || !strings.Contains(page, row.shown) {
			t.Errorf("%s: %q, and on the page %t; want %q", command, out, strings.Contains(page, row.shown), row.shown)
		}
		if !world.Eventually(world.Settling, func() bool {
			all, _ := d.Log.Since(mark)
			return slices.ContainsFunc(all, func(r record.Record) bool {
				return r.Decision != nil && strings.Contains(r.Decision.Reason, row.reason)
			})
		}) {
			all, _ := d.Log.Since(mark)
			t.Errorf("%s: no record says %q: %+v", command, row.reason, all)
		}
	}
}

// TestProgramsThatAskForAddresses: programs that resolve names themselves reach the host that they name, at the address
// that egressd finds, and nothing is ever sent to the address that they ask for. The sandbox is known by its user and
// password, as E2B sends them to the SOCKS5 proxy of a sandbox.
func TestProgramsThatAskForAddresses(t *testing.T) {
	const token = "correct-horse-battery"
	d := world.NewDaemon(t, world.PolicyText(t, "P0")+"sandboxes: [{name: e2b, token_file: e2b.token}]\n")
	d.PutFile(t, "e2b.token", token)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	redsocks(t, d, token)
	ca, dir := d.World.Origin.Ca.File(t), t.TempDir()
	const socks = "curl -sS --max-time 20 --cacert $LAB_CA --socks5 $LAB_PROXY --proxy-user e2b:" + token
	const plain = "curl -sS --max-time 20 --cacert $LAB_CA --noproxy '*'"
	at := func(host, port string) string { return " --resolve " + host + ":" + port + ":" + askedAddress + " " }
	for _, row := range []struct {
		says, command, wants string
		works                bool
		class                string // of the record, where it does not
	}{
		{"curl --socks5", socks + at("a.allowed.test", "443") + "https://a.allowed.test/tls", "GET /tls", true, ""},
		{"curl --socks5 in clear", socks + at("a.allowed.test", "80") + "http://a.allowed.test/clear", "GET /clear", true, ""},
		{"curl --socks5, two hosts on one connection", socks + at("a.allowed.test", "80") + at("evil.test", "80") + "http://a.allowed.test/one --next " + "-sS --socks5 $LAB_PROXY --proxy-user e2b:" + token + at("evil.test", "80") + "http://evil.test/two", `"class":"default-deny"`, true, ""},
		{"curl --socks5 to a denied host", socks + at("evil.test", "443") + "https://evil.test/", "alert", false, "default-deny"},
		{"curl --socks5 to a host at a private address", socks + at("priv.allowed.test", "443") + "https://priv.allowed.test/", "alert", false, "address-denied"},
		{"curl --socks5 to the address alone", socks + " -k https://" + askedAddress + "/", "alert", false, "default-deny"},
		{"curl --socks5 to a private address", socks + " --resolve a.allowed.test:443:10.0.0.5 https://a.allowed.test/", "", false, "address-denied"},
		{"redsocks", plain + at("a.allowed.test", "443") + "https://a.allowed.test/redsocks", "GET /redsocks", true, ""},
		{"redsocks in clear", plain + at("a.allowed.test", "80") + "http://a.allowed.test/redsocks", "GET /redsocks", true, ""},
		{"redsocks to a denied host", plain + at("evil.test", "443") + "https://evil.test/", "alert", false, "default-deny"},
		{"redsocks to a denied host in clear", plain + at("evil.test", "80") + "-i http://evil.test/", "403 Blocked by egressd: evil.test:80 default-deny", true, ""},
	} {
		t.Run(row.says, func(t *testing.T) {
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			wire := d.World.Mark(t)
			out, err := d.Shell(dir, ca, row.command)
			if (err == nil) != row.works || !strings.Contains(out, row.wants) {
				t.Errorf("printed %q (%v), want %q", out, err, row.wants)
			}
			d.World.Silent(t, wire, world.AllowedIPv4, strings.Split(world.Resolver, ":")[0], "10.99.0.1", lab.GatewayIPv4)
			records, err := d.Log.Since(mark)
			if err != nil {
				t.Fatal(err)
			}
			denied := ""
			for _, r := range records {
				if r.Decision == nil || r.Kind == record.KindDNS {
					continue
				}
				if r.Sandbox != "e2b" || r.Via != "socks5" {
					t.Errorf("recorded %s of %q by %s", r.Kind, r.Sandbox, r.Via)
				}
				if name := !strings.ContainsAny(r.Dst.Host[:1], "0123456789"); name != (r.Dst.Asked == askedAddress) {
					t.Errorf("recorded %+v", r.Dst)
				}
				if r.Decision.Action == "deny" {
					denied = r.Decision.Class
				}
			}
			if row.class != "" && denied != row.class {
				t.Errorf("the record's class is %q, want %q: %+v", denied, row.class, records)
			}
		})
	}
}
