package waysin

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// An office is a world with a host for an upstream proxy.
type office struct {
	*world.World
	net *lab.Net
}

func newOffice(t *testing.T) *office {
	t.Helper()
	w, err := world.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	n, err := w.Office()
	if err != nil {
		t.Fatal(err)
	}
	return &office{w, n}
}

// start runs egressd in the gateway, behind the proxy that settings describe.
func (o *office) start(t *testing.T, settings, roots string) *world.Daemon {
	t.Helper()
	text := world.PolicyText(t, "P0") + roots + fmt.Sprintf("upstream: {dns: [%q], proxy: %s}\n", world.Resolver, settings)
	d := world.NewDaemonIn(t, o.World, text)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	return d
}

// squid runs Debian's squid in the office. Its default rules take tunnels to port 443 alone.
func (o *office) squid(t *testing.T, tunnels string) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		os.Chmod(at, 0o777)
	}
	conf := filepath.Join(dir, "squid.conf")
	text := fmt.Sprintf(`
http_port %[1]s:3128
pid_filename none
visible_hostname office.test
cache deny all
cache_log %[2]s/cache.log
access_log stdio:%[2]s/access.log
coredump_dir %[2]s
dns_nameservers 9.9.9.53
shutdown_lifetime 0 seconds
acl SSL_ports port %[3]s
acl Safe_ports port 80 443
acl CONNECT method CONNECT
http_access deny !Safe_ports
http_access deny CONNECT !SSL_ports
acl refused dstdomain refused.allowed.test
http_access deny refused
http_access allow all
`, lab.OfficeIPv4, dir, tunnels)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("squid", "-N", "-f", conf)
	if err := o.net.Start(cmd); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	stop = func() { once.Do(func() { cmd.Process.Kill(); cmd.Wait() }) }
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "cache.log"))
			t.Logf("squid said:\n%s", log)
		}
	})
	o.await(t, "3128")
	return stop
}

