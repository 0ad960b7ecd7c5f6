package boottime

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// uptime is what the kernel says, in hundredths of a second that have passed.
func uptime(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	up, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(up * float64(time.Second))
}

func TestNowIsTheTimeSinceBoot(t *testing.T) {
	before := uptime(t)
	now := Now()
	if after := uptime(t) + 10*time.Millisecond; now < before || now > after {
		t.Errorf("%s after boot, which was between %s and %s ago", now, before, after)
	}
}
