package file

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/internal/boottime"
	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// An Enforcement is the keys "mode" and "until" of the file or of a sandbox. Its zero value enforces.
type Enforcement struct {
	// Observe lets pass what no rule is about, and records it, see [policy.Observation].
	Observe bool

	// Until is when that ends. Zero: it has no end.
	Until time.Time

	left func() time.Duration // as in [policy.Observation]
}

// leftUntil counts down to a moment by two clocks: the wall clock, which a person may set, and the monotonic clock since
// the file was read. The first clock that reaches the moment ends it for good.
func leftUntil(until time.Time) func() time.Duration {
	var ended atomic.Bool
	end := boottime.Now() + max(0, time.Until(until))
	return func() time.Duration {
		left := min(end-boottime.Now(), time.Until(until))
		if left <= 0 {
			ended.Store(true)
		}
		if ended.Load() {
			return 0
		}
		return left
	}
}

// modeFields adds the keys of a mode to those of a section. at names the section, and is empty for the file.
func (r *reader) modeFields(all fields, at string, m *Enforcement) fields {
	mode := "enforce"
	all["mode"] = func(n *yaml.Node) {
		word(r, at+"mode", &mode, "enforce", "observe")(n)
		m.Observe = mode == "observe"
	}
	all["until"] = r.moment(at+"until", &m.Until)
	return all
}

// moment reads a time with its zone (RFC 3339).
func (r *reader) moment(what string, into *time.Time) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.places[what] = placeOf(n)
		t, err := time.Parse(time.RFC3339, n.Value)
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" && n.Tag != "!!timestamp" || err != nil {
			r.fail(n, "%s is a time with its zone; write it as 2026-12-31T18:00:00Z or 2026-12-31T19:00:00+01:00", what)
			return
		}
		*into = t
	}
}

// checkModes refuses modes that change nothing, and sets their ends.
func (r *reader) checkModes(f *File) {
	r.checkMode(&f.Mode, "", f.Default == policy.Allow)
	for i := range f.Sandboxes {
		s := &f.Sandboxes[i]
		r.checkMode(&s.Mode, fmt.Sprintf("sandboxes[%d].", i), f.Default == policy.Allow && !s.Narrowed)
	}
}

func (r *reader) checkMode(m *Enforcement, at string, open bool) {
	place, hasUntil := r.places[at+"until"]
	switch {
	case hasUntil && !m.Observe:
		r.failAt(place, "%suntil is the end of mode: observe; write that beside it, or leave the key out", at)
	case m.Observe && open:
		r.failAt(r.places[at+"mode"], "%smode: observe changes nothing beside default: allow, which lets the same pass for good; write default: deny", at)
	case !m.Until.IsZero():
		m.left = leftUntil(m.Until)
	}
}

// observations returns what the file observes. If learn is set, everybody is observed without an end.
func (f *File) observations(learn bool) (all []policy.Observation) {
	if f.Mode.Observe || learn {
		one := policy.Observation{}
		if !learn {
			one.Until, one.Left = f.Mode.Until, f.Mode.left
		}
		all = append(all, one)
	}
	for i := range f.Sandboxes {
		if s := &f.Sandboxes[i]; s.Mode.Observe {
			all = append(all, policy.Observation{Sandbox: s.Name, Until: s.Mode.Until, Left: s.Mode.left})
		}
	}
	return all
}

// Observing returns what the file observes now.
func (f *File) Observing() []policy.Observation {
	return slices.DeleteFunc(f.observations(false), func(o policy.Observation) bool { return !o.Lasts() })
}

// ModeDoubts are the warnings about modes, which are a part of [File.Doubts].
func (f *File) ModeDoubts() []policy.Problem {
	w := warnings{file: f}
	w.observes()
	return w.said
}

// observes warns of what is observed.
func (w *warnings) observes() {
	w.mode(&w.file.Mode, "mode", "")
	for i := range w.file.Sandboxes {
		s := &w.file.Sandboxes[i]
		w.mode(&s.Mode, fmt.Sprintf("sandboxes[%d].mode", i), " of sandbox "+s.Name)
	}
}

func (w *warnings) mode(m *Enforcement, at, whose string) {
	switch until := m.Until.Format(time.RFC3339); {
	case !m.Observe:
	case m.Until.IsZero():
		w.say(w.file.places[at], "mode: observe%s lets every public destination pass that no rule is about, and has no end; write until beside it", whose)
	case m.left() == 0:
		w.say(w.file.places[at], "mode: observe%s ended at %s, and the rules are enforced; take the line out", whose, until)
	default:
		w.say(w.file.places[at], "mode: observe%s lets every public destination pass that no rule is about, until %s", whose, until)
	}
}