// await waits until the office listens.
func (o *office) await(t *testing.T, port string) {
	t.Helper()
	if !world.Eventually(world.Patience, func() bool {
		c, err := o.Gateway.Dial("tcp", lab.OfficeIPv4+":"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatal("nothing listens in the office")
	}
}

// other runs another egressd in the office, which knows the first one by a token.
func (o *office) other(t *testing.T) (ca string) {
	t.Helper()
	there := *o.World
	moved := *o.World.World
	moved.Gateway, moved.Sandbox = o.net, o.Gateway
	there.World = &moved
	text := `version: 1
allow: [allowed.test, "*.allowed.test"]
sandboxes: [{name: gate, token_file: gate.token}]
listen: {proxy: ["` + lab.OfficeIPv4 + `:3128", "tls:` + lab.OfficeIPv4 + `:3443"]}
tls: {ca_dir: ca}
`
	d := world.NewDaemonIn(t, &there, text)
	if err := os.WriteFile(filepath.Join(d.Dir, "gate.token"), []byte("correct-horse-battery"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	return filepath.Join(d.Dir, "ca", "ca.pem")
}

// direct fails where the gateway spoke to anybody but the office and, if names are looked up, the name server; or where
// a connection came from somewhere else than the office.
func (o *office) direct(t *testing.T, mark, arrivals int, began []string) {
	t.Helper()
	o.Silent(t, mark, append(began, lab.OfficeIPv4)...)
	for _, a := range o.Sink.Since(arrivals) {
		if a.From.Addr() != netip.MustParseAddr(lab.OfficeFacing) {
			t.Errorf("a connection to %v came from %v", a.To, a.From)
		}
	}
}

// TestClientsThroughAnUpstreamProxy has the programs of TestClients go through Debian's squid and through another
// egressd, over HTTP and SOCKS5, in clear and inside TLS. Not one packet goes anywhere else. Where only the way to the
// proxy differs from a row above, curl goes it.
func TestClientsThroughAnUpstreamProxy(t *testing.T) {
	o := newOffice(t)
	resolver, _, _ := strings.Cut(world.Resolver, ":")
	rows := []struct {
		says, settings string
		squid          string   // the ports that it takes tunnels to, if it is squid
		names          []string // who is asked for names
		clients        string   // the prefix of their names
	}{
		{"squid, by name", `{url: "http://10.96.0.1:3128", by_name: true}`, "443", nil, ""},
		{"squid, by address", `"http://10.96.0.1:3128"`, "443 80", []string{resolver}, ""},
		{"egressd over HTTP", `{url: "http://10.96.0.1:3128", user: gate, password_file: %q, by_name: true}`, "", nil, ""},
		{"egressd over SOCKS5", `{url: "socks5://10.96.0.1:3128", user: gate, password_command: [/bin/cat, %q], by_name: true}`, "", nil, ""},
		{"egressd over SOCKS5 inside TLS", `{url: "socks5+tls://10.96.0.1:3443", user: gate, password_file: %q, by_name: true}`, "", nil, "curl"},
		{"egressd over SOCKS5, by address", `{url: "socks5://10.96.0.1:3128", user: gate, password_file: %q}`, "", []string{resolver}, "curl"},
		{"egressd over SOCKS5 inside TLS, by address", `{url: "socks5+tls://10.96.0.1:3443", user: gate, password_file: %q}`, "", []string{resolver}, "curl"},
		{"egressd over HTTP inside TLS", `{url: "https://10.96.0.1:3443", user: gate, password_file: %q, by_name: true}`, "", nil, "curl"},
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("correct-horse-battery\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		t.Run(row.says, func(t *testing.T) {
			settings, roots := row.settings, ""
			if row.squid != "" {
				o.squid(t, row.squid)
			} else {
				settings, roots = fmt.Sprintf(settings, token), fmt.Sprintf("tls: {extra_roots: [%q]}\n", o.other(t))
			}
			d := o.start(t, settings, roots)
			mark, arrivals := o.Mark(t), o.Sink.Mark()
			runClients(t, d, row.clients)
			o.direct(t, mark, arrivals, append(row.names, lab.GatewayIPv4, "10.99.0.1"))
		})
	}
}

// TestAnUpstreamProxyThatFails: what it refuses is told apart from what egressd refuses, and once it was killed nothing goes
// around it.
func TestAnUpstreamProxyThatFails(t *testing.T) {
	o := newOffice(t)
	kill := o.squid(t, "443")
	d := o.start(t, `{url: "http://10.96.0.1:3128", by_name: true}`, "")
	mark, arrivals := o.Mark(t), o.Sink.Mark()
	dir := t.TempDir()
	ca := o.Origin.Ca.File(t)
	refused := func(says, command, class string) {
		t.Helper()
		out, _ := d.Shell(dir, ca, command)
		if !strings.Contains(out, class) {
			t.Errorf("%s: printed %q", says, out)
		}
	}
	const tunnel = "curl -sS -v --cacert $LAB_CA https://refused.allowed.test/ 2>&1"
	refused("a tunnel", tunnel, "502 Failed in egressd: refused.allowed.test:443 upstream-refused")
	refused("a whole request", "curl -sS -i http://refused.allowed.test/", `"class":"upstream-refused"`)
	refused("a tunnel to port 80", "curl -sS -p -v http://a.allowed.test/ 2>&1", "upstream-refused")
	refused("what egressd denies", "curl -sS -v https://evil.test/ 2>&1", "403 Blocked by egressd: evil.test:443 default-deny")
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	noted := 0
	for _, r := range records {
		if r.Kind == record.KindClose && r.Outcome == record.Outcome(policy.UpstreamRefused) && strings.Contains(r.Note, "403 Forbidden") {
			noted++
		}
	}
	if noted != 3 {
		t.Errorf("%d of 3 records say what the proxy answered", noted)
	}
	kill()
	refused("after its end", "curl -sS -v --max-time 20 --cacert $LAB_CA https://a.allowed.test/ 2>&1", "502 Failed in egressd: a.allowed.test:443 network-refused")
	refused("a request after its end", "curl -sS -i --max-time 20 http://a.allowed.test/", `network-refused`)
	o.direct(t, mark, arrivals, []string{lab.GatewayIPv4, "10.99.0.1"})
	if got := len(o.Sink.Since(arrivals)); got != 0 {
		t.Errorf("%d connections reached the internet", got)
	}
}

// TestAnUpstreamProxyThatIsSlowOrLies has an upstream proxy misbehave in the ways that a network sees. The client is told
// the class in time, the record has it, and not one packet goes around the proxy.
func TestAnUpstreamProxyThatIsSlowOrLies(t *testing.T) {
	o := newOffice(t)
	const head = "HTTP/1.1 200 OK\r\n"
	says := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			c.Read(make([]byte, 4096))
			io.WriteString(c, text)
			io.Copy(io.Discard, c)
		}
	}
	drip := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			c.Read(make([]byte, 4096))
			for i := range text {
				if _, err := io.WriteString(c, text[i:i+1]); err != nil {
					return
				}
				time.Sleep(200 * time.Millisecond)
			}
		}
	}
	breaks := func(c net.Conn) {
		c.Read(make([]byte, 4096))
		c.(*net.TCPConn).SetLinger(0)
	}
	type row struct {
		says   string
		answer func(net.Conn)
		class  policy.Class
	}
	for scheme, rows := range map[string][]row{
		"http": {
			{"says nothing", says(""), policy.NetworkTimeout},
			{"takes its time for each byte", drip(head + strings.Repeat("X-A: b\r\n", 100)), policy.NetworkTimeout},
			{"breaks off", breaks, policy.NetworkRefused},
			{"closes", func(c net.Conn) { c.Read(make([]byte, 4096)) }, policy.NetworkReset},
			{"speaks another protocol", says("SSH-2.0-x\r\n\r\n"), policy.NetworkTLS},
			{"has no end of its head", says(head + strings.Repeat("X-A: b\r\n", 4000)), policy.NetworkTLS},
			{"refuses", says("HTTP/1.1 403 Forbidden by the office\r\nContent-Length: 0\r\n\r\n"), policy.UpstreamRefused},
			{"wants a password", says("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"), policy.UpstreamRefused},
			{"sends elsewhere", says("HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\nContent-Length: 0\r\n\r\n"), policy.UpstreamRefused},
		},
		"socks5": {
			{"says nothing", says(""), policy.NetworkTimeout},
			{"speaks another protocol", says("HTTP/1.1 400 Bad Request\r\n\r\n"), policy.NetworkTLS},
			{"takes no method", says("\x05\xff"), policy.UpstreamRefused},
			{"refuses", says("\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00"), policy.UpstreamRefused},
			{"answers half", says("\x05\x00\x05\x00\x00\x01"), policy.NetworkTimeout},
			{"answers with an address of an unknown kind", says("\x05\x00\x05\x00\x00\x09\x00\x00"), policy.NetworkTLS},
		},
	} {
		t.Run(scheme, func(t *testing.T) {
			d := o.start(t, fmt.Sprintf(`{url: "%s://10.96.0.1:3128", by_name: true}`, scheme), "limits: {dial_timeout: 2s}\n")
			mark, arrivals := o.Mark(t), o.Sink.Mark()
			for _, row := range rows {
				t.Run(row.says, func(t *testing.T) {
					l, err := o.net.Listen("tcp", lab.OfficeIPv4+":3128")
					if err != nil {
						t.Fatal(err)
					}
					world.Serve(t, l, row.answer)
					began := time.Now()
					out, _ := d.Shell(t.TempDir(), "none", "curl -sS -v --max-time 20 https://a.allowed.test/ 2>&1")
					if want := " Failed in egressd: a.allowed.test:443 " + string(row.class); !strings.Contains(out, want) {
						t.Errorf("printed %q, want %q", out, want)
					}
					if took := time.Since(began); took > 15*time.Second {
						t.Errorf("it took %s", took)
					}
					records, err := d.Log.Since(0)
					if err != nil {
						t.Fatal(err)
					}
					if last := records[len(records)-1]; last.Kind != record.KindClose || last.Outcome != record.Outcome(row.class) || last.Note == "" {
						t.Errorf("the last record is %+v", last)
					}
				})
			}
			o.direct(t, mark, arrivals, []string{lab.GatewayIPv4, "10.99.0.1"})
			if got := len(o.Sink.Since(arrivals)); got != 0 {
				t.Errorf("%d connections reached the internet", got)
			}
		})
	}
}

