//go:build linux

package sandbox

import (
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAUnixPeerWhoseNetworkIsNotKnownIsAnError has no descriptor left to ask with.
func TestAUnixPeerWhoseNetworkIsNotKnownIsAnError(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := UnixPeerOf(c); err != nil || !n.Host || n.PID != unix.Getpid() {
		t.Errorf("this process: %+v, %v", n, err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	n, failed := UnixPeerOf(c)
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	if failed == nil {
		t.Errorf("without a descriptor: %+v", n)
	}
}
