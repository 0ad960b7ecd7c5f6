//go:build linux

package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/sandbox/foreign"
)

// unixListeners are the sockets of a daemon for these tests.
var unixListeners = []string{"proxy", "web", "admin", "handed"}

// withUnixListeners starts a daemon at unixListeners. early is called when the socket of the service manager is
// there and the daemon is not.
func withUnixListeners(t *testing.T, early func(path string)) (at func(name string) string) {
	t.Helper()
	dir := t.TempDir()
	at = func(name string) string { return filepath.Join(dir, name) }
	writeFile(t, at("egressd.yaml"), fmt.Sprintf("version: 1\nlisten: {proxy: [\"unix:%s\", \"unix:%s\"], admin: \"unix:%s\"}\naudit: {dir: %q}\nupstream: {dns: [\"127.0.0.1:9\"]}\nsandboxes: [{name: web, listen: \"unix:%s\"}]\n",
		at("proxy"), at("handed"), at("admin"), at("audit"), at("web")))
	handed := handOver(t, at("handed"))
	early(at("handed"))
	d, err := New(io.Discard, at("egressd.yaml"), Tailoring{handed: handed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if err := d.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.stop(0) })
	return at
}

func dialUnix(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.UnixConn)
}

// TestDescriptorsAreRefused has clients send a socket to each listener. The kernel refuses it from Linux 6.16 on.
// On an older one, egressd ends the connection.
func TestDescriptorsAreRefused(t *testing.T) {
	at := withUnixListeners(t, func(string) {})
	for _, name := range unixListeners {
		c := dialUnix(t, at(name))
		err := sendLingering(t, c)
		switch {
		case !foreign.KernelRefuses():
			isRefused(t, c)
		case !errors.Is(err, syscall.EPERM):
			t.Errorf("%s: a descriptor was sent: %v", name, err)
		}
	}
}

// TestNoListenerWaitsForDescriptors has clients send sockets whose close(2) waits for minutes, as they can where
// the kernel does not refuse that. Other clients are served at once, and so are connections from before the start.
func TestNoListenerWaitsForDescriptors(t *testing.T) {
	const each = 30 // more than processors, fewer than the goroutines that may close
	kernel := refuseDescriptors
	refuseDescriptors = func(uintptr) (bool, error) { return false, nil }
	t.Cleanup(func() { refuseDescriptors = kernel })
	var waited *net.UnixConn
	at := withUnixListeners(t, func(handed string) {
		if err := sendLingering(t, dialUnix(t, handed)); err != nil {
			t.Fatal(err)
		}
		waited = dialUnix(t, handed)
	})
	isRefused(t, waited)
	before := threads(t)
	for _, name := range unixListeners {
		for n := range each {
			c := dialUnix(t, at(name))
			if n%3 == 1 { // behind bytes that are read before it
				fmt.Fprintf(c, "CONNECT one.test:443 HTTP/1.1\r\n")
			}
			if err := sendLingering(t, c); err != nil {
				t.Fatal(err)
			}
			if n%3 == 2 { // and nobody has to read it
				c.Close()
				continue
			}
			began := time.Now()
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("%s: a connection with a descriptor goes on", name)
			}
			for _, other := range unixListeners {
				if other != "admin" {
					isRefused(t, dialUnix(t, at(other)))
				}
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Fatalf("%s: others waited %v", name, took)
			}
		}
	}
	if now := threads(t); now > before+16 {
		t.Errorf("%d threads, where there were %d", now, before)
	}
}

// isRefused asks for a host that no rule allows.
func isRefused(t *testing.T, c *net.UnixConn) {
	t.Helper()
	fmt.Fprintf(c, "CONNECT nowhere.test:443 HTTP/1.1\r\nHost: nowhere.test:443\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden && answer.StatusCode != http.StatusProxyAuthRequired {
		t.Errorf("status %d", answer.StatusCode)
	}
}

// threads returns how many threads this process has.
func threads(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nThreads:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
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

// sendLingering sends a TCP socket, with one byte. The caller has closed it then. Its last close(2) waits for bytes
// that nobody reads.
func sendLingering(t *testing.T, to *net.UnixConn) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	err = errors.Join(
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 4096),
		syscall.Connect(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}))
	for err == nil {
		err = syscall.Sendto(fd, make([]byte, 1<<20), syscall.MSG_DONTWAIT, nil)
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	linger := syscall.Linger{Onoff: 1, Linger: 300}
	if err := syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &linger); err != nil {
		t.Fatal(err)
	}
	_, _, err = to.WriteMsgUnix([]byte("C"), syscall.UnixRights(fd), nil)
	if err != nil { // this close is the last
		linger.Linger = 0
		_ = syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &linger)
	}
	syscall.Close(fd)
	return err
}
