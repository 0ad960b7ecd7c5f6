package jailinit

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ofRoot is what the kernel lets the machine's root write without any capability,
// and acts upon outside of every namespace: it starts the program that core_pattern
// or uevent_helper names, sends its log to a host that configfs names, and exports
// disks over the network.
var ofRoot = [...]string{"/proc/sys", "/proc/sysrq-trigger", "/proc/acpi", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/scsi", "/proc/driver"}

// sealKernel keeps a program of the machine's root from that. For others the
// files are closed anyway, and then nothing is mounted over a part of /proc: with
// it the kernel would refuse nested sandboxes a /proc of their own.
func sealKernel() error {
	if unix.Access("/proc/sys/kernel/core_pattern", unix.W_OK) != nil && unix.Access("/sys/kernel/uevent_helper", unix.W_OK) != nil && unix.Access("/sys/power/state", unix.W_OK) != nil {
		return nil
	}
	for _, path := range ofRoot {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if err := fix(path); err != nil {
			return fmt.Errorf("keep %s as it is: %w", path, err)
		}
	}
	return sealFolder("/sys")
}

// sealFolder makes a folder read-only, with all file systems that are mounted in it.
func sealFolder(path string) error {
	on := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	err := unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &on)
	if errors.Is(err, unix.ENOSYS) {
		return fix(path) // before Linux 5.12; what is mounted in it is not there any more
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // nothing is mounted there
	}
	if err != nil {
		return fmt.Errorf("keep %s as it is: %w", path, err)
	}
	return nil
}