// TestNoSandboxReachesTheUpstreamProxy although a rule allows its address.
func TestNoSandboxReachesTheUpstreamProxy(t *testing.T) {
	o := newOffice(t)
	o.squid(t, "443")
	text := "version: 1\nallow: [\"10.96.0.0/24:*\", allowed.test]\n" + fmt.Sprintf("upstream: {dns: [%q], proxy: {url: \"http://%s:3128\", except: [10.96.0.0/24]}}\n", world.Resolver, lab.OfficeIPv4)
	d := world.NewDaemonIn(t, o.World, text)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	out, _ := d.Shell(t.TempDir(), "none", "curl -sS -v -p http://"+lab.OfficeIPv4+":3128/ 2>&1; curl -sS -v -p --max-time 5 http://"+lab.OfficeIPv4+":3129/ 2>&1")
	if !strings.Contains(out, lab.OfficeIPv4+":3128 address-denied") || !strings.Contains(out, lab.OfficeIPv4+":3129 network-refused") {
		t.Errorf("printed %q", out)
	}
}

// TestInspectedAndCapturedThroughAnUpstreamProxy: requests inside TLS are decided and recorded as without one, and a
// program under egressd run, which knows of no proxy, comes through, too.
func TestInspectedAndCapturedThroughAnUpstreamProxy(t *testing.T) {
	o := newOffice(t)
	o.squid(t, "443")
	roots := o.Origin.Ca.File(t)
	text := fmt.Sprintf(`version: 1
allow: [a.allowed.test, {host: api.allowed.test, methods: [GET]}]
tls: {ca_dir: ca, extra_roots: [%q]}
upstream: {proxy: {url: "http://10.96.0.1:3128", by_name: true}}
`, roots)
	d := world.NewDaemonIn(t, o.World, text)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	mark, arrivals := o.Mark(t), o.Sink.Mark()
	own := filepath.Join(d.Dir, "ca", "ca.pem")
	out, _ := d.Shell(t.TempDir(), own, "curl -sS --cacert $LAB_CA https://api.allowed.test/in; curl -sS --cacert $LAB_CA -X DELETE https://api.allowed.test/in")
	if !strings.Contains(out, "GET /in") || !strings.Contains(out, `"class":"method-denied"`) {
		t.Errorf("printed %q", out)
	}
	records, err := d.Log.Since(0)
	if err != nil {
		t.Fatal(err)
	}
	inside := 0
	for _, r := range records {
		if r.Kind == record.KindRequest && r.HTTP != nil && r.HTTP.Path == "/in" && r.Dst != nil && r.Dst.Host == "api.allowed.test" && r.Dst.Addr == "" {
			inside++
		}
	}
	if inside != 2 {
		t.Errorf("%d of 2 requests are recorded", inside)
	}
	ran := d.RunCommand(t, nil, "run", "--alone", "--config", d.Config, "--", "sh", "-c",
		"curl -sS --cacert "+roots+" https://a.allowed.test/run; curl -sS http://a.allowed.test/clear; curl -sS -o /dev/null -w '%{http_code}' http://evil.test/")
	for _, want := range []string{"GET /run", "GET /clear", "403"} {
		if !strings.Contains(ran.Out, want) {
			t.Errorf("under run, printed %q and said %q, without %q", ran.Out, ran.Talk, want)
		}
	}
	o.direct(t, mark, arrivals, []string{"10.99.0.1", "10.99.0.2"})
	if got := len(o.Sink.Since(arrivals)); got < 3 {
		t.Errorf("%d connections reached the internet", got)
	}
}
