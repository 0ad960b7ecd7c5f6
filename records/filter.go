package records

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/spelling"
)

// A condition is one thing that a filter asks of a record. The record is a
// joined one: a record that ends a flow holds the words of the one that opened
// it.
type condition func(*egress.Record) bool

// A Filter is a set of conditions by key. A record passes when for every key
// at least one condition holds; the comparisons of one key must all hold.
type Filter struct {
	anyOf map[string][]condition
	allOf []condition
	kinds []string // the kinds that were asked for by name
}

// Match reports whether a joined record passes.
func (f *Filter) Match(r *egress.Record) bool {
	for _, c := range f.allOf {
		if !c(r) {
			return false
		}
	}
	for _, alternatives := range f.anyOf {
		if !slices.ContainsFunc(alternatives, func(c condition) bool { return c(r) }) {
			return false
		}
	}
	return true
}

// A FilterError is about a filter that was not understood.
type FilterError struct {
	Err  error
	Hint string // what to type next
}

func (e *FilterError) Error() string { return e.Err.Error() }
func (e *FilterError) Unwrap() error { return e.Err }

func refused(err error, hint string) error { return &FilterError{err, hint} }

// WantsRecords reports whether the filter asks for kinds of records that no
// decision stands in, so that there is nothing to group.
func (f *Filter) WantsRecords() bool {
	return slices.ContainsFunc(f.kinds, func(k string) bool {
		return k == "policy" || k == "start" || k == "stop" || k == "recovery" || k == "close"
	})
}

