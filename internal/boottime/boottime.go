// Package boottime is a clock for what ends at a time that a person has given: it goes on
// while the machine sleeps, where timers and the readings of [time.Now] that are compared
// stand still, and nobody sets it.
package boottime

import (
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Now reads the clock, see clock_gettime(2): CLOCK_BOOTTIME of Linux, and CLOCK_MONOTONIC of macOS, which counts
// the time asleep, too. If it cannot be read, Now returns the last time there is, and everything is over.
func Now() time.Duration {
	clock := int32(7)
	if runtime.GOOS == "darwin" {
		clock = 6
	}
	var t unix.Timespec
	if unix.ClockGettime(clock, &t) != nil {
		return math.MaxInt64
	}
	return time.Duration(t.Nano())
}
