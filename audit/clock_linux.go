package audit

import (
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// readClocks reads the clocks of the machine.
func readClocks() reading {
	const sinceBoot = 7 // CLOCK_BOOTTIME, which nobody can set
	var at syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, sinceBoot, uintptr(unsafe.Pointer(&at)), 0); errno != 0 {
		return ownClocks()
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ownClocks()
	}
	return reading{wall: time.Now().Round(0), up: time.Duration(at.Nano()), boot: strings.TrimSpace(string(boot))}
}
