package logs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/spelling"
)

// FilterKeys are the keys that a filter may ask for.
var FilterKeys = []string{
	"host", "port", "addr", "verdict", "class", "rule", "layer", "sandbox", "container", "via", "src", "method", "path", "status", "sni", "proc",
	"shadow", "marked", "kind", "flow", "outcome", "policy", "up", "down", "took", "since", "until", "run",
}

// FilterValues lists the values of the keys that have only a few.
var FilterValues = map[string][]string{
	"verdict": {"deny", "allow", "ask"},
	"via":     {"connect", "http", "socks5", "transparent", "dns", "unknown"},
	"shadow":  {"deny", "allow", "ask", "inspect"},
	"marked":  {"yes", "no"},
	"kind":    {"open", "close", "request", "dns", "refused", "policy", "start", "stop", "recovery", "signal", "admin"},
}

// A filterKey says how the value of a key is read.
type filterKey struct {
	// read returns what a value asks for, and whether that has to hold even if
	// another value of the key does.
	read    func(value string, now time.Time) (c condition, every bool, err error)
	values  []string // where there are only a few
	example string   // a filter, for an error
}

var filterKeys = func() map[string]*filterKey {
	keys := map[string]*filterKey{
		"addr":  {read: addressKey(destinationAddrs), example: "addr:10.0.0.0/8"},
		"src":   {read: addressKey(sourceAddrs), example: "src:127.0.0.1"},
		"up":    {read: bytesKey(func(b *egress.RecordBytes) int64 { return b.Up }), example: "'up:>10k'   (k, M, G; >, >=, <, <=; up:10k..1M)"},
		"down":  {read: bytesKey(func(b *egress.RecordBytes) int64 { return b.Down }), example: "'down:>1M'   (k, M, G; >, >=, <, <=; down:10k..1M)"},
		"port":  {read: numberKey(portNumber), example: "port:443   (or port:8000..8999, 'port:>1023')"},
		"took":  {read: tookKey, example: "'took:>5s'   (or took:1m..1h)"},
		"since": {read: sinceKey, example: "since:1h   (or 2d, 09:30, 2026-11-20, 2026-11-20T09:30:00Z)"},
		"until": {read: untilKey, example: "until:10m   (or 2d, 09:30, 2026-11-20, 2026-11-20T09:30:00Z)"},
		"status": {read: numberKey(func(r *egress.Record) (int64, bool) {
			return int64(statusOf(r)), statusOf(r) != 0
		}), example: "status:404   (or status:500..599)"},
		"proc": {read: textKey(Process, Exe)},
		"flow": {read: flowKey},

		"container": {read: textKey(containerName, containerID)},
	}
	for key, text := range filterTexts {
		keys[key] = &filterKey{read: textKey(text), values: FilterValues[key]}
	}
	return keys
}()

// filterTexts are the keys whose values are texts.
var filterTexts = map[string]func(*egress.Record) string{
	"host":    Host,
	"sandbox": func(r *egress.Record) string { return r.Sandbox },
	"via":     func(r *egress.Record) string { return r.Via },
	"kind":    func(r *egress.Record) string { return string(r.Kind) },
	"outcome": func(r *egress.Record) string { return r.Outcome },
	"method":  httpText(func(h *egress.RecordHTTP) string { return h.Method }),
	"path":    httpText(func(h *egress.RecordHTTP) string { return h.Path }),
	"verdict": decisionText(func(d *egress.RecordDecision) string { return d.Action }),
	"class":   decisionText(func(d *egress.RecordDecision) string { return d.Class }),
	"rule":    decisionText(func(d *egress.RecordDecision) string { return d.Rule }),
	"layer":   decisionText(func(d *egress.RecordDecision) string { return d.Layer }),
	"policy":  decisionText(func(d *egress.RecordDecision) string { return d.Policy }),
	"marked":  decisionText(func(d *egress.RecordDecision) string { return map[bool]string{true: "yes", false: "no"}[d.Log] }),
	"sni": func(r *egress.Record) string {
		if r.TLS == nil {
			return ""
		}
		return r.TLS.SNI
	},
	"shadow": func(r *egress.Record) string {
		if r.Shadow == nil {
			return ""
		}
		return ShadowAction(r.Shadow)
	},
}

func httpText(text func(*egress.RecordHTTP) string) func(*egress.Record) string {
	return func(r *egress.Record) string {
		if r.HTTP == nil {
			return ""
		}
		return text(r.HTTP)
	}
}

func decisionText(text func(*egress.RecordDecision) string) func(*egress.Record) string {
	return func(r *egress.Record) string {
		if r.Decision == nil {
			return ""
		}
		return text(r.Decision)
	}
}

func statusOf(r *egress.Record) int {
	if r.HTTP == nil {
		return 0
	}
	return r.HTTP.Status
}

func portNumber(r *egress.Record) (int64, bool) {
	if r.Dst == nil || r.Dst.Port == 0 {
		return 0, false
	}
	return int64(r.Dst.Port), true
}

// known refuses a value that the key does not have.
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

// textKey matches where one of the texts does; "*" stands for any text, and case
// does not matter.
func textKey(texts ...func(*egress.Record) string) func(string, time.Time) (condition, bool, error) {
	return func(value string, _ time.Time) (condition, bool, error) {
		pattern := strings.ToLower(value)
		return func(r *egress.Record) bool {
			return slices.ContainsFunc(texts, func(text func(*egress.Record) string) bool {
				return globMatch(pattern, strings.ToLower(text(r)))
			})
		}, false, nil
	}
}

// flowKey matches the beginning of an id.
func flowKey(value string, _ time.Time) (condition, bool, error) {
	pattern := strings.ToLower(value) + "*"
	return func(r *egress.Record) bool { return r.Flow != "" && globMatch(pattern, strings.ToLower(r.Flow)) }, false, nil
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

// parseNumber reads a number that is not negative.
func parseNumber(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return int64(n), nil
}