// ParseFilter reads the words of a filter: "key:value", or a part of a host.
// Times are relative to now. An error is a [*FilterError].
func ParseFilter(words []string, now time.Time) (*Filter, error) {
	f := &Filter{anyOf: map[string][]condition{}}
	for _, word := range words {
		key, value, found := strings.Cut(word, ":")
		if !found {
			key, value = "host", "*"+word+"*"
		}
		if value == "" || word == "" {
			return nil, refused(fmt.Errorf("the filter %q has no value", word), "egressd log host:example.com verdict:deny since:1h")
		}
		if err := f.add(key, value, now); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *Filter) add(key, value string, now time.Time) error {
	if text, ok := textOf(key); ok {
		return f.addText(key, value, text)
	}
	var c condition
	var err error
	switch key {
	case "up", "down":
		c, err = bytesCondition(key, value)
	case "since", "until":
		c, err = timeCondition(key, value, now)
	default:
		return unknownKey(key, value)
	}
	if err != nil {
		return refused(fmt.Errorf("%s:%s: %w", key, value, err), filterExamples[key])
	}
	f.allOf = append(f.allOf, c)
	return nil
}

func (f *Filter) addText(key, value string, text func(*egress.Record) string) error {
	if known := FilterValues[key]; known != nil && !slices.Contains(known, value) {
		near := spelling.Nearest(value, known)
		if near == "" {
			near = known[0]
		}
		return refused(fmt.Errorf("%s:%s: the values are %s", key, value, strings.Join(known, ", ")), "egressd log "+key+":"+near)
	}
	if key == "kind" {
		f.kinds = append(f.kinds, value)
	}
	pattern := strings.ToLower(value)
	if key == "proc" { // the file that is executed counts as well as what it is shown as
		f.anyOf[key] = append(f.anyOf[key], func(r *egress.Record) bool {
			return globMatch(pattern, strings.ToLower(Process(r))) || globMatch(pattern, strings.ToLower(Exe(r)))
		})
		return nil
	}
	if key == "flow" {
		pattern += "*"
	}
	f.anyOf[key] = append(f.anyOf[key], func(r *egress.Record) bool {
		return globMatch(pattern, strings.ToLower(text(r)))
	})
	return nil
}

// FilterValues lists the values of the keys that have only a few.
var FilterValues = map[string][]string{
	"verdict": {"deny", "allow", "ask"},
	"via":     {"connect", "http", "socks5", "transparent", "dns", "unknown"},
	"shadow":  {"deny", "allow", "ask", "inspect"},
	"marked":  {"yes", "no"},
	"kind":    {"open", "close", "request", "dns", "refused", "policy", "start", "stop", "recovery"},
}

var filterExamples = map[string]string{
	"up":    "egressd log 'up:>10k'   (k, M, G; >, >=, <, <=)",
	"down":  "egressd log 'down:>1M'   (k, M, G; >, >=, <, <=)",
	"since": "egressd log since:1h   (or 2d, 09:30, 2026-11-20, 2026-11-20T09:30:00Z)",
	"until": "egressd log until:10m   (or 2d, 09:30, 2026-11-20, 2026-11-20T09:30:00Z)",
}

// FilterKeys are the keys that a filter may ask for.
var FilterKeys = []string{
	"host", "port", "verdict", "class", "rule", "layer", "sandbox", "via", "method", "path", "proc",
	"shadow", "marked", "kind", "flow", "outcome", "policy", "up", "down", "since", "until",
}

func unknownKey(key, value string) error {
	err := fmt.Errorf("there is no filter %q", key)
	if strings.Contains(key, ".") {
		return refused(err, fmt.Sprintf("egressd log host:%s port:%s", key, value))
	}
	if near := spelling.Nearest(key, FilterKeys); near != "" {
		return refused(err, fmt.Sprintf("did you mean %s:%s?", near, value))
	}
	return refused(err, "the filters are "+strings.Join(FilterKeys, " "))
}

// textOf returns how to read the text that a key is about.
func textOf(key string) (func(*egress.Record) string, bool) {
	switch key {
	case "host":
		return Host, true
	case "port":
		return Port, true
	case "method", "path":
		return httpText(key), true
	case "verdict", "class", "rule", "layer", "policy", "marked":
		return decisionText(key), true
	case "shadow":
		return recordShadow, true
	case "proc":
		return Process, true
	case "sandbox":
		return func(r *egress.Record) string { return r.Sandbox }, true
	case "via":
		return func(r *egress.Record) string { return r.Via }, true
	case "kind":
		return func(r *egress.Record) string { return string(r.Kind) }, true
	case "flow":
		return func(r *egress.Record) string { return r.Flow }, true
	case "outcome":
		return func(r *egress.Record) string { return r.Outcome }, true
	default:
		return nil, false
	}
}

func recordShadow(r *egress.Record) string {
	if r.Shadow == nil {
		return ""
	}
	return ShadowAction(r.Shadow)
}

func httpText(key string) func(*egress.Record) string {
	return func(r *egress.Record) string {
		switch {
		case r.HTTP == nil:
			return ""
		case key == "method":
			return r.HTTP.Method
		default:
			return r.HTTP.Path
		}
	}
}

func decisionText(key string) func(*egress.Record) string {
	return func(r *egress.Record) string {
		d := r.Decision
		if d == nil {
			return ""
		}
		switch key {
		case "verdict":
			return d.Action
		case "class":
			return d.Class
		case "rule":
			return d.Rule
		case "layer":
			return d.Layer
		case "marked":
			return map[bool]string{true: "yes", false: "no"}[d.Log]
		default:
			return d.Policy
		}
	}
}

// globMatch reports whether pattern, in which "*" stands for any text, is s.
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

// bytesCondition reads a comparison such as ">10k"; a bare number is a least.
func bytesCondition(key, value string) (condition, error) {
	operator, number := ">=", value
	for _, o := range []string{">=", "<=", ">", "<"} {
		if rest, ok := strings.CutPrefix(value, o); ok {
			operator, number = o, rest
			break
		}
	}
	limit, err := parseBytes(number)
	if err != nil {
		return nil, err
	}
	return func(r *egress.Record) bool {
		if r.Bytes == nil {
			return false
		}
		n := r.Bytes.Down
		if key == "up" {
			n = r.Bytes.Up
		}
		return compare(n, operator, limit)
	}, nil
}

func compare(n int64, operator string, limit int64) bool {
	switch operator {
	case ">":
		return n > limit
	case "<":
		return n < limit
	case "<=":
		return n <= limit
	default:
		return n >= limit
	}
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

func timeCondition(key, value string, now time.Time) (condition, error) {
	limit, err := ParseMoment(value, now)
	if err != nil {
		return nil, err
	}
	if key == "since" {
		return func(r *egress.Record) bool { return !r.Time.Before(limit) }, nil
	}
	return func(r *egress.Record) bool { return r.Time.Before(limit) }, nil
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
