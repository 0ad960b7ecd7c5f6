package jailinit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDevicesThatAreLeft(t *testing.T) {
	for name, want := range map[string]bool{"video0": true, "nvidiactl": true, "media1": true, "mali0": true, "sda": false, "uinput": false, "tty1": false, "vid": false} {
		if hasPlainPrefix(name) != want {
			t.Errorf("%s is left: %v, want %v", name, !want, want)
		}
	}
	if isPlainFolder("/dev/input") || !isPlainFolder("/dev/dri") || isPlainFolder("/tmp/dri") || isPlainFolder("dri") {
		t.Error("the folders that are left are others")
	}
}

// TestDevicesAreClosed looks at devices in a mount namespace of its own, before and after.
func TestDevicesAreClosed(t *testing.T) {
	for _, way := range []string{"all", "each mount", "at a terminal"} {
		t.Run(way, func(t *testing.T) {
			again(t, "closed-devices", "WAY="+way, "KEPT="+someDevice(t))
		})
	}
}

// again runs one step of the tests in new user and mount namespaces.
func again(t *testing.T, step string, env ...string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestInNamespaces$", "-test.v")
	cmd.Env = append(append(os.Environ(), "STAGE_STEP="+step), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestInNamespaces") {
		t.Errorf("%v: %s", err, out)
	}
}

// someDevice is one that is not left by itself.
func someDevice(t *testing.T) string {
	t.Helper()
	plain := map[string]bool{}
	for _, path := range devicesToLeave() {
		plain[path] = true
	}
	all, err := filepath.Glob("/dev/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeDevice != 0 && !plain[path] {
			return path
		}
	}
	return "/dev/console"
}

// TestInNamespaces does the step that again has asked for, and nothing else.
func TestInNamespaces(t *testing.T) {
	switch os.Getenv("STAGE_STEP") {
	case "":
		return
	case "closed-devices":
		closedDevices(t, os.Getenv("WAY"), os.Getenv("KEPT"))
	default:
		t.Fatal("there is no such step")
	}
}

func closedDevices(t *testing.T, way, some string) {
	if found := tryDevices(Program{}); found == "" {
		t.Error("devices are closed before anything is done")
	}
	if way == "each mount" {
		elsewhere := filepath.Join(t.TempDir(), "full")
		if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("/dev/full", elsewhere, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(elsewhere, unix.MNT_DETACH)
		mounts, err := openMounts().read()
		if err != nil {
			t.Fatal(err)
		}
		if err := withoutDevicesEach(mounts, func(string) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if !opensNoDevice(t, elsewhere) {
			t.Error("a device that is a mount of itself can be opened")
		}
		for _, path := range []string{"/", "/dev", "/proc"} {
			if !opensNoDevice(t, path) {
				t.Errorf("devices can be opened at %s", path)
			}
		}
		return
	}
	elsewhere := filepath.Join(t.TempDir(), "full")
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/dev/full", elsewhere, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(elsewhere, unix.MNT_DETACH)
	var terminals []string
	if way == "at a terminal" {
		terminals = []string{"/dev/pts/0"}
	}
	if err := closeDevices([]string{"/dev/nothing/here", "/etc/passwd"}, terminals); err != nil {
		t.Fatal(err)
	}
	if f, err := os.OpenFile(elsewhere, os.O_RDWR, 0); !errors.Is(err, unix.EACCES) {
		f.Close()
		t.Errorf("a device in another place: %v", err)
	}
	if found := tryDevices(Program{}); found != "" {
		t.Errorf("devices are left: %s", found)
	}
	if way == "at a terminal" {
		var file unix.Stat_t
		if err := unix.Stat(some, &file); err != nil || mayOpen(some) && !isNullDevice(&file) {
			t.Errorf("%s is not hidden: %v", some, err)
		}
	} else if !opensNoDevice(t, some) {
		t.Errorf("%s can be opened", some)
	} else if fd, err := unix.Open(some, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0); !errors.Is(err, unix.EACCES) {
		unix.Close(fd)
		t.Errorf("open %s: %v", some, err)
	}
	if opensNoDevice(t, "/etc/passwd") != opensNoDevice(t, "/etc") {
		t.Error("a file that is no device is left as one")
	}
	for _, path := range []string{"/dev/null", "/dev/zero", "/dev/urandom", ptmx} {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		f.Close()
	}
	mountsThatComeLate(t)
}

// mountsThatComeLate has one before the last look, which is closed, and one after it, which is not judged.
func mountsThatComeLate(t *testing.T) {
	early, late := t.TempDir(), t.TempDir()
	var p Program
	for _, dir := range []string{early, late} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		if dir == late {
			if found := tryDevices(p); found != "" {
				t.Errorf("with a mount after the last look: %s", found)
			}
			continue
		}
		if found := openDevice(p); found == "" {
			t.Error("a mount that opens devices is not found")
		}
		if err := p.closeLast(); err != nil {
			t.Fatal(err)
		}
		if !opensNoDevice(t, early) || openDevice(p) != "" {
			t.Errorf("a mount before the last look is open: %s", openDevice(p))
		}
	}
	if found := openDevice(Program{}); found == "" {
		t.Error("without a last look, the late mount is not found")
	}
}

func opensNoDevice(t *testing.T, path string) bool {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	return fs.Flags&unix.ST_NODEV != 0
}
