//go:build linux

package hostaddr

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
)

func TestLoopbackIsOurs(t *testing.T) {
	w, err := Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if !slices.Contains(w.Addrs(), netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("the host has %v", w.Addrs())
	}
}

// TestAddressesAreFollowed runs itself again in a network namespace of its
// own, where it may add addresses.
func TestAddressesAreFollowed(t *testing.T) {
	if os.Getenv("EGRESSD_IN_NAMESPACE") == "" {
		again(t)
		return
	}
	ip(t, "link", "set", "lo", "up")
	w, err := Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	added := netip.MustParseAddr("192.0.2.77")
	ip(t, "addr", "add", "192.0.2.77/32", "dev", "lo")
	wait(t, func() bool { return slices.Contains(w.Addrs(), added) })
	ip(t, "addr", "del", "192.0.2.77/32", "dev", "lo")
	wait(t, func() bool { return !slices.Contains(w.Addrs(), added) })
}

func again(t *testing.T) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAddressesAreFollowed$")
	cmd.Env = append(os.Environ(), "EGRESSD_IN_NAMESPACE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("ip")
	if err != nil {
		path = "/usr/sbin/ip"
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}

func wait(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the change was not seen")
		}
	}
}
