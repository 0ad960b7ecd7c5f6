// Package quantity writes numbers, sizes and times for people.
package quantity

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Plural is n of what, with an s where n is not 1.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Duration is d for a person, the shorter the more exactly.
func Duration(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// Span is how long something is for, in the units of the command line: 1h30m.
func Span(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Clock is the time of day in the reader's zone, with the day where it is not
// today's.
func Clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateOnly + " " + time.TimeOnly)
}

// Bytes is n for a person, in powers of 1000.
func Bytes(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB", "TB", "PB"} {
		if value /= 1000; value < 999.5 {
			break
		}
	}
	if value < 9.95 {
		return fmt.Sprintf("%.1f %s", value, unit)
	}
	return fmt.Sprintf("%.0f %s", value, unit)
}

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

// ParseBytes reads a number of bytes: 5000, 5kB, 5MB, 5GB in powers of 1000, or 5KiB, 5MiB, 5GiB in powers of 1024.
func ParseBytes(text string) (int64, error) {
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	unit, known := map[string]int64{"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[strings.TrimSpace(text[digits:])]
	if err != nil || !known || n < 1 || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is not a number of bytes of at least 1; write it like 5MB, 512KiB or 5000", text)
	}
	return n * unit, nil
}
