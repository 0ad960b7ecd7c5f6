package audit

import (
	"math"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/boottime"
)

// readClocks reads the clocks of the machine.
func readClocks() reading {
	up := boottime.Now()
	if up == math.MaxInt64 { // it cannot be read
		return ownClocks()
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ownClocks()
	}
	return reading{wall: time.Now().Round(0), up: up, boot: strings.TrimSpace(string(boot))}
}
