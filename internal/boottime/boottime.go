// Package boottime is a clock for what ends at a time that a person has given: it goes on
// while the machine sleeps, where timers and the readings of [time.Now] that are compared
// stand still, and nobody sets it.
package boottime

import (
	"math"
	"syscall"
	"time"
	"unsafe"
)

// Now reads CLOCK_BOOTTIME, see clock_gettime(2). Where it cannot be read, everything is over.
func Now() time.Duration {
	const clockBoottime = 7
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return math.MaxInt64
	}
	return time.Duration(t.Nano())
}
