package logs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
)

// A span is what a number is compared with.
type span struct {
	least, most int64
	compared    bool // with an operator: it has to hold whatever else is asked for
}

// parseSpan reads "N", "N..M", "N..", "..M", or a comparison such as ">N".
func parseSpan(value string, parse func(string) (int64, error)) (s span, err error) {
	const largest = 1<<63 - 1
	if from, to, ranged := strings.Cut(value, ".."); ranged && value != ".." {
		s = span{0, largest, false}
		if from != "" {
			s.least, err = parse(from)
		}
		if to != "" && err == nil {
			s.most, err = parse(to)
		}
		if err == nil && s.least > s.most {
			err = fmt.Errorf("%s is more than %s", from, to)
		}
		return s, err
	}
	number := strings.TrimLeft(value, "<>=")
	n, err := parse(number)
	if err != nil {
		return s, err
	}
	switch operator := value[:len(value)-len(number)]; operator {
	case "":
		return span{n, n, false}, nil
	case ">":
		return span{n + 1, largest, true}, nil
	case ">=":
		return span{n, largest, true}, nil
	case "<":
		return span{0, n - 1, true}, nil
	case "<=":
		return span{0, n, true}, nil
	default:
		return s, fmt.Errorf("%q is no comparison", operator)
	}
}

func numberKey(number func(*egress.Record) (int64, bool)) func(string, time.Time) (condition, bool, error) {
	return func(value string, _ time.Time) (condition, bool, error) {
		s, err := parseSpan(value, parseNumber)
		return func(r *egress.Record) bool {
			n, there := number(r)
			return there && n >= s.least && n <= s.most
		}, s.compared, err
	}
}

// bytesKey takes a bare number for a least.
func bytesKey(count func(*egress.RecordBytes) int64) func(string, time.Time) (condition, bool, error) {
	return func(value string, _ time.Time) (condition, bool, error) {
		if value != "" && value[0] >= '0' && value[0] <= '9' && !strings.Contains(value, "..") {
			value = ">=" + value
		}
		s, err := parseSpan(value, parseBytes)
		return func(r *egress.Record) bool {
			return r.Bytes != nil && count(r.Bytes) >= s.least && count(r.Bytes) <= s.most
		}, s.compared, err
	}
}

// tookKey compares how long a flow was open; a bare time is a least.
func tookKey(value string, _ time.Time) (condition, bool, error) {
	if value != "" && value[0] >= '0' && value[0] <= '9' && !strings.Contains(value, "..") {
		value = ">=" + value
	}
	s, err := parseSpan(value, func(s string) (int64, error) {
		d, err := parseDuration(s)
		return d.Milliseconds(), err
	})
	return func(r *egress.Record) bool {
		return r.Bytes != nil && r.Duration >= s.least && r.Duration <= s.most // only an end has bytes
	}, s.compared, err
}

// parseBytes reads a number of bytes: "512", "10k", "1.5M", "2G" (powers of
// 1000).
func parseBytes(s string) (int64, error) {
	digits := strings.TrimRight(s, "bkmgBKMG")
	unit, ok := map[string]float64{"": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9}[strings.ToLower(s[len(digits):])]
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || !ok || !(n >= 0 && n*unit < 1<<62) {
		return 0, fmt.Errorf("%q is not a number of bytes", s)
	}
	return int64(n * unit), nil
}

// parseDuration reads "90s", "1h30m", "250ms" or "2d".
func parseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a length of time", s)
	}
	return d, nil
}

func sinceKey(value string, now time.Time) (condition, bool, error) {
	limit, err := ParseMoment(value, now)
	return func(r *egress.Record) bool { return !r.Time.Before(limit) }, true, err
}

func untilKey(value string, now time.Time) (condition, bool, error) {
	limit, err := ParseMoment(value, now)
	return func(r *egress.Record) bool { return r.Time.Before(limit) }, true, err
}

// ParseMoment reads a time: so long ago ("90s", "1h30m", "2d"), today's clock
// ("09:30"), a day, or RFC 3339. Clock and day are in now's zone.
func ParseMoment(s string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if ago, err := time.ParseDuration(s); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if t, err := time.ParseInLocation(time.DateOnly, s, now.Location()); err == nil {
		return t, nil
	}
	for _, layout := range []string{"15:04", time.TimeOnly} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time", s)
}

// addressKey matches where one of the addresses is the value's, or in its network.
func addressKey(addrs func(*egress.Record) []string) func(string, time.Time) (condition, bool, error) {
	return func(value string, _ time.Time) (condition, bool, error) {
		network, err := parseNetwork(value)
		if err != nil {
			return nil, false, err
		}
		return func(r *egress.Record) bool {
			return slices.ContainsFunc(addrs(r), func(text string) bool {
				a, err := netip.ParseAddr(text)
				return err == nil && network.Contains(a.Unmap().WithZone(""))
			})
		}, false, nil
	}
}

func parseNetwork(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is no address and no network", s)
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// destinationAddrs are those that were decided, or the host where it is one.
func destinationAddrs(r *egress.Record) []string {
	if r.Dst == nil {
		return nil
	}
	return append([]string{r.Dst.Host, r.Dst.Addr}, r.Dst.Addrs...)
}

func sourceAddrs(r *egress.Record) []string {
	a, err := netip.ParseAddrPort(r.Src)
	if err != nil {
		return nil
	}
	return []string{a.Addr().String()}
}
