package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ofRoot is what the kernel lets the machine's root write without any capability,
// and acts upon outside of every namespace: it starts the program that core_pattern
// or uevent_helper names.
var ofRoot = [...]string{"/proc/sys", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"}

// sealKernel keeps a program of the machine's root from that. For others the
// files are closed anyway, and then nothing is mounted over a part of /proc: with
// it the kernel would refuse nested sandboxes a /proc of their own.
func sealKernel() error {
	for _, path := range ofRoot {
		if !kernelWritable(path) {
			continue
		}
		if err := fix(path); err != nil {
			return fmt.Errorf("keep %s as it is: %w", path, err)
		}
	}
	return nil
}

func kernelWritable(path string) bool {
	if path == "/proc/sys" {
		path = "/proc/sys/kernel/core_pattern"
	}
	return unix.Access(path, unix.W_OK) == nil
}
