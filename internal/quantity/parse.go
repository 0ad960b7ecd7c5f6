package quantity

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseDuration parses "90s", "1h30m", "250ms" or "2d". A day has 24 hours.
func ParseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a length of time; write 90s, 1h30m or 1d", s)
	}
	return d, nil
}
