package jailinit

import (
	"errors"
	"fmt"
	"os"
	slash "path"
	"slices"
	"strings"
	"time"

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

// closeDevices makes devices impossible to open in the whole file system, except harmless ones, the program's
// terminals, and those in kept. An open disk could be written past every mount, a keyboard could be typed on
// (uinput, uhid, input), a modem, an adapter or a virtual machine's socket could send. Devices keep their
// names; opening one fails with EACCES, and so does opening a device that is created later.
//
// A terminal is known by its name below /dev/pts, and the kernel makes a new terminal when a program opens ptmx
// in the folder that holds pts (fs/devpts). With a terminal, /dev therefore stays the host's, and every device
// in it that the user may open is hidden. Without a terminal, the sandbox gets its own pts.
func closeDevices(kept []string, terminals []string) error {
	plain := append(devicesToLeave(), existing(kept)...)
	if len(terminals) > 0 {
		plain = []string{slash.Clean(devicesFolder)}
	}
	var left []leftDevice
	for _, path := range plain {
		tree, err := cloneTree(path)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EACCES) {
			continue // nor can the program open it
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
	if len(terminals) == 0 {
		return ownTerminals()
	}
	mounts, err := openMounts().read()
	if err != nil {
		return err
	}
	below := func(path string) bool {
		return strings.HasPrefix(path, devicesFolder) && !isPlainFolder(path) && isFolder(path)
	}
	if err := withoutDevicesEach(mounts, below); err != nil {
		return err
	}
	return hideDevices(append(kept, terminals...))
}

// ownTerminals has the sandbox make its terminals in a folder of its own.
func ownTerminals() error {
	if info, err := os.Lstat(ptsFolder); err != nil || !info.IsDir() {
		return nil
	}
	if err := unix.Mount("devpts", ptsFolder, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("mount %s: %w", ptsFolder, err)
	}
	if info, err := os.Lstat(ptmx); err != nil || info.Mode()&os.ModeDevice == 0 {
		return nil // a link, in most containers
	}
	return unix.Mount(ptsFolder+"/ptmx", ptmx, "", unix.MS_BIND, "")
}

const (
	ptmx      = devicesFolder + "ptmx"
	ptsFolder = devicesFolder + "pts"
)

// existing are those of paths at which there is a device.
func existing(paths []string) (devices []string) {
	for _, path := range paths {
		var file unix.Stat_t
		if unix.Stat(path, &file) == nil && isDevice(&file) {
			devices = append(devices, path)
		}
	}
	return devices
}

func isDevice(file *unix.Stat_t) bool {
	return file.Mode&unix.S_IFMT == unix.S_IFCHR || file.Mode&unix.S_IFMT == unix.S_IFBLK
}

func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// closeLateMounts closes the devices of mounts that the host has made since closeDevices, because new mounts of
// the host appear in the jail, too. It does not close later ones.
func closeLateMounts(mounts []mounted) error {
	return withoutDevicesEach(mounts, func(path string) bool {
		return path != slash.Clean(devicesFolder) && !isPlainFolder(path) && isFolder(path)
	})
}

// closeLast closes the devices of mounts that the host has made during rearrange. What the host mounts from now on counts as
// mounted while the program runs.
func (p *Program) closeLast() error {
	mounts, err := openMounts().read()
	if err != nil {
		return err
	}
	if err := closeLateMounts(mounts); err != nil {
		return err
	}
	p.settled = map[string]bool{}
	for _, m := range mounts {
		p.settled[m.id] = true
	}
	return nil
}

// mayOpen reports whether the user may open a device, to read or to write, now or after a change of its mode.
func mayOpen(path string) bool {
	return mayChange(path) || unix.Access(path, unix.R_OK) == nil
}

// hideDevices hides those below /dev that the user may open, but for plain ones and those of
// kept.
func hideDevices(kept []string) error {
	return eachDevice(func(path string, file *unix.Stat_t) error {
		if slices.Contains(kept, path) || !mayOpen(path) {
			return nil
		}
		if err := hide(path); err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
		return nil
	})
}

// eachDevice calls do for the devices below /dev that are not plain ones.
func eachDevice(do func(path string, file *unix.Stat_t) error) error {
	folders := []string{slash.Clean(devicesFolder)}
	for len(folders) > 0 {
		folder := folders[0]
		folders = folders[1:]
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue // nor can the program look into it
		}
		for _, e := range entries {
			path := folder + "/" + e.Name()
			var file unix.Stat_t
			switch {
			case e.IsDir() && !isPlainFolder(path) && !slices.Contains(otherFolders[:], path):
				folders = append(folders, path)
			case isPlain(path) || unix.Lstat(path, &file) != nil || !isDevice(&file) || isNullDevice(&file): // as mounted: the folder may say otherwise
			default:
				if err := do(path, &file); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// otherFolders of /dev have other things in them.
var otherFolders = [...]string{"/dev/fd", "/dev/shm", "/dev/mqueue", "/dev/hugepages"}

func isPlain(path string) bool {
	name, ok := strings.CutPrefix(path, devicesFolder)
	return ok && (slices.Contains(plainDevices[:], name) || hasPlainPrefix(name))
}

func isNullDevice(file *unix.Stat_t) bool {
	return file.Mode&unix.S_IFMT == unix.S_IFCHR && file.Rdev == unix.Mkdev(1, 3)
}

type leftDevice struct {
	path string
	tree int
}

// devicesToLeave are paths of devices, and folders of them. Not all of them exist.
func devicesToLeave() (paths []string) {
	for _, name := range plainDevices {
		if path := devicesFolder + name; path != ptmx { // see ownTerminals
			paths = append(paths, path)
		}
	}
	for _, name := range plainFolders {
		if path := devicesFolder + name; path != ptsFolder {
			paths = append(paths, path)
		}
	}
	entries, _ := os.ReadDir(devicesFolder)
	for _, e := range entries {
		if e.Type()&os.ModeDevice != 0 && hasPlainPrefix(e.Name()) {
			paths = append(paths, devicesFolder+e.Name())
		}
	}
	return paths
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
		return isPlainFolder(path) || path == slash.Clean(devicesFolder)
	}
	return false
}

func isPlainFolder(path string) bool {
	name, ok := strings.CutPrefix(path, devicesFolder)
	return ok && slices.Contains(plainFolders[:], name)
}

// terminals are the paths of those that the standard streams are.
func terminals() (paths []string) {
	for _, stream := range []string{"0", "1", "2"} {
		path, err := os.Readlink("/proc/self/fd/" + stream)
		var file unix.Stat_t
		if err != nil || !strings.HasPrefix(path, devicesFolder) || unix.Stat(path, &file) != nil || file.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if unix.Major(file.Rdev) != 1 && isPlainDevice(file.Rdev) {
			paths = append(paths, path)
		}
	}
	return paths
}

func withoutDevices() error {
	all := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV}
	err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &all)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.12
		mounts, err := openMounts().read()
		if err != nil {
			return err
		}
		return withoutDevicesEach(mounts, func(string) bool { return true })
	}
	return os.NewSyscallError("mount_setattr", err)
}

// withoutDevicesEach has those of mounts open no device that are wanted, one at a time. Those that
// others lie over cannot be reached, by nobody.
func withoutDevicesEach(mounts []mounted, wanted func(path string) bool) error {
	for _, m := range mounts {
		if !m.opens || !wanted(m.point) {
			continue
		}
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

// tryDevices returns a device that could be opened although it should be closed, judged by the flags of each
// mount and, if /dev is the host's, by each device in it. A machine that mounts and unmounts something again and again may give the
// id of a settled mount to another one, so tryDevices looks several times.
func tryDevices(p Program) (found string) {
	for looks := 0; looks < mountLooks; looks++ {
		if found = openDevice(p); found == "" {
			break
		}
		time.Sleep(mountPause)
	}
	return found
}

const (
	mountLooks = 100
	mountPause = time.Millisecond
)

func openDevice(p Program) string {
	mounts, err := openMounts().read()
	if err != nil {
		return "it cannot be told which there are: " + err.Error()
	}
	dev := slash.Clean(devicesFolder)
	opens := map[string]bool{} // by where they are; the last counts
	for _, m := range mounts {
		if p.settled == nil || p.settled[m.id] {
			opens[m.point] = m.opens
		}
	}
	for path, open := range opens {
		var file unix.Stat_t
		switch {
		case !open || path == dev || isPlainFolder(path) || isPlain(path) || slices.Contains(p.devices, path) || unix.Lstat(path, &file) != nil:
		case file.Mode&unix.S_IFMT == unix.S_IFDIR, isDevice(&file) && !isNullDevice(&file):
			return "those at " + path
		}
	}
	if !opens[dev] {
		return ""
	}
	found := ""
	_ = eachDevice(func(path string, _ *unix.Stat_t) error {
		if mayOpen(path) && !slices.Contains(p.devices, path) {
			found = path
		}
		return nil
	})
	return found
}
