package logs

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/record"
)

// FilterKeys are the keys that a filter may use.
var FilterKeys = []string{
	"host", "domain", "port", "addr", "verdict", "class", "rule", "layer", "sandbox", "container", "via", "src", "method", "path", "status", "sni", "proc",
	"shadow", "marked", "kind", "id", "flow", "seq", "outcome", "policy", "up", "down", "query", "took", "since", "until", "run",
}

// FilterHelp shows each key of a filter, for the help of the commands and of the page.
const FilterHelp = `  host:*.test  domain:example.com  port:443  addr:10.0.0.0/8  sni:*.test
  verdict:deny|allow|ask  class:default-deny  rule:gh-read  layer:user  policy:sha256:3f2a*
  sandbox:ci  container:web  proc:curl  via:connect  src:127.0.0.1
  method:POST  path:/repos/*  status:500..599  outcome:network-*  marked:yes  kind:open
  up:>10k  down:<=1M  query:>1k  took:>5s   (k, M and G; >, >=, <, <= and ranges)
  since:1h  since:2026-11-20  until:09:30   (and every time that egressd prints)
  id:01KB6ZQ4  flow:01KB6ZQ4   a request by its id, or the beginning of it
  seq:20014  seq:20014..20030  the requests that records belong to, by number
  run:last|ID|all              the log of a run of egressd run
  shadow:deny|allow|ask|inspect   what a shadow policy would have decided`

// FilterValues lists the values of each key that has a fixed set of values.
var FilterValues = map[string][]string{
	"verdict": {"deny", "allow", "ask"},
	"via":     {"connect", "http", "socks5", "transparent", "dns", "unknown"},
	"shadow":  {"deny", "allow", "ask", "inspect"},
	"marked":  {"yes", "no"},
	"kind":    {"open", "close", "request", "dns", "refused", "policy", "start", "stop", "recovery", "signal", "admin", "heartbeat"},
}

type filterKey struct {
	// read parses a value. If every is true, the condition must hold even if another value of the same key
	// matches.
	read    func(value string, now time.Time) (c condition, every bool, err error)
	values  []string // all values, or nil if any text is allowed
	example string   // a filter shown with an error
}

var filterKeys = func() map[string]*filterKey {
	keys := map[string]*filterKey{
		"addr":   {read: addressKey(destinationAddrs), example: "addr:10.0.0.0/8"},
		"src":    {read: addressKey(sourceAddrs), example: "src:127.0.0.1"},
		"up":     {read: bytesKey(func(b *record.Bytes) int64 { return b.Up }), example: "'up:>10k'   (k, M, G; >, >=, <, <=; up:10k..1M)"},
		"down":   {read: bytesKey(func(b *record.Bytes) int64 { return b.Down }), example: "'down:>1M'   (k, M, G; >, >=, <, <=; down:10k..1M)"},
		"query":  {read: queryKey, example: "'query:>1k'   (k, M; >, >=, <, <=; query:100..500)"},
		"port":   {read: numberKey(func(r *record.Record) int64 { return int64(part(r.Dst).Port) }), example: "port:443   (or port:8000..8999, 'port:>1023')"},
		"took":   {read: tookKey, example: "'took:>5s'   (or took:1m..1h)"},
		"since":  {read: sinceKey, example: "since:1h   (or 2d, 09:30, 2026-11-20, 2026-11-20T09:30:00Z)"},
		"until":  {read: untilKey, example: "until:10m   (or 2d, 09:30, 2026-11-20, 2026-11-20T09:30:00Z)"},
		"status": {read: numberKey(func(r *record.Record) int64 { return int64(part(r.HTTP).Status) }), example: "status:404   (or status:500..599)"},
		"proc":   {read: textKey(Process, Exe)},
		"seq":    {read: seqKey, example: "seq:20014   (or seq:20014..20030)"},
		"flow":   {read: flowKey},
		"id":     {read: flowKey}, // as replies call it

		"container": {read: textKey(
			func(r *record.Record) string { return part(r.Container).Name }, func(r *record.Record) string { return part(r.Container).ID })},
	}
	for key, text := range filterTexts {
		keys[key] = &filterKey{read: textKey(text), values: FilterValues[key]}
	}
	return keys
}()

