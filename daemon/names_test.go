package daemon

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy/file"
)

// namesConfig is a configuration that listens for names at one address.
func namesConfig(t *testing.T, at string) *config.Config {
	t.Helper()
	parsed, err := file.Parse("egressd.yaml", []byte("version: 1\nlisten: {dns: ['"+at+"']}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return &config.Config{Path: "egressd.yaml", File: parsed}
}

// TestANameServerThatWouldAskItself has upstreams that are the listener.
func TestANameServerThatWouldAskItself(t *testing.T) {
	for _, row := range []struct {
		at, upstream string
		refused      bool
	}{
		{"127.0.0.1:53", "127.0.0.1:53", true},
		{"127.0.0.1:53", "127.0.0.53:53", false},
		{"127.0.0.1:5353", "127.0.0.1:53", false},
		{"0.0.0.0:53", "127.0.0.1:53", true},
		{"0.0.0.0:53", "9.9.9.9:53", false},
		{"[::]:53", "[::1]:53", true},
		{"10.1.2.3:53", "10.1.2.3:53", true},
	} {
		err := asksItself(namesConfig(t, row.at), []netip.AddrPort{netip.MustParseAddrPort(row.upstream)})
		if (err != nil) != row.refused {
			t.Errorf("listening on %s, asking %s: %v", row.at, row.upstream, err)
		}
	}
}

// TestOnePortForBothProtocols opens listeners at ports that the kernel chooses.
func TestOnePortForBothProtocols(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		l, err := openNames(at)
		if err != nil {
			t.Fatal(err)
		}
		udp, tcp := l.udp.LocalAddr().(*net.UDPAddr).AddrPort(), l.tcp.Addr().(*net.TCPAddr).AddrPort()
		if udp != tcp || udp.Port() == 0 {
			t.Errorf("%s: UDP at %s, TCP at %s", at, udp, tcp)
		}
		if _, err := openNames(udp.String()); err == nil {
			t.Errorf("%s was opened twice", udp)
		}
		l.udp.Close()
		l.tcp.Close()
	}
}

// TestNameListenersAreOpenedAtTheStartOnly compares configurations as a reload does.
func TestNameListenersAreOpenedAtTheStartOnly(t *testing.T) {
	before, after := namesConfig(t, "127.0.0.1:53"), namesConfig(t, "127.0.0.2:53")
	var err *hint.Error
	if !errors.As(after.SameListeners(before), &err) || !strings.Contains(err.Error(), "restart") || err.Hint != "restart egressd serve" {
		t.Errorf("another address: %+v", err)
	}
	if err := namesConfig(t, "127.0.0.1:53").SameListeners(before); err != nil {
		t.Error(err)
	}
}
