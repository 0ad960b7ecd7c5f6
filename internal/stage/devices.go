package stage

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Devices that programs use, and that lead nowhere: memory, terminals, graphics, sound,
// cameras, and those whose networks belong to a network namespace. They are names below
// /dev: of devices, of folders, and what others begin with.
var (
	plainDevices  = [...]string{"null", "zero", "full", "random", "urandom", "hwrng", "tty", "ptmx", "fuse", "net/tun", "kvm", "userfaultfd", "cpu_dma_latency", "udmabuf", "kfd", "dxg", "sgx_enclave", "sgx_provision"}
	plainFolders  = [...]string{"pts", "dma_heap", "dri", "snd", "accel", "nvidia-caps"}
	plainPrefixes = [...]string{"video", "media", "nvidia", "mali"}
)

const devicesFolder = "/dev/"

// closeDevices has no device open any more, wherever it is in the file system, but for
// plain ones, the terminals that this was started at, and those of kept: disks would be
// written past every mount, keyboards typed on (uinput, uhid, input), modems, adapters
// and virtual machines' sockets sent through. They keep their names; what opens one is
// told EACCES, and so it is with those that come later.
func closeDevices(kept []string) error {
	var left []leftDevice
	for _, path := range append(devicesToLeave(), kept...) {
		tree, err := cloneTree(path)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("leave %s: %w", path, err)
		}
		defer unix.Close(tree)
		if mayBeLeft(tree, path) {
			left = append(left, leftDevice{path, tree})
		}
	}
	if err := withoutDevices(); err != nil {
		return err
	}
	for _, d := range left {
		if err := unix.MoveMount(d.tree, "", unix.AT_FDCWD, d.path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("leave %s: %w", d.path, os.NewSyscallError("move_mount", err))
		}
	}
	return nil
}

type leftDevice struct {
	path string
	tree int
}

// devicesToLeave are paths of devices, and folders of them. Not all of them exist.
func devicesToLeave() (paths []string) {
	for _, name := range plainDevices {
		paths = append(paths, devicesFolder+name)
	}
	for _, name := range plainFolders {
		paths = append(paths, devicesFolder+name)
	}
	entries, _ := os.ReadDir(devicesFolder)
	for _, e := range entries {
		if e.Type()&os.ModeDevice != 0 && hasPlainPrefix(e.Name()) {
			paths = append(paths, devicesFolder+e.Name())
		}
	}
	return append(paths, ownTerminals()...)
}

func hasPlainPrefix(name string) bool {
	for _, prefix := range plainPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// mayBeLeft reports whether what was cloned of a path can be left: a device, or one
// of the folders of them.
func mayBeLeft(tree int, path string) bool {
	var file unix.Stat_t
	if unix.Fstat(tree, &file) != nil {
		return false
	}
	switch file.Mode & unix.S_IFMT {
	case unix.S_IFCHR, unix.S_IFBLK:
		return true
	case unix.S_IFDIR:
		return isPlainFolder(path)
	}
	return false
}

func isPlainFolder(path string) bool {
	name, ok := strings.CutPrefix(path, devicesFolder)
	return ok && slices.Contains(plainFolders[:], name)
}

// ownTerminals are the paths of the terminals that the standard streams are.
func ownTerminals() (paths []string) {
	for _, stream := range []string{"0", "1", "2"} {
		path, err := os.Readlink("/proc/self/fd/" + stream)
		var file unix.Stat_t
		if err == nil && strings.HasPrefix(path, devicesFolder) && unix.Stat(path, &file) == nil && file.Mode&unix.S_IFMT == unix.S_IFCHR && isPlainDevice(file.Rdev) {
			paths = append(paths, path)
		}
	}
	return paths
}

// withoutDevices has every mount open no device.
func withoutDevices() error {
	all := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}
	err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &all)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.12
		return withoutDevicesEach()
	}
	return os.NewSyscallError("mount_setattr", err)
}

// withoutDevicesEach is for kernels that change one mount at a time. Mounts that others
// lie over cannot be reached, by nobody.
func withoutDevicesEach() error {
	mounts, err := openMounts().read()
	if err != nil {
		return err
	}
	for _, m := range mounts {
		flags, err := flagsOf(m.point)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.point, err)
		}
		if err := unix.Mount("", m.point, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NODEV|flags, ""); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("%s: %w", m.point, err)
		}
	}
	return nil
}

// tryDevices finds a mount on which a device could be opened that was not left, by what
// the kernel says of each.
func tryDevices(Program) string {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return "it cannot be told which there are: " + err.Error()
	}
	for line := range strings.Lines(string(text)) {
		const point, options, least = 4, 5, 7
		fields := strings.Fields(line)
		if len(fields) < least || slices.Contains(strings.Split(fields[options], ","), "nodev") {
			continue
		}
		path := unescape(fields[point])
		info, err := os.Lstat(path)
		if err == nil && info.IsDir() && !isPlainFolder(path) {
			return "those at " + path
		}
	}
	return ""
}