// filterTexts are the keys that match a text of the record.
var filterTexts = map[string]func(*record.Record) string{
	"host":    Host,
	"domain":  domainOf,
	"sandbox": func(r *record.Record) string { return r.Sandbox },
	"via":     func(r *record.Record) string { return r.Via },
	"kind":    func(r *record.Record) string { return string(r.Kind) },
	"outcome": func(r *record.Record) string { return string(r.Outcome) },
	"method":  func(r *record.Record) string { return part(r.HTTP).Method },
	"path":    func(r *record.Record) string { return part(r.HTTP).Path },
	"verdict": func(r *record.Record) string { return part(r.Decision).Action },
	"class":   func(r *record.Record) string { return part(r.Decision).Class },
	"rule":    func(r *record.Record) string { return part(r.Decision).Rule },
	"layer":   func(r *record.Record) string { return part(r.Decision).Layer },
	"policy":  func(r *record.Record) string { return part(r.Decision).Policy },
	"marked": func(r *record.Record) string {
		if r.Decision == nil {
			return ""
		}
		return map[bool]string{true: "yes", false: "no"}[r.Decision.Log]
	},
	"sni":    func(r *record.Record) string { return part(r.TLS).SNI },
	"shadow": func(r *record.Record) string { return ShadowAction(part(r.Shadow)) },
}

// part returns a part of a record, or an empty one if the record has none.
func part[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// known returns an error if the key has a fixed set of values and t's value is not among them.
func (k *filterKey) known(t term) error {
	if k.values == nil || slices.Contains(k.values, t.value) {
		return nil
	}
	near := spelling.Nearest(t.value, k.values)
	if near == "" {
		near = k.values[0]
	}
	return &FilterError{
		Err: fmt.Errorf("%s:%s: the values are %s", t.key, t.value, strings.Join(k.values, ", ")),
		Try: t.key + ":" + near,
	}
}

// textKey matches if one of the texts matches the value. In the value "*" stands for any text. Case is
// ignored.
func textKey(texts ...func(*record.Record) string) func(string, time.Time) (condition, bool, error) {
	return func(value string, _ time.Time) (condition, bool, error) {
		pattern := strings.ToLower(value)
		return func(r *record.Record) bool {
			return slices.ContainsFunc(texts, func(text func(*record.Record) string) bool {
				return globMatch(pattern, strings.ToLower(text(r)))
			})
		}, false, nil
	}
}

// flowKey matches a flow id by its prefix.
func flowKey(value string, _ time.Time) (condition, bool, error) {
	pattern := strings.ToLower(value) + "*"
	return func(r *record.Record) bool { return r.Flow != "" && globMatch(pattern, strings.ToLower(r.Flow)) }, false, nil
}

// globMatch reports whether s matches pattern, where "*" stands for any text.
func globMatch(pattern, s string) bool {
	prefix, rest, starred := strings.Cut(pattern, "*")
	if !starred {
		return pattern == s
	}
	if !strings.HasPrefix(s, prefix) {
		return false
	}
	s = s[len(prefix):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s, rest = s[i+len(part):], after
	}
}

// parseNumber parses a non-negative number of at most 32 bits.
func parseNumber(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return int64(n), nil
}

// A span is an inclusive range of numbers.
type span struct {
	least, most int64
	compared    bool // written with a comparison sign; all comparisons of one key must hold
}

// parseSpan parses "N", "N..M", "N..", "..M", or a comparison such as ">N".
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
	switch comparison := value[:len(value)-len(number)]; comparison {
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
		return s, fmt.Errorf("%q is no comparison", comparison)
	}
}

// numberKey matches a number, of which 0 stands for none.
func numberKey(number func(*record.Record) int64) func(string, time.Time) (condition, bool, error) {
	return func(value string, _ time.Time) (condition, bool, error) {
		s, err := parseSpan(value, parseNumber)
		return func(r *record.Record) bool {
			n := number(r)
			return n != 0 && n >= s.least && n <= s.most
		}, s.compared, err
	}
}

// bytesKey matches a byte count. A bare number is a minimum.
func bytesKey(count func(*record.Bytes) int64) func(string, time.Time) (condition, bool, error) {
	return func(value string, _ time.Time) (condition, bool, error) {
		s, err := parseSpan(atLeast(value), parseBytes)
		return func(r *record.Record) bool {
			return r.Bytes != nil && count(r.Bytes) >= s.least && count(r.Bytes) <= s.most
		}, s.compared, err
	}
}

