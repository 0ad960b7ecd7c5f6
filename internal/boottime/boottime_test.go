package boottime

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestNowIsTheTimeSinceBoot(t *testing.T) {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	up, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	before := time.Duration(up * float64(time.Second))
	if now := Now(); now < before || now > before+time.Minute {
		t.Errorf("%s after boot, which was %s ago", now, before)
	}
}
