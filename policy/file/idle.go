package file

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/policy"
)

// ruleLists are the lists of the file, and those of each sandbox.
func (f *File) ruleLists() []policy.Lists {
	all := []policy.Lists{{Allow: f.Allow, Deny: f.Deny, Ask: f.Ask, UnsafeAllow: f.UnsafeAllow}}
	for _, s := range f.Sandboxes {
		all = append(all, policy.Lists{Allow: s.Allow, Deny: s.Deny})
	}
	return all
}

// checkHidden refuses a rule that never decides because others hide it: one of them would not be kept.
func (r *reader) checkHidden(f *File) {
	if len(r.problems) > 0 { // a rule may lack its pattern
		return
	}
	for _, lists := range f.ruleLists() {
		for _, idle := range lists.Hidden() {
			r.failAt(idle.Rule.At, "%s never decides: %s; remove %s, or what stands in its way", idle.Rule.ID, verdictsOf(&idle), idle.Rule.ID)
		}
	}
}

// verdictsOf names the rules that decide in the place of another.
func verdictsOf(idle *policy.Idle) string {
	const most = 3
	var names []string
	for _, rule := range idle.By[:min(most, len(idle.By))] {
		names = append(names, fmt.Sprintf("%s in line %d", rule.ID, rule.At.Line))
	}
	if more := len(idle.By) - most; more > 0 {
		names = append(names, quantity.Plural(more, "other rule"))
	}
	verb := " decides"
	if len(names) > 1 {
		verb = " decide"
	}
	return strings.Join(names, " and ") + verb + " all that " + idle.Rule.Pattern.String() + " names there"
}

// Remarks are further warnings, for "policy check" alone: rules that only repeat others, and rules that a server which
// ignores the case of paths does not keep.
func (f *File) Remarks() []policy.Problem {
	w := warnings{file: f}
	for _, lists := range f.ruleLists() {
		for _, idle := range lists.Idle() {
			w.say(idle.Rule.At, "%s changes nothing: %s, with the same verdict; remove it", idle.Rule.ID, verdictsOf(&idle))
		}
		for _, rules := range [][]policy.Rule{lists.Deny, lists.Ask} {
			for i := range rules {
				w.folds(&rules[i])
			}
		}
	}
	return w.said
}

// folds warns of a rule that refuses paths by their letters.
func (w *warnings) folds(r *policy.Rule) {
	for _, p := range r.Paths {
		if path := p.String(); strings.ToUpper(path) != path || strings.ToLower(path) != path {
			w.say(r.At, "%s: paths are compared byte for byte, so %s passes where %s is refused; if %s ignores case, name the host without paths, or allow only the paths that are needed",
				r.ID, otherCase(path), path, r.Pattern.Host())
			return
		}
	}
}

func otherCase(path string) string {
	if upper := strings.ToUpper(path); upper != path {
		return upper
	}
	return strings.ToLower(path)
}
