package daemon

import (
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hostaddr"
	"github.com/egressd/egressd/policy"
)

func upstreamConfig(t *testing.T, text string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("geheim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.New(path, []byte("version: 1\n"+text), filepath.Join(dir, "none"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTheUpstreamProxyOfAFile is read with its password, is not egressd itself, and is not asked for loopback.
func TestTheUpstreamProxyOfAFile(t *testing.T) {
	host, err := hostaddr.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	d := &Daemon{Talk: io.Discard, host: host}
	d.connect()
	d.listeners.own.Store(&[]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:3199")})
	for text, wants := range map[string]string{ // "": an error
		`upstream: {proxy: {url: "http://10.0.0.1:3128", user: me, password_file: password}}`:                      "geheim",
		`upstream: {proxy: {url: "http://10.0.0.1:3128", user: me, password_command: [/bin/echo, other]}}`:         "other",
		`upstream: {proxy: {url: "http://10.0.0.1:3128", user: me, password_file: missing}}`:                       "",
		`upstream: {proxy: {url: "http://10.0.0.1:3128", user: me, password_command: [/bin/false]}}`:               "",
		`upstream: {proxy: "http://127.0.0.1:3128"}`:                                                               "",
		`upstream: {proxy: "http://127.0.0.1:3199"}`:                                                               "",
		"listen: {proxy: [\"0.0.0.0:3130\"], open_to_network: true}\nupstream: {proxy: \"http://127.0.0.1:3130\"}": "",
	} {
		p, err := d.upstreamProxy(t.Context(), upstreamConfig(t, text))
		if (err == nil) != (wants != "") || err == nil && p.Password != wants {
			t.Errorf("%s: %+v, %v", text, p, err)
		}
		if err != nil {
			continue
		}
		loopback := netip.MustParseAddrPort("127.0.0.1:5432")
		if !p.Excepts(&policy.Destination{Host: "127.0.0.1", Addr: loopback.Addr(), Port: 5432}, loopback) {
			t.Errorf("%s: it is asked for loopback", text)
		}
	}
}

// TestStatusNamesTheUpstreamProxy and what it gives up.
func TestStatusNamesTheUpstreamProxy(t *testing.T) {
	d := &Daemon{Talk: io.Discard}
	d.connect()
	d.current.putInForce(policy.New(), upstreamConfig(t, `upstream: {proxy: {url: "socks5://p.test:1080", by_name: true}}`), "loaded")
	if up := d.current.Load().show().Upstream; up == nil || up.Proxy != "socks5://p.test:1080" || up.GivesUp == "" {
		t.Errorf("status has %+v", up)
	}
}
