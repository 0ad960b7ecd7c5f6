package file

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Audit is the section "audit".
type Audit struct {
	// Dir is the folder of the log. Default: the command's state folder.
	Dir string

	// Durability is "process", the default, where a record is written before the first byte passes and synced a tenth of a
	// second later, or "disk", where it is synced first.
	Durability string

	// SegmentBytes is the size at which a new segment begins. Default: 64 MiB.
	SegmentBytes int64

	// KeyDir is the folder of the keys that sign the log, which no sandbox may see.
	// Default: the command's state folder.
	KeyDir string

	// Retain says what of the log is kept. Default: a tenth of the disk.
	Retain Retain

	// Sinks are where the records of the log are sent to, by egressd serve and run. Default: none.
	Sinks []Sink

	// Anchors are where each new checkpoint of the log is sent to, so that nobody who
	// takes the log over can cut it unseen: "file:/PATH", "unix:/PATH", "tcp:HOST:PORT",
	// "syslog:unix:/PATH", "syslog:udp:HOST:PORT" or "syslog:tcp:HOST:PORT". Default: none.
	Anchors []string
}

// Retain is the section "audit.retain": the oldest segments are removed while one
// of its bounds is exceeded. A bound of 0 is none.
type Retain struct {
	All bool // nothing is removed: "retain: all"

	Bytes    int64         // of all segments
	Age      time.Duration // since a segment ended
	Segments int           // how many

	// Sinks is the section "audit.retain.sinks". Retention keeps a segment that a sink has
	// not received until one of these bounds is exceeded too. Default: retention does not
	// wait for sinks.
	Sinks RetainSinks
}

// RetainSinks bounds the segments that retention keeps for slow sinks. A bound of 0 is none.
type RetainSinks struct {
	Bytes int64         // of all segments
	Age   time.Duration // since a segment ended
}

func (r *reader) audit(a *Audit) func(*yaml.Node) {
	return r.section("audit", r.kind.onlyKey(r, "audit", "sinks", fields{
		"dir":           r.path("audit.dir", &a.Dir),
		"durability":    word(r, "audit.durability", &a.Durability, "process", "disk"),
		"segment_bytes": number(r, "audit.segment_bytes", &a.SegmentBytes, 64<<10, 16<<30),
		"key_dir":       r.path("audit.key_dir", &a.KeyDir),
		"retain":        r.retain(&a.Retain),
		"sinks":         r.sinks(&a.Sinks),
		"anchors":       r.anchors(&a.Anchors),
	}))
}

func (r *reader) retain(t *Retain) func(*yaml.Node) {
	age := func(what string, into *time.Duration) func(*yaml.Node) {
		return r.durationWithin(what, into, time.Hour, 10*366*24*time.Hour, "a duration from 1h, like 720h for thirty days")
	}
	read := r.section("audit.retain", fields{
		"bytes":    number(r, "audit.retain.bytes", &t.Bytes, 1<<20, 1<<50),
		"age":      age("audit.retain.age", &t.Age),
		"segments": number(r, "audit.retain.segments", &t.Segments, 2, 1<<30),
		"sinks": r.section("audit.retain.sinks", fields{
			"bytes": number(r, "audit.retain.sinks.bytes", &t.Sinks.Bytes, 1<<20, 1<<50),
			"age":   age("audit.retain.sinks.age", &t.Sinks.Age),
		}),
	})
	return func(n *yaml.Node) {
		if t.All = n.Kind == yaml.ScalarNode && n.Value == "all"; t.All {
			return
		}
		read(n)
		switch {
		case t.Sinks == RetainSinks{}:
		case t.Bytes == 0 && t.Age == 0 && t.Segments == 0:
			r.fail(n, "audit.retain.sinks says how long removal waits, and nothing is removed; add bytes, age or segments to audit.retain")
		case t.Sinks.Bytes > 0 && t.Sinks.Bytes <= t.Bytes:
			r.fail(n, "audit.retain.sinks.bytes leaves nothing for sinks; write more than the %d of audit.retain.bytes", t.Bytes)
		case t.Sinks.Age > 0 && t.Sinks.Age <= t.Age:
			r.fail(n, "audit.retain.sinks.age leaves nothing for sinks; write more than the %s of audit.retain.age", t.Age)
		}
	}
}

// anchorKinds are what an anchor begins with, and how the rest of it is written.
var anchorKinds = map[string]string{
	"file":        "file:/PATH",
	"unix":        "unix:/PATH",
	"tcp":         "tcp:HOST:PORT",
	"syslog:unix": "syslog:unix:/PATH",
	"syslog:udp":  "syslog:udp:HOST:PORT",
	"syslog:tcp":  "syslog:tcp:HOST:PORT",
}

// CutAnchor reads one of "audit.anchors", its variables replaced: its kind, as
// "syslog:udp", and the path or address. It reports whether it is one.
func CutAnchor(text string) (kind, at string, ok bool) {
	kind, at = cutAnchorKind(text)
	return kind, at, anchorKinds[kind] != "" && anchorPlace(kind, at) && !strings.HasPrefix(at, "${")
}

func cutAnchorKind(text string) (kind, at string) {
	kind, at, _ = strings.Cut(text, ":")
	if kind == "syslog" {
		transport, rest, _ := strings.Cut(at, ":")
		kind, at = kind+":"+transport, rest
	}
	return kind, at
}

// anchorPlace reports whether what stands behind the kind is an absolute path or an
// address, as the kind has it.
func anchorPlace(kind, at string) bool {
	if kind == "file" || strings.HasSuffix(kind, "unix") {
		return strings.HasPrefix(at, "/") && !strings.HasSuffix(at, "/") || strings.HasPrefix(at, "${")
	}
	return problemOfSinkAddress("tcp:"+at) == ""
}

// anchors reads the places that checkpoints are sent to.
func (r *reader) anchors(into *[]string) func(*yaml.Node) {
	const what = "audit.anchors"
	return func(n *yaml.Node) {
		r.list(what, into, r.anchor)(n)
		for i, text := range *into {
			if text != "" && slices.Contains((*into)[:i], text) {
				r.failAt(r.places[fmt.Sprintf("%s[%d]", what, i)], "%s[%d] stands above already; leave it out", what, i)
			}
		}
	}
}

// anchor reads a place that checkpoints are sent to, in the path of which variables
// may stand.
func (r *reader) anchor(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		kind, at := cutAnchorKind(text)
		form := anchorKinds[kind]
		switch {
		case form == "" && at == "":
			r.fail(n, "%s is not a place for checkpoints; write file:/PATH, unix:/PATH, tcp:HOST:PORT, syslog:unix:/dev/log or syslog:udp:HOST:PORT", what)
		case form == "":
			r.fail(n, "%s cannot begin with %q; %s", what, printable(kind), didYouMean(kind, slices.Collect(maps.Keys(anchorKinds))))
		case !anchorPlace(kind, at):
			r.fail(n, "%s is not a place for checkpoints; write %s", what, form)
		default:
			*into = text
			r.places[what] = placeOf(n)
		}
	}
}
