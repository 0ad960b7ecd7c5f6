package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestNoListenerTakesDescriptors has clients send sockets that linger. Closing such a socket would stop egressd.
func TestNoListenerTakesDescriptors(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	writeFile(t, at("egressd.yaml"), fmt.Sprintf("version: 1\nlisten: {proxy: [\"unix:%s\", \"unix:%s\"], admin: \"unix:%s\"}\naudit: {dir: %q}\nupstream: {dns: [\"127.0.0.1:9\"]}\nsandboxes: [{name: web, listen: \"unix:%s\"}]\n",
		at("proxy"), at("handed"), at("admin"), at("audit"), at("web")))
	d, err := New(io.Discard, at("egressd.yaml"), Tailoring{handed: handOver(t, at("handed"))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer d.stop(0)
	for _, name := range []string{"proxy", "web", "admin", "handed"} {
		c, err := net.Dial("unix", at(name))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := sendLingering(t, c.(*net.UnixConn)); !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s: a descriptor was sent: %v", name, err)
		}
	}
}

// handOver returns a Unix listener as the service manager hands it over.
func handOver(t *testing.T, path string) *handed {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	h := new(handed)
	if err := h.add(f); err != nil {
		t.Fatal(err)
	}
	return h
}

// sendLingering sends a TCP socket that lingers, with one byte.
func sendLingering(t *testing.T, to *net.UnixConn) error {
	t.Helper()
	lingers, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(lingers)
	if err := syscall.SetsockoptLinger(lingers, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 600}); err != nil {
		t.Fatal(err)
	}
	_, _, err = to.WriteMsgUnix([]byte("C"), syscall.UnixRights(lingers), nil)
	return err
}