// queryKey matches the length of a query in bytes. A bare number is a minimum. A request without a query matches nothing.
func queryKey(value string, _ time.Time) (condition, bool, error) {
	s, err := parseSpan(atLeast(value), parseBytes)
	return func(r *record.Record) bool {
		n := part(r.HTTP).QueryBytes
		return n != 0 && n >= s.least && n <= s.most
	}, s.compared, err
}

// atLeast makes a bare number a minimum.
func atLeast(value string) string {
	if value != "" && value[0] >= '0' && value[0] <= '9' && !strings.Contains(value, "..") {
		return ">=" + value
	}
	return value
}

// tookKey matches how long a flow was open. A bare duration is a minimum.
func tookKey(value string, _ time.Time) (condition, bool, error) {
	s, err := parseSpan(atLeast(value), func(s string) (int64, error) {
		d, err := quantity.ParseDuration(s)
		return d.Milliseconds(), err
	})
	return func(r *record.Record) bool {
		return r.Bytes != nil && r.Duration >= s.least && r.Duration <= s.most // only a record that ends a flow has Bytes
	}, s.compared, err
}

// parseBytes parses a number of bytes in powers of 1000: "512", "10k", "1.5M" or "2G".
func parseBytes(s string) (int64, error) {
	digits := strings.TrimRight(s, "bkmgBKMG")
	unit, ok := map[string]float64{"": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9}[strings.ToLower(s[len(digits):])]
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || !ok || !(n >= 0 && n*unit < 1<<62) {
		return 0, fmt.Errorf("%q is not a number of bytes", s)
	}
	return int64(n * unit), nil
}

func sinceKey(value string, now time.Time) (condition, bool, error) {
	limit, err := ParseMoment(value, now)
	return func(r *record.Record) bool { return !r.Time.Before(limit) }, true, err
}

func untilKey(value string, now time.Time) (condition, bool, error) {
	limit, err := ParseMoment(value, now)
	return func(r *record.Record) bool { return r.Time.Before(limit) }, true, err
}

// momentLayouts are the layouts of whole times, as they are printed. A time may have a fraction of a second.
var momentLayouts = []string{
	time.RFC3339, time.DateTime, time.DateTime + "Z07:00", time.DateTime + " MST", time.DateTime + " -0700", "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04",
	"2006-01-02T15Z07:00", "20060102-150405",
}

// ParseMoment parses a time: an age ("90s", "1h30m", "2d"), the last time that a clock showed something ("09:30"), a day ("yesterday"),
// or any time that egressd prints, in the zone of now if it names none. Days are in the zone of now, too.
func ParseMoment(s string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if ago, err := time.ParseDuration(s); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range momentLayouts {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	if back, ok := map[string]int{"today": 0, "yesterday": 1}[s]; ok {
		return time.Date(now.Year(), now.Month(), now.Day()-back, 0, 0, 0, 0, now.Location()), nil
	}
	if t, err := time.ParseInLocation(time.DateOnly, s, now.Location()); err == nil {
		return t, nil
	}
	in := now
	if clock, utc := strings.CutSuffix(s, " UTC"); utc {
		s, in = clock, now.UTC()
	}
	if t, err := parseClock(s); err == nil {
		last := time.Date(in.Year(), in.Month(), in.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), in.Location())
		if last.After(now) {
			last = last.AddDate(0, 0, -1)
		}
		return last, nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time", s)
}

// parseClock parses the time of a day: "09:30", "09:30:15" or "09:30:15.25".
func parseClock(s string) (t time.Time, err error) {
	if t, err = time.Parse("15:04", s); err != nil {
		t, err = time.Parse(time.TimeOnly, s)
	}
	return t, err
}

// addressKey matches if one of the record's addresses equals the value or lies in its network.
func addressKey(addrs func(*record.Record) []string) func(string, time.Time) (condition, bool, error) {
	return func(value string, _ time.Time) (condition, bool, error) {
		network, err := parseNetwork(value)
		if err != nil {
			return nil, false, err
		}
		return func(r *record.Record) bool {
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

// destinationAddrs returns the decided addresses, the one that was asked for, and the host, which may be an address.
func destinationAddrs(r *record.Record) []string {
	if r.Dst == nil {
		return nil
	}
	return append([]string{r.Dst.Host, r.Dst.Addr, r.Dst.Asked}, r.Dst.Addrs...)
}

func sourceAddrs(r *record.Record) []string {
	a, err := netip.ParseAddrPort(r.Src)
	if err != nil {
		return nil
	}
	return []string{a.Addr().String()}
}
