package doctor

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
)

func TestListeningSeesBothFamilies(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := net.Listen(network, ":0")
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().(*net.TCPAddr)
		for _, address := range []string{"127.0.0.1", "::1"} {
			one, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
			if err != nil {
				t.Fatal(err)
			}
			its := one.Addr().(*net.TCPAddr).AddrPort()
			if open, err := listening("/proc/net"); err != nil || !open[its] {
				t.Errorf("nobody seems to listen on %s: %v", its, err)
			}
			one.Close()
			if open, err := listening("/proc/net"); err != nil || open[its] {
				t.Errorf("somebody seems to listen on %s: %v", its, err)
			}
		}
		if open, err := listening("/proc/net"); err != nil || !open[at.AddrPort()] {
			t.Errorf("nobody seems to listen on %s: %v", at, err)
		}
		l.Close()
	}
}

// TestDoctorServing asks for the log and the listener of a daemon that begins and ends.
func TestDoctorServing(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		servingAt(t, address)
	}
}

func servingAt(t *testing.T, address string) {
	dir := t.TempDir()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Replace(l.Addr().String(), "[::]", "0.0.0.0", 1)
	path := filepath.Join(dir, "egressd.yaml")
	text := fmt.Sprintf("version: 1\nlisten: {proxy: [%q]}\naudit: {dir: log, key_dir: keys}\n", name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		all := Serving(c)
		if len(all) != 1 || !strings.Contains(all[0].Says, want) || (all[0].Fix == "") != (want == "egressd listens") {
			t.Errorf("%q is not said: %+v", want, all)
		}
	}
	says("nobody writes the log")
	log, err := audit.Create(filepath.Join(dir, "log"), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	says("egressd listens")
	l.Close()
	says("nobody listens on " + name)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	says("nobody writes the log")
}
