package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

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
